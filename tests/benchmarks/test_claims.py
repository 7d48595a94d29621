"""The page of claims: its words, its rows, and the verdict on a claim over several sizes."""

import re
from dataclasses import replace

import pytest
from harness.sources import ROOT

from benchmarks import claims
from benchmarks.claims import Replica, all_replicas, page, pooled, word
from conformance.judging.executor import Executor
from conformance.records.measurements import Ratio, Reason
from zoo.claim import Claim

CLAIM = Claim(text="it pays", source="a post", factor=2.0, quantity="forward", baseline="mlp", mode="compiled")


def ratio(middle, low, high):
    return Ratio(middle, low, high, pairs=20)


HOLDS, SOME, NONE = ratio(2.0, 1.9, 2.1), ratio(1.5, 1.4, 1.6), ratio(1.0, 0.99, 1.01)
LOSS, NOISE, SLOW = ratio(0.5, 0.4, 0.6), ratio(1.0, 0.8, 1.3), Reason("too slow", "9 s")


def row(*measured):
    sizes = (16, 64, 256)
    found = Replica("mlp", CLAIM, "width", sizes, "cpu", dict(zip(sizes, measured, strict=False)))
    return page("here", [found]).removeprefix(claims.INTRODUCTION.format(header="here"))


@pytest.mark.parametrize(
    ("found", "factor", "expected"),
    [
        (ratio(2.0, 1.80, 2.2), 2.0, "reproduced"),
        (ratio(2.0, 1.79, 2.2), 2.0, "weaker"),
        (ratio(90.0, 80.2, 99.0), 100.0, "reproduced"),
        (ratio(9.0, 8.9, 9.1), 2.0, "reproduced"),
        (NONE, 1.5, "same"),
        (LOSS, 1.5, "worse"),
        (NOISE, 1.5, "too noisy"),
    ],
)
def test_four_fifths_of_a_published_gain_reproduce_it(found, factor, expected):
    assert word(found, factor) == expected


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        ((HOLDS, HOLDS), "reproduced"),
        ((SOME, SOME), "weaker"),
        ((HOLDS, NONE), "size-dependent"),
        ((LOSS, NONE), "not reproduced"),
        ((HOLDS, NOISE), "reproduced"),
        ((NONE, SLOW), "not reproduced"),
        ((NOISE, SLOW), "no figure"),
        ((), "needs CUDA"),
    ],
)
def test_the_verdict_over_sizes_is_that_of_those_with_a_clear_answer(measured, verdict):
    assert row(*measured).splitlines()[0].endswith(f"| {verdict} |")


def test_a_row_has_claim_factor_and_sizes_and_what_is_missing_stands_below():
    assert row(HOLDS, pooled([ratio(1.5, 1.5, 1.5)] * 3), SLOW) == (
        "| it pays<br>`mlp[compiled-fp32]` against `mlp[eager-fp32]`, forward | 2×: a post "
        "| on cpu, by width<br>16: ▲2.00 [1.90, 2.10] reproduced<br>64: ▲1.50 weaker<br>256: too slow "
        "| size-dependent |\n\nWhy figures are missing:\n\n- `mlp@256[compiled-fp32-cpu]`: too slow: 9 s\n"
    )


def test_a_gain_must_show_in_every_process():
    assert pooled([HOLDS, SLOW, SOME]) == SLOW
    found = pooled([HOLDS, SOME])
    assert (found.low, found.high) == (1.4, 2.1)


def on_the_cpu(replica, claim, **others):
    """A claim about CUDA as one about this machine."""
    return replace(replica, claim=replace(claim, device="", **others), device="cpu")


def test_the_page_has_every_claim_and_those_about_cuda_are_open_without_it():
    written = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    replicas = all_replicas(["cpu"])
    assert {r.model for r in replicas if r.device == "cuda"} == {"mlp", "fused_conv_bn", "fit_checkerboard"}
    for replica in replicas:
        begins = " | ".join(claims._row(replica).split(" | ")[:2])
        (row,) = (line for line in written.splitlines() if line.startswith(f"{begins} |"))
        assert row.endswith("| needs CUDA |") == (replica.device == "cuda")
    assert written.count("| needs CUDA |") == sum(r.device == "cuda" for r in replicas)


@pytest.mark.slow
def test_a_whole_training_is_judged_run_in_turns_and_drawn(tmp_path, monkeypatch):
    """The claim of the checkerboard's source, on a small board in bfloat16 on the CPU."""
    pytest.importorskip("PIL")
    monkeypatch.setattr(claims, "PROCESSES", 1)
    monkeypatch.setattr(claims, "STEPS", 4)
    (found,) = (r for r in all_replicas(["cpu"]) if r.model == "fit_checkerboard")
    replica = replace(on_the_cpu(found, found.claim, precision="amp_bf16"), sizes=(8,))
    plan = claims._plan([replica])
    assert sorted(p.id for p in plan.cells) == [f"fit_checkerboard[scripted-{p}-cpu]" for p in ("amp_bf16", "fp32")]
    executor = Executor(plan, tmp_path)
    verdicts = {planned.id: executor.verdict(planned) for planned in plan.cells}
    claims._train([replica], plan, verdicts, tmp_path)
    assert isinstance(replica.measured[8], Ratio)
    assert re.fullmatch(r", loss 0\.\d{4} against 0\.\d{4}", replica.learnt[8])
    for precision in ("fp32", "amp_bf16"):
        assert (tmp_path / f"fit_checkerboard-scripted-{precision}-8.png").read_bytes()[1:4] == b"PNG"
    red = {name: replace(verdict, status="FAIL") for name, verdict in verdicts.items()}
    claims._train([replica], plan, red, None)
    assert replica.measured[8] == Reason("FAIL", "fit_checkerboard[scripted-fp32-cpu]")
