"""Compiled cells with symbolic sizes: one graph serves several shapes, and the proof counts it."""

import pytest
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


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dynamic")
    (folder / "nets.py").write_text(SPEC)
    modes = ("--mode=compiled", "--mode=compiled_dynamic")
    code, printed = conformance(folder, "run", "nets.py", *modes, "--precision=fp32", "--device=cpu", "--no-speed")
    assert code == 0, printed
    found = run_files.read(run_folder(printed)).verdicts
    return {cell.partition("[")[2].partition("-")[0]: verdict for cell, verdict in found.items()}


def test_one_graph_serves_the_shapes_of_all_cases(verdicts):
    static, dynamic = (verdicts[mode].observation.facts for mode in ("compiled", "compiled_dynamic"))
    assert static["graphs"] >= 3
    assert dynamic["graphs"] < static["graphs"]
    assert dynamic[SYMBOLIC] >= 1
    assert SYMBOLIC not in static


def test_the_verdict_is_that_of_every_shape(verdicts):
    assert verdicts["compiled_dynamic"].status == "PASS"
    assert {d.case for d in verdicts["compiled_dynamic"].observation.discrepancies} >= {"rows-4", "rows-5", "rows-7"}
    assert not [note for note in verdicts["compiled_dynamic"].notes if "symbolic" in note]
