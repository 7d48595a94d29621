"""Measures what it costs to judge one cell, at real sizes: CPU seconds, without the model's own runs.

    python -m benchmarks.judging [--models transformer resnet18] [--precisions fp32 amp_fp16 amp_bf16]
        [--references FOLDER]

It prints one row for each cell: the seconds that it takes to load the reference, to compare every tensor of the case
by every gate, to try the canaries on them, and to compare the tensors with other weights; then their sum, and the bytes
of the stored record. The candidate is the oracle, rounded to the dtype that the cell asks for: what the judge does
depends on sizes and budgets, and not on the candidate. The models are those of `benchmarks.reference`. To make a
reference takes up to minutes; those in the folder are used again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import torch
from tabulate import tabulate

from benchmarks.reference import MODELS, THREE, spec_of
from conformance.axes import PRECISIONS, Precision
from conformance.gates.budget import TensorCriteria, TensorReference, criteria_for
from conformance.gates.compare import compare, compare_values, name_of
from conformance.oracle import reference, reference_file
from conformance.oracle.reference import CaseReference
from conformance.records.cell import Discrepancy, Observation
from conformance.records.convert import to_json
from conformance.store.run_files import condense
from conformance.verdict import judge

Result = TypeVar("Result")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=["transformer", "resnet18"], choices=MODELS, help="to measure")
    parser.add_argument("--precisions", nargs="*", default=[*THREE], choices=PRECISIONS, help="of the cells")
    parser.add_argument("--references", type=Path, help="folder of references (default: a temporary one)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with ExitStack() as stack:
        folder = options.references or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for model in options.models:
            path = _reference(folder, model, options.precisions)
            rows += [_row(path, model, PRECISIONS[name]) for name in options.precisions]
    header = ["model", "precision", "load", "gates", "canaries", "other weights", "sum", "record, bytes"]
    print(tabulate(rows, header, tablefmt="github", floatfmt=".2f"))


def _reference(folder: Path, model: str, precisions: list[str]) -> Path:
    """Path of the reference of a model, made if it is not there."""
    wanted = [name for name in PRECISIONS if name in {"fp32", *precisions}]
    path = folder / f"{model}-{'-'.join(wanted)}.reference"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = reference.make(spec_of(model), None, 0, [PRECISIONS[name] for name in wanted])
        reference_file.save(path, made)
    return path


def _row(path: Path, model: str, precision: Precision) -> list[str | float]:
    load, cases = _timed(lambda: reference_file.load(path, precision.name))
    gates, _ = _timed(lambda: [d for name, case in cases.items() for d in _values(name, case, precision)])
    whole, found = _timed(lambda: [d for name, case in cases.items() for d in _everything(name, case, precision)])
    changed = [(name, there) for name, case in cases.items() for _, there in case.changed]
    others, more = _timed(lambda: [d for name, case in changed for d in _values(name, case, precision)])
    seen = Observation("finished", discrepancies=(*found, *more), cases=tuple(cases))
    record = json.dumps(to_json(condense(judge(f"{model}[eager-{precision.name}-cpu]", seen))))
    return [model, precision.name, load, gates, whole - gates, others, load + whole + others, len(record)]


def _timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """The CPU seconds of some work, and what it returned."""
    started = time.process_time()
    found = work()
    return time.process_time() - started, found


def _values(name: str, case: CaseReference, precision: Precision) -> Iterator[Discrepancy]:
    for y, criteria, _ in _candidates(name, case, precision):
        yield compare_values(y, criteria, "")


def _everything(name: str, case: CaseReference, precision: Precision) -> Iterator[Discrepancy]:
    for y, criteria, known in _candidates(name, case, precision):
        drawn = known.redraws.truths if known.redraws else ()
        yield compare(y, criteria, y, "", drawn)


def _candidates(
    name: str, case: CaseReference, precision: Precision
) -> Iterator[tuple[torch.Tensor, TensorCriteria, TensorReference]]:
    """Each tensor of a case as the best candidate returns it: outputs in the cell's precision, gradients in float32."""
    for tensor, known in case.tensors.items():
        if known is None:
            continue
        low = tensor.kind == "output" and precision.autocast
        dtype = getattr(torch, low or "float32") if known.oracle.is_rounded else known.oracle.raw.dtype
        criteria = criteria_for(
            *(name, tensor, known, precision), dtype=name_of(dtype), baseline=None, accurate=False, bitwise=True
        )
        yield known.oracle.raw.to(dtype), criteria, known


if __name__ == "__main__":
    main()
