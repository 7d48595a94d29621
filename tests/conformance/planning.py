"""Plans and judges cells of a file of specs beside the tests, as `conformance run` does; finds the benchmarks."""

import contextlib
import importlib
import importlib.util
import os
import select
import sys
import tempfile
from functools import cache
from pathlib import Path

from conformance.run import child
from conformance.run.executor import Execution
from conformance.records import Verdict

FOLDER = Path(__file__).parent.parent


def benchmark(name):
    """Import a module of benchmarks/; what it does to the path and the environment is undone."""
    path, environment = list(sys.path), dict(os.environ)
    sys.path.insert(0, str(FOLDER.parent / "benchmarks"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(environment)


@cache
def material(name):
    """Import a file of specs without putting its folder on the path."""
    found = importlib.util.spec_from_file_location(f"material_{Path(name).stem}", FOLDER / name)
    module = sys.modules[found.name] = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@cache
def plan_of(name):
    """Plan all cells of a file on the CPU."""
    task = {
        "sources": [str(FOLDER / name)],
        "modes": [],
        "precisions": [],
        "devices": ["cpu"],
        "seed": 0,
    }
    ending = child.run("conformance.plan.matrix:make", {**task, "deadline": 0.0}, deadline=120.0, method="spawn")
    assert ending.kind == "answered", ending
    assert "usage" not in ending.answer, ending.answer
    return ending.answer


@contextlib.contextmanager
def execution(name, deadline):
    """Yield a function from model, mode and precision to the verdict."""
    plan = {**plan_of(name), "deadline": deadline}
    cells = {(c["model"], c["mode"], c["precision"]): c for c in plan["cells"]}
    with tempfile.TemporaryDirectory() as folder:
        running = Execution(plan, Path(folder))

        def judge(model, mode, precision) -> Verdict:
            return running.verdict(cells[model, mode, precision])

        yield judge


def gates_that_refused(verdict):
    """Every gate that says no to any tensor, not only the first."""
    gates = set()
    for found in verdict.observation.discrepancies:
        gates |= {m.gate for m in found.measures if not m.met}
        if found.dtype_asked and found.kind != "absent" and found.dtype != found.dtype_asked:
            gates.add("dtype")
    return gates


def outlives(process, seconds=10.0):
    """Whether a process still runs after so long; a zombie does not."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return False
    try:
        return not select.select([handle], [], [], seconds)[0]
    finally:
        os.close(handle)
