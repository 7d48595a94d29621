"""Measures where the time of a cold compile goes: Python, or the C++ compiler; and what of that is the header.

    python -m benchmarks.compile_shares [MODEL ...] [--precision amp_bf16]

Each model of the zoo is compiled on the CPU, forward and backward, in a process and a cache of its own. A script in the
place of the C++ compiler notes each of its calls. Then a kernel without content is compiled by the command of a kernel:
that time is the header's, whose templates GCC instantiates anew for each kernel, also if the header is precompiled.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tabulate import tabulate

from benchmarks import children
from conformance.judging.executor import cell_task
from conformance.records.cell import Cell
from conformance.records.plan import Plan
from conformance.records.tasks import COMPILE, CompileTask, PlanRequest

MODELS = ("merge", "conv_bn", "attention", "lstm_cell", "resnet", "transformer")
DEADLINE = 900.0
TIMES = 5  # that the kernel without content is compiled
NOTES = """#!/usr/bin/env bash
started=$EPOCHREALTIME
{compiler} "$@"
code=$?
echo "$started $EPOCHREALTIME $*" >> {notes}
exit $code
"""
KERNEL = re.compile(r"\S+\.cpp\b")
EMPTY = '#include <torch/csrc/inductor/cpp_prefix.h>\nextern "C" void kernel(float* a) { a[0] = 1; }\n'


class Compiler:
    """The C++ compiler with a script before it that notes its calls.

    Args:
        folder: an empty folder for the script and the notes.
    """

    def __init__(self, folder: Path) -> None:
        found = shutil.which(os.environ.get("CXX", "g++"))
        if found is None:
            sys.exit("there is no C++ compiler")
        self.path, self._notes = folder / Path(found).name, folder / "notes"
        self.path.write_text(NOTES.format(compiler=found, notes=self._notes))
        self.path.chmod(0o755)

    def calls(self) -> list[tuple[float, str]]:
        """Seconds and arguments of every call since the last look."""
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        self._notes.unlink(missing_ok=True)
        parts = [line.split(" ", 2) for line in lines]
        return [(float(end) - float(start), words) for start, end, words in parts]

    def seconds_of_nothing(self, words: str, folder: Path) -> float:
        """The least seconds in which a kernel without content is compiled by the arguments of another."""
        source, result = folder / "empty.cpp", folder / "empty.so"
        source.write_text(EMPTY)
        words = re.sub(r"-o \S+", f"-o {result}", KERNEL.sub(str(source), words, count=1))
        seconds = []
        for _ in range(TIMES):
            started = time.perf_counter()
            subprocess.run(f"{self.path} {words}", shell=True, check=True, stderr=subprocess.DEVNULL)  # noqa: S602
            seconds.append(time.perf_counter() - started)
        return min(seconds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of the zoo (default: {' '.join(MODELS)})")
    parser.add_argument("--precision", default="fp32", help="of the cells (default: fp32)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="compile-shares-") as name:
        _measure(tuple(options.models) or MODELS, options.precision, Path(name))


def _measure(models: tuple[str, ...], precision: str, folder: Path) -> None:
    compiler = Compiler(folder)
    os.environ["CXX"] = str(compiler.path)
    request = PlanRequest(models, ("compiled",), (precision,), ("cpu",))
    plan = children.plan_of(request)
    children.prepare(plan.environment, folder / "cache")
    _seconds(plan, plan.cells[0].cell, folder)  # the first compile asks which vector instructions there are
    compiler.calls()
    rows = []
    for planned in plan.cells:
        seconds = _seconds(plan, planned.cell, folder)
        rows.append(_row(planned.cell.model, seconds, compiler, folder))
        print(tabulate(rows[-1:], tablefmt="plain", floatfmt=".1f"), flush=True)
    header = ["model", "seconds", "Python", "kernels", "C++ compiler", "of these the header"]
    print(tabulate(rows, header, tablefmt="github", floatfmt=".1f"))


def _seconds(plan: Plan, cell: Cell, folder: Path) -> float:
    """The seconds of a cell's first call and gradient, with an empty cache of kernels."""
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        ran = children.result_of(COMPILE, CompileTask(cell_task(plan, cell), cache), DEADLINE)
    return ran.first_gradient or ran.first_output


def _row(model: str, seconds: float, compiler: Compiler, folder: Path) -> list[object]:
    """The shares of one model's compile."""
    calls = compiler.calls()
    kernels = [(spent, words) for spent, words in calls if " -include " in words]
    of_kernels = sum(spent for spent, _ in kernels)
    of_python = seconds - sum(spent for spent, _ in calls)
    nothing = len(kernels) * compiler.seconds_of_nothing(kernels[0][1], folder) if kernels else 0.0
    compiler.calls()
    return [model, seconds, of_python, len(kernels), of_kernels, nothing]


if __name__ == "__main__":
    main()
