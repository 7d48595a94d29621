"""A run that times its cells, from end to end: figures beside verdicts, and reasons in place of figures."""

import re

import pytest
from harness.command import conformance, run_folder

from conformance.figures.speed import DEFAULT, is_needed, timing_groups
from conformance.store import run_files

MODELS = """
import time
import torch
from zoo import Case, Scale, Spec

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
    return x.sin() * (1.0 if at_first.calls < 100 else 1.5)
at_first.calls = 0

def waver(x):
    if x.dtype == torch.float32:
        waver.calls += 1
        time.sleep(0.001 * (waver.calls % 7) ** 2)
    return x.sin()
waver.calls = 0

def wrong_when_large(x):
    return x.sin() * (1.5 if x.dtype == torch.float32 and x.numel() > 1000 else 1.0)

def scale(model):
    return Scale(
        size_name="numbers",
        sizes=(16,),
        working=2**18,
        build=lambda _: model,
        inputs=lambda n, g: (torch.randn(n, generator=g),),
    )

CHAIN = spec("chain", lambda: chain)
LARGE = spec("large", lambda: chain, scale=scale(chain))
WRONG_WHEN_LARGE = spec("wrong_when_large", lambda: wrong_when_large, scale=scale(wrong_when_large))
SLOW = spec("slow", lambda: slow)
NOTHING = spec("nothing", lambda: lambda x: x, differentiable=False)
AT_FIRST = spec("at_first", lambda: at_first)
WAVER = spec("waver", lambda: waver)

class Sparse(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(16, 16, sparse=True)

    def forward(self, x):
        return x @ self.table(torch.arange(16))

SPARSE = spec("sparse", Sparse)
"""


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
    return conformance(folder, "run", "models.py", "--speed", *axes, TMPDIR=str(folder))[1]  # with a lock of its own


BUSY = "too noisy|control failed"  # the reason where a machine is too busy to see 10 % more work


def row(output, model):
    """The row of a model in the last table; the table is printed once before the speeds."""
    return re.findall(rf"^{model} +fp32 .*$", output, re.MULTILINE)[-1]


def test_the_table_is_printed_when_all_is_judged_and_again_with_the_speeds(output):
    before, after = re.findall(r"^chain +fp32 .*$", output, re.MULTILINE)
    assert after.split()[:4] == before.split()[:4]
    assert len(after) > len(before)


def test_the_table_shows_time_and_ratio_beside_the_verdict(output):
    figure = r"[▲▼=~]\d+\.\d\d \[\d+\.\d\d, \d+\.\d\d\]"
    assert re.search(rf"✓ \S+  ([\d.]+ µs|{BUSY}) +✓ \S+  ({figure}|{BUSY})", row(output, "chain"))


def test_the_working_size_is_judged_before_a_figure_is_shown(output):
    assert re.search(r"wrong_when_large +fp32 +✓ \S+  wrong result in a timed call", output), output
    assert "gain output, case numbers-262144: error" in " ".join(output.split())  # a line of the report may break there


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("large", rf"✓ \S+  ([\d.]+ ms at numbers 262144|{BUSY}|no steady state)"),  # timed at its working size
        ("slow", "too slow"),
        ("nothing", "too fast to time"),
        ("at_first", "fp32 +✓ .*wrong result in a timed call"),
        ("sparse", rf"sparse +fp32 +✓ \S+  ([\d.]+ µs|{BUSY})"),  # a sparse gradient is no hindrance
        ("waver", rf"no steady state|{BUSY}"),
    ],
)
def test_a_model_has_its_time_or_the_reason_in_its_place(output, model, told):
    assert re.search(told, row(output, model)), output
    assert re.search(r"no speed, too slow: slow\[eager-fp32-cpu\]", output)


def test_measurements_that_are_missing_are_taken_when_the_run_is_resumed(folder, output):
    stored = run_folder(output)
    lines = (stored / "cells.jsonl").read_bytes().splitlines(keepends=True)
    (last,) = [n for n, line in enumerate(lines) if b"nothing[fp32-cpu] #0" in line]
    (stored / "cells.jsonl").write_bytes(b"".join(lines[:last]))
    (stored / "run.json").unlink()  # as if the run had been interrupted there
    kept = run_files.read(stored)
    jobs = [job for group in timing_groups(kept.plan, kept.verdicts) for job in group.jobs(DEFAULT)]
    pending = sum(is_needed(job, kept.results) for job in jobs)
    assert pending >= 2  # both processes of the group that was taken away
    code, shown = conformance(folder, "run", "models.py", "--resume", str(stored), TMPDIR=str(folder))
    assert code == 1  # for the red cells of the models above
    assert f"taking up to {pending} measurements\n" in shown
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


def test_a_cell_that_raises_leaves_the_others_their_figures(tmp_path):
    (tmp_path / "models.py").write_text(WEARS_OUT)
    axes = ("--mode=eager", "--precision=fp32", "--precision=amp_bf16", "--device=cpu")
    _, output = conformance(tmp_path, "run", "models.py", "--speed", *axes, TMPDIR=str(tmp_path))
    assert re.search(r"wears_out +fp32 +✓ \S+  ([\d.]+ µs|too noisy|control failed)", output), output
    if re.search(r"amp_bf16 +✓ \S+  (too noisy|control failed|no steady state)", output):
        pytest.skip("the machine was too busy for the meter, which gave up before the model was worn out")
    assert re.search(r"amp_bf16 +✓ \S+  ValueError", output), output
    assert "worn out" in output
