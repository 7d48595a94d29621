"""Speeds beside verdicts: which cells are timed, what their processes say together, and what stands for a figure."""

import re

import pytest
from test_cli import conformance, run_folder

from conformance.figures import ratio, speed
from conformance.show import matrix
from conformance.measure.side_by_side import check_controls
from conformance.figures.ratio import Ratio
from conformance.records import Speed, Verdict
from conformance.run.store import Contents
from conformance.measure.timing import NotMeasuredError

MODES, PRECISIONS = ("eager", "scripted", "compiled"), ("fp32", "amp_bf16")
DTYPE = {"outcome": "dtype", "tensor": "output", "dtype": "float32"}
WRONG = {"outcome": "FAIL", "tensor": "output"}

MODELS = """
import time
import torch
from zoo import Case, Spec

def spec(name, build, **others):
    case = Case(name="typical", inputs=lambda g: (torch.randn(16, 16, generator=g),))
    return Spec(name=name, summary=name, source="a test", build=build, cases=(case,), **others)

def chain(x):
    return x.sin().cos().exp().sin()

def slow(x):  # but not as float64, where the reference needs it fifty times
    if x.dtype == torch.float32:
        time.sleep(0.3)
    return x.sin()

def at_first(x):
    if x.dtype == torch.float32:
        at_first.calls += 1
    return x.sin() * (1.0 if at_first.calls < 10 else 1.5)
at_first.calls = 0

def waver(x):
    if x.dtype == torch.float32:
        waver.calls += 1
        time.sleep(0.001 * (waver.calls % 7) ** 2)
    return x.sin()
waver.calls = 0

CHAIN = spec("chain", lambda: chain)
SLOW = spec("slow", lambda: slow)
NOTHING = spec("nothing", lambda: lambda x: x, differentiable=False)
AT_FIRST = spec("at_first", lambda: at_first)
WAVER = spec("waver", lambda: waver)
"""


def cell(mode, precision, expect=()):
    return {"model": "net", "mode": mode, "precision": precision, "device": "cpu", "skip": "", "expect": list(expect)}


def name(mode, precision):
    return f"net[{mode}-{precision}-cpu]"


def verdicts(**status):
    return {name(m, p): Verdict(name(m, p), status.get(f"{m}_{p}", "PASS")) for m in MODES for p in PRECISIONS}


def plan(**expect):
    cells = [cell(m, p, expect.get(f"{m}_{p}", ())) for p in PRECISIONS for m in MODES]
    return {"cells": cells, "models": {"net": {}}, "figures": {"net": ["gradient"]}}


def test_every_precision_has_a_contest_against_eager_fp32():
    single, half = speed.contests(plan(), verdicts())
    assert single.name == "net[fp32-cpu]"
    assert single.timed == [name(m, "fp32") for m in MODES]
    assert half.name == "net[amp_bf16-cpu]"
    assert [(m["mode"], m["precision"]) for m in half.members] == [("eager", "fp32"), *((m, "amp_bf16") for m in MODES)]
    assert half.timed == [name(m, "amp_bf16") for m in MODES]
    assert single.jobs("usual") == ["speed usual net[fp32-cpu] #0", "speed usual net[fp32-cpu] #1"]


@pytest.mark.parametrize("status", ["FAIL", "ERROR", "UNSUPPORTED", "INCONCLUSIVE", "STALE"])
def test_what_is_not_green_has_no_speed(status):
    single, _ = speed.contests(plan(), verdicts(compiled_fp32=status))
    assert name("compiled", "fp32") not in single.timed
    (refused,) = single.refused
    assert (refused.cell, refused.seconds) == (name("compiled", "fp32"), None)
    assert refused.reason == f"{status}: no speed without a green cell"


def test_a_declared_dtype_is_green_and_a_declared_failure_is_not():
    expected = verdicts(scripted_amp_bf16="EXPECTED")
    _, half = speed.contests(plan(scripted_amp_bf16=[DTYPE]), expected)
    assert name("scripted", "amp_bf16") in half.timed
    _, half = speed.contests(plan(scripted_amp_bf16=[WRONG]), expected)
    assert name("scripted", "amp_bf16") not in half.timed


def test_without_its_baseline_nothing_has_a_speed():
    for contest in speed.contests(plan(), verdicts(eager_fp32="FAIL")):
        assert contest.members == ()
        assert contest.jobs("usual") == []
        reasons = {s.reason for s in contest.refused if s.cell != name("eager", "fp32")}
        assert reasons == {"no baseline: net[eager-fp32-cpu] is FAIL"}


def member(middle, seconds=1e-3, warm_calls=6):
    ratio = Ratio(middle, middle * 0.99, middle * 1.01, 100)
    ratios = {name("eager", "fp32"): ratio.to_json()}
    return {"seconds": seconds, "warm_calls": warm_calls, "ratios": ratios}


def test_two_processes_say_it_together():
    answers = [{"figure": "gradient", "members": {"a": member(2.0)}}, {"members": {"a": member(2.2, 2e-3, 9)}}]
    found = speed.pooled("a", answers)
    ratio = found.ratios[name("eager", "fp32")]
    assert (found.figure, found.seconds, found.warm_calls) == ("gradient", 1e-3, 9)
    assert (ratio.low, ratio.high, ratio.processes) == (pytest.approx(1.98), pytest.approx(2.222), 2)


def test_what_one_process_could_not_measure_has_no_figure():
    broken = {"members": {"a": {"reason": "too noisy: all of it"}}}
    found = speed.pooled("a", [{"figure": "gradient", "members": {"a": member(2.0)}}, broken])
    assert (found.seconds, found.ratios, found.reason) == (None, {}, "too noisy: all of it")
    assert speed.pooled("a", [{"reason": "crashed: x"}, broken]).reason == "crashed: x"


SAME, SLOWER = Ratio(1.0, 0.99, 1.01, 100), Ratio(0.91, 0.9, 0.92, 100)


@pytest.mark.parametrize(("measure", "said"), [("speed", True), ("", False)])
def test_only_who_asked_for_speeds_is_told_that_there_are_none(tmp_path, measure, said):
    told = verdicts(eager_fp32="FAIL")
    environment = dict.fromkeys(("torch", "python", "threads_per_cell", "cpu", "cpu_capability"), "") | {"gpus": []}
    whole = {**plan(), "measure": measure, "seed": 0, "environment": environment}
    text = matrix.render(Contents(whole, tuple(told), told), folder=tmp_path)
    assert ("no speed, no baseline" in text) is said


def test_the_meter_passes_its_own_trial():
    check_controls(twin=SAME, burdened=SLOWER)
    check_controls(twin=Ratio(1.0, 0.9, 1.1, 100), burdened=SLOWER)  # too noisy to say is no false alarm


@pytest.mark.parametrize("twin", [Ratio(1.1, 1.04, 1.2, 100), Ratio(0.9, 0.8, 0.96, 100)])
def test_a_difference_between_two_copies_voids_the_figures(twin):
    with pytest.raises(NotMeasuredError, match="control failed: two copies of one model came out"):
        check_controls(twin=twin, burdened=SLOWER)


@pytest.mark.parametrize("burdened", [SAME, Ratio(0.93, 0.88, 0.98, 100), Ratio(1.1, 1.05, 1.2, 100)])
def test_more_work_that_is_not_seen_voids_the_figures(burdened):
    with pytest.raises(NotMeasuredError, match="too noisy: the meter could not see 10 % more work"):
        check_controls(twin=SAME, burdened=burdened)


@pytest.mark.parametrize(
    ("figures", "usual"), [(["forward", "gradient", "step"], "gradient"), (["forward"], "forward"), (["fit"], "fit")]
)
def test_what_is_timed_where_nobody_asks(figures, usual):
    assert speed.usual(figures) == usual


def test_a_contest_says_nothing_until_all_its_answers_are_there():
    job = "speed usual net[fp32-cpu] #{}"
    answer = {"figure": "gradient", "members": {name(m, "fp32"): member(1.0) for m in MODES}}
    contents = Contents(plan(), (), verdicts(), {job.format(0): answer})
    assert speed.speeds(contents) == {}
    contents.answers[job.format(1)] = answer
    assert set(speed.speeds(contents)) == {name(m, "fp32") for m in MODES}


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Speed("a", "gradient", 2.5e-4), "250 µs"),
        (Speed("a", "gradient", 1e-3, {"b": Ratio(1.32, 1.3, 1.349, 99)}), "▲1.32 [1.30, 1.35]"),
        (Speed("a", "gradient", 1e-3, {"b": Ratio(0.5, 0.49, 0.51, 99)}), "▼0.50 [0.49, 0.51]"),
        (Speed("a", "gradient", 1e-3, {"b": Ratio(1.0, 0.99, 1.01, 99)}), "=1.00 [0.99, 1.01]"),
        (Speed("a", "gradient", 1e-3, {"b": Ratio(1.04, 1.0, 1.1, 99)}), "~1.04 [1.00, 1.10]"),
        (Speed("a", "gradient", 1e-3, {"b": Ratio(104.2, 99.5, 1234.0, 99)}), "▲104 [99.5, 1234]"),
        (Speed("a", reason="too slow: 2 s a call"), "too slow"),
    ],
)
def test_what_the_table_shows(found, text):
    assert matrix.speed_text(found) == text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the models above."""
    folder = tmp_path_factory.mktemp("speeds")
    (folder / "models.py").write_text(MODELS)
    return folder


@pytest.fixture(scope="module")
def output(folder):
    """What a run of the models above prints."""
    axes = ("--mode=eager", "--mode=scripted", "--precision=fp32", "--device=cpu")
    return conformance(folder, "run", "models.py", *axes, TMPDIR=str(folder))[1]  # with a lock of its own


def row(output, model):
    return re.search(rf"^{model} +fp32 .*$", output, re.MULTILINE)[0]


def test_the_table_shows_time_and_ratio_beside_the_verdict(output):
    # where a machine is too busy to see 10 % more work, the reason stands there instead
    figure, reason = r"[▲▼=~]\d+\.\d\d \[\d+\.\d\d, \d+\.\d\d\]", "(too noisy|control failed)"
    assert re.search(rf"✓ \S+  ([\d.]+ µs|{reason}) +✓ \S+  ({figure}|{reason})", row(output, "chain"))


def test_the_reason_stands_where_the_number_would(output):
    assert "too slow" in row(output, "slow")
    assert "too fast to time" in row(output, "nothing")
    assert re.search(r"no speed, too slow: slow\[eager-fp32-cpu\]", output)


def test_a_wrong_result_in_a_timed_call_takes_the_figure_away(output):
    assert re.search(r"at_first +fp32 +✓ .*wrong result in a timed call", output)
    assert "norm  output, case typical" in output


def test_time_that_wavers_gets_no_claim(output):
    assert re.search(r"no steady state|too noisy|control failed", row(output, "waver"))


def test_a_measurement_that_is_missing_is_taken_when_the_run_is_resumed(folder, output):
    stored = run_folder(output)
    lines = (stored / "cells.jsonl").read_bytes().splitlines(keepends=True)
    (last,) = [n for n, line in enumerate(lines) if b"nothing[fp32-cpu] #1" in line]
    (stored / "cells.jsonl").write_bytes(b"".join(lines[:last] + lines[last + 1 :]))
    code, shown = conformance(folder, "run", "--resume", str(stored), TMPDIR=str(folder))
    assert code == 1  # for the red cells of the models above
    assert "taking 1 measurements" in shown
    assert "too fast to time" in row(shown, "nothing")


WEARS_OUT = """
import torch
from zoo import Case, Spec

def wears_out(x):
    if torch.is_autocast_enabled("cpu"):
        wears_out.calls += 1
        if wears_out.calls > 40:  # some time after it was steady
            raise ValueError("worn out")
    return x.sin()
wears_out.calls = 0

CASE = Case(name="typical", inputs=lambda g: (torch.randn(16, 16, generator=g),))
SPEC = Spec(name="wears_out", summary="wears out", source="a test", build=lambda: wears_out, cases=(CASE,))
"""


def test_a_member_that_raises_leaves_the_others_their_figures(tmp_path):
    (tmp_path / "models.py").write_text(WEARS_OUT)
    axes = ("--mode=eager", "--precision=fp32", "--precision=amp_bf16", "--device=cpu")
    _, output = conformance(tmp_path, "run", "models.py", *axes, TMPDIR=str(tmp_path))
    assert re.search(r"wears_out +fp32 +✓ \S+  ([\d.]+ µs|too noisy|control failed)", output), output
    assert re.search(r"amp_bf16 +✓ \S+  ValueError", output), output
    assert "worn out" in output


def test_a_claim_needs_two_processes():
    assert speed.PROCESSES == 2
    assert ratio.CONFIDENCE == 0.99
