"""Records what cells of the zoo cost in bytes, operations and graphs: `python benchmarks/counters.py [--write]`.

No clock is involved, so every run must count the same: tests/conformance/test_counters.py holds each torch version to
what was recorded for it, and says which count of which cell has changed. `--write` records this version's anew.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from conformance.run import pool  # noqa: E402 -- needs the path above
from conformance.records import Cell  # noqa: E402
from zoo import catalog  # noqa: E402

FILE = ROOT / "tests" / "conformance" / "counters.json"
MODELS = ("merge", "mlp", "checkerboard", "softmax", "batch_gather_vectorised", "fused_conv_bn2d", "fused_conv_bn2d_op")
MODES, PRECISIONS = ("eager", "scripted", "compiled"), ("fp32", "amp_bf16")
COUNTS = ("saved", "held", "peak_forward", "peak", "flops", "graphs", "graph_breaks", "recompiles", "aten_calls")
DEADLINE = 300.0


def cells() -> list[Cell]:
    """Those that are counted, on the CPU."""
    return [Cell(model, mode, p, "cpu") for model in MODELS for mode in MODES for p in PRECISIONS]


def count(cell: Cell) -> dict[str, Any]:
    """The counts of one cell; null is what its mode or model does not have."""
    home = {"module": catalog.home_of(cell.model), "file": ""}
    task = {"cell": vars(cell), "home": home, "homes": [], "seed": 0}
    answer = pool.answer("conformance.measure.footprint:observe", task, DEADLINE)
    return {name: answer.get(name, answer.get("reason")) for name in COUNTS}


def release() -> str:
    """The torch version under which counts are recorded: the compiler changes with its minor number."""
    import torch  # noqa: PLC0415 -- children import it anyway, this process only asks

    return ".".join(torch.__version__.split(".")[:2])


def main() -> None:
    """Count, and print or record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"to {FILE.relative_to(ROOT)}")
    options = parser.parse_args()
    os.environ["CONFORMANCE_PRELOAD"] = "compiler"
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counted = {cell.id: found for cell, found in zip(cells(), pool.map(count, cells()), strict=True)}
    recorded = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    text = json.dumps({**recorded, release(): counted}, indent=1) + "\n"
    if options.write:
        FILE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
