"""Plans and judges cells of a file of specs beside the tests, as `conformance run` does."""

import contextlib
import importlib.util
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from conformance.judging import shrinking
from conformance.judging.executor import Executor
from conformance.process import child
from conformance.records.cell import Cell, Verdict
from conformance.records.tasks import PLAN, PlanRequest

SPECS = Path(__file__).parent.parent / "specs"


@cache
def material(name):
    """Import a file of specs, which may import the files beside it; its folder is on the path only meanwhile."""
    path = SPECS / name
    found = importlib.util.spec_from_file_location(f"material_{path.parent.name}_{path.stem}", path)
    module = sys.modules[found.name] = importlib.util.module_from_spec(found)
    sys.path.append(str(path.parent))
    try:
        found.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


@cache
def plan_of(*names, **axes):
    """The plan of all cells of some files on the CPU."""
    request = PlanRequest(tuple(str(SPECS / name) for name in names), devices=("cpu",), **axes)
    ending = child.run(PLAN, request, deadline=120.0, method="spawn")
    assert ending.result is not None, ending
    return ending.result


@contextlib.contextmanager
def judge_of(*names, deadline, **axes):
    """A function from model, mode and precision to the verdict; in the usual ones, unless `axes` names others."""
    plan = replace(plan_of(*names, **axes), deadline=deadline)
    cells = {planned.cell: planned for planned in plan.cells}
    with tempfile.TemporaryDirectory() as folder:
        executor = Executor(plan, Path(folder))

        def judge(model, mode, precision) -> Verdict:
            return executor.verdict(cells[Cell(model, mode, precision, "cpu")])

        yield judge


def judge_of_shapes(*sources, number):
    """The verdicts of cells in fp32 on the CPU at drawn shapes, red ones shrunk, by the id of the cell."""
    request = PlanRequest(sources, devices=("cpu",), precisions=("fp32",), shapes=number)
    plan = child.run(PLAN, request, deadline=120.0, method="spawn").result
    with tempfile.TemporaryDirectory() as folder:
        executor = Executor(plan, Path(folder))
        return {planned.id: shrinking.judge(executor, planned) for planned in plan.cells}


def gates_that_rejected(verdict):
    """Every gate that rejects any tensor, not only the first."""
    gates = set()
    for found in verdict.observation.discrepancies:
        gates |= {m.gate for m in found.measures if not m.met}
        if found.dtype_asked and found.kind != "absent" and found.dtype != found.dtype_asked:
            gates.add("dtype")
    return gates
