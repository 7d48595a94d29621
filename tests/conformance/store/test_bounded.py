"""A record that is too long or too deep is shortened: its verdict stays, and what explains it best."""

from dataclasses import replace

import pytest
from harness.stored_runs import cell, plan_of, verdict

from conformance.records.convert import to_json
from conformance.records.observation import Discrepancy, Measure, Observation, TensorName
from conformance.store import bounded, run_files


def large(tensors, size=10, facts=None):
    """A verdict on so many tensors; only the last one fails."""
    found = tuple(
        Discrepancy(
            *("case", TensorName("output", f"t{n}"), "rounded", "float32", ""),
            (Measure("norm", float(n == tensors - 1), 0.5, "x" * size),),
        )
        for n in range(tensors)
    )
    return replace(verdict("a", "FAIL"), observation=Observation("finished", discrepancies=found, facts=facts or {}))


@pytest.mark.parametrize(
    "found",
    [
        large(5000),
        large(3, size=400_000),
        large(1, facts={"graphs": 1, "text": "ä" * 300_000}),
        large(1, facts={str(n): "y" * 1000 for n in range(5000)}),
        replace(verdict("a", "FAIL"), text="\ud800" * 10_000_000, notes=("n" * 100_000,) * 100),
        replace(verdict("a", "FAIL"), observation=Observation("raised", "call", "E" * 10**6, "m" * 10**6)),
    ],
)
def test_a_long_record_is_shortened_and_keeps_its_verdict(tmp_path, found):
    run = tmp_path / "long"
    run_files.create(run, replace(plan_of("a"), every_tensor=True))
    writer = run_files.Writer(run)
    writer.add(to_json(found))
    writer.close()
    assert (run / run_files.LINES).stat().st_size <= bounded.RECORD_BYTES
    kept = run_files.read(run).verdicts[cell("a")]
    assert (kept.status, kept.margin, kept.text) == (found.status, found.margin, found.text[:2000])
    assert "was shortened" in kept.notes[-1]
    if len(found.observation.discrepancies) == 5000:
        assert kept.observation.discrepancies[0].tensor.leaf == "t4999"  # the one that fails
        assert "of 5000 compared tensors" in kept.notes[-1]


@pytest.mark.parametrize("depth", [61, 64, 200])
def test_a_record_that_could_not_be_read_again_is_shortened(tmp_path, depth):
    deep = []
    for _ in range(depth):
        deep = [deep]
    run = tmp_path / "deep"
    run_files.create(run, plan_of("a"))
    writer = run_files.Writer(run)
    writer.add(to_json(large(1, facts={"deep": deep, "graphs": 1})))
    writer.close()
    kept = run_files.read(run).verdicts[cell("a")]
    assert kept.observation.facts == {"graphs": 1}
    assert "64 levels" in kept.notes[-1]


def test_a_result_that_is_too_long_is_a_reason(tmp_path):
    run = tmp_path / "long"
    run_files.create(run, plan_of("a"))
    writer = run_files.Writer(run)
    writer.add_result("j", bounded.Reason("r", "x" * 2**23))
    writer.close()
    assert run_files.read(run).results["j"].short == "record too long"
