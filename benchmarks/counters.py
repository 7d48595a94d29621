"""Records what cells of the zoo cost in bytes and operations.

    python -m benchmarks.counters [--write]

No clock is involved, so every run must count the same. tests/conformance/measure/test_counters.py compares each torch
version with what was recorded for it, and names the count and the cell that changed. `--write` replaces the record of
this version in the file.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import children
from conformance.process import pool
from conformance.records.cell import Cell
from conformance.records.measurements import Footprint, Reason
from conformance.records.plan import SpecLocation
from conformance.records.tasks import FOOTPRINT, CellTask
from zoo import catalog

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "tests" / "conformance" / "measure" / "counters.json"
MODELS = ("merge", "mlp", "checkerboard", "softmax", "batch_gather_vectorised", "fused_conv_bn2d", "fused_conv_bn2d_op")
MODES, PRECISIONS = ("eager", "scripted", "compiled"), ("fp32", "amp_bf16")
COUNTS = ("saved", "held", "peak", "flops")
DEADLINE = 300.0
KERNELS = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}  # scratch memory of oneDNN differs between instruction sets


def cells() -> list[Cell]:
    """The cells that are counted, on the CPU."""
    return [Cell(model, mode, p, "cpu") for model in MODELS for mode in MODES for p in PRECISIONS]


def count(cell: Cell) -> dict[str, Any]:
    """The counts of one cell by name. A count is None if the mode or the model does not have it."""
    task = CellTask(cell, SpecLocation(catalog.home_of(cell.model)), sources=(), seed=0)
    found = pool.result(FOOTPRINT, task, DEADLINE)
    if isinstance(found, Reason):
        return dict.fromkeys(COUNTS, str(found))
    return {name: _recorded(found, name) for name in COUNTS}


def _recorded(found: Footprint, name: str) -> int | dict[str, int | None] | None:
    """A count as the file holds it: operations as two numbers, of forward, and of forward and backward."""
    return vars(found.flops) if name == "flops" else found.count(name)


def release(torch_version: str) -> str:
    """The version under which counts are recorded: the compiler changes with torch's minor number.

    >>> release("2.13.0+cpu")
    '2.13'
    """
    return ".".join(torch_version.split(".")[:2])


def main() -> None:
    """Count, and print or record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=MODELS, choices=MODELS, help="count only these (default: all)")
    parser.add_argument("--write", action="store_true", help=f"write to {FILE.relative_to(ROOT)}")
    options = parser.parse_args()
    here = children.observe_environment()
    children.prepare(here)
    os.environ.update(KERNELS)
    chosen = [cell for cell in cells() if cell.model in options.models]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        counted = {cell.id: found for cell, found in zip(chosen, threads.map(count, chosen), strict=True)}
    recorded = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    version = release(here.torch)
    merged = recorded.get(version, {}) | counted
    recorded[version] = {cell.id: merged[cell.id] for cell in cells() if cell.id in merged}
    text = json.dumps(recorded, indent=1) + "\n"
    if options.write:
        FILE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
