"""Compiled cells with symbolic sizes: one graph serves several shapes, and the proof counts it."""

from harness.command import conformance, run_folder

from conformance.axes import SYMBOLIC
from conformance.store import run_files

SPEC = """
import torch
from zoo import Case, Spec


def scaled(x):
    return x.sin() * x.shape[0]


def case(n):
    return Case(name=f"rows-{n}", inputs=lambda g: (torch.randn(n, 3, generator=g),))


SPEC = Spec(name="scaled", summary="-", source="-", build=lambda: scaled, cases=(case(4), case(5), case(7)))
"""


def test_one_graph_serves_the_shapes_of_all_cases(tmp_path):
    (tmp_path / "nets.py").write_text(SPEC)
    modes = ("--mode=compiled", "--mode=compiled_dynamic")
    code, printed = conformance(tmp_path, "run", "nets.py", *modes, "--precision=fp32", "--device=cpu", "--no-speed")
    assert code == 0, printed
    found = run_files.read(run_folder(printed)).verdicts
    verdict = found["scaled[compiled_dynamic-fp32-cpu]"]
    static, dynamic = found["scaled[compiled-fp32-cpu]"].observation.facts, verdict.observation.facts
    assert static["graphs"] >= 3
    assert dynamic["graphs"] < static["graphs"]
    assert static["seconds in Dynamo"] > 0
    assert static["seconds in its backend"] > 0
    assert dynamic[SYMBOLIC] >= 1
    assert SYMBOLIC not in static
    assert verdict.status == "PASS"
    assert verdict.observation.cases == ("rows-4", "rows-5", "rows-7")
    assert not [note for note in verdict.notes if "symbolic" in note]
