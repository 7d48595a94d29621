"""One real bench, from end to end."""

import re

import pytest
from harness.command import conformance, run_folder

from conformance.figures.speed import WARM_RUNS, compile_job, footprint_job, is_needed
from conformance.records.cell import Cell
from conformance.records.measurements import CompileCost, Footprint
from conformance.store import run_files

SIZES, MODES = (4, 16), ("eager", "compiled")
NETS = """
import torch
from zoo import Case, Scale, Spec

class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x):
        return self.linear(x).sin()

def inputs(width, g):
    return (torch.randn(8, width, generator=g),)

SPEC = Spec(
    name="net", summary="a net", source="a test", build=lambda: Net(4),
    cases=(Case(name="typical", inputs=lambda g: inputs(4, g)),),
    scale=Scale(size_name="width", sizes=(4, 16), build=Net, inputs=inputs),
)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the spec."""
    folder = tmp_path_factory.mktemp("nets")
    (folder / "nets.py").write_text(NETS)
    return folder


@pytest.fixture(scope="module")
def output(folder):
    """What the bench prints."""
    axes = (*(f"--mode={mode}" for mode in MODES), "--precision=fp32", "--device=cpu")
    code, output = conformance(folder, "bench", "nets.py", *axes, timeout=600, TMPDIR=str(folder))
    assert code == 0, output
    return output


@pytest.fixture(scope="module")
def stored(output):
    """What the bench stored."""
    return run_files.read(run_folder(output))


def test_a_bench_prints_verdicts_speeds_bytes_and_compile_times(output):
    for size in SIZES:
        assert re.search(rf"── net@{size} \(width {size}\), cpu ──", output)
        assert re.search(rf"net@{size} +fp32 +✓", output)
    # the weight gradient needs x and the sine what came into it: 8 rows of 4 bytes each
    assert re.search(r"^fp32 +eager .* 128 +128 ", output, re.MULTILINE)
    assert re.search(r"^fp32 +compiled +[\d.]+ m?s +[\d.]+ m?s", output, re.MULTILINE)


def test_a_bench_stores_every_measurement_and_the_compiled_code_of_the_cold_run_is_found_in_the_warm_ones(stored):
    twice = {job for job in stored.results if job.endswith(" #1")}
    assert not any(is_needed(job.replace(" #0", " #1"), stored.results) for job in stored.results)
    assert len(stored.results) - len(twice) == 1 + len(SIZES) * (3 + 2 * len(MODES))
    assert stored.plan.measure == "bench"
    cost = stored.result(CompileCost, compile_job(Cell("net@16", "compiled", "fp32", "cpu")))
    assert [run.cache for run in (cost.cold, *cost.warm)] == ["miss", "hit", "hit", "hit"]


@pytest.mark.parametrize("mode", MODES)
def test_warm_compile_runs_are_those_of_the_modes_that_compile(stored, mode):
    assert stored.plan.compiling_modes == ("compiled",)
    compiles = mode in stored.plan.compiling_modes
    for size in SIZES:
        cell = Cell(f"net@{size}", mode, "fp32", "cpu")
        cost = stored.result(CompileCost, compile_job(cell))
        assert len(cost.warm) == (WARM_RUNS if compiles else 0)
        assert all(run.reason is None and run.first_gradient > 0 for run in (cost.cold, *cost.warm))
        assert stored.result(Footprint, footprint_job(cell)).saved > 0


def test_a_stored_bench_is_printed_again(folder, output):
    code, shown = conformance(folder, "show", str(run_folder(output)))
    assert code == 0
    assert "── net@4 (width 4), cpu ──" in shown
    assert re.findall("^── .*", shown, re.MULTILINE) == re.findall("^── .*", output, re.MULTILINE)
