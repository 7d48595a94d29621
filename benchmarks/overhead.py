"""What the machinery costs beside torch's own work.

`python benchmarks/overhead.py [--models merge mlp] [--runs 7]` prints one table, medians in seconds. A row
of a cell gives its wall time, the torch work inside it (build, prepare, and the calls with their
gradients), what lies beside that work (process, imports, reference file, judge), the judge's share of this,
and wall over work. A row of a reference gives its wall time, probes and trial included. The last rows say
what `import zoo` adds to `import torch`, and whether the pytest plugin imports torch, which it must not.
Everything is run once before it is measured, so that the fork server is up and compiled cells find a warm
cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
os.environ.update(CONFORMANCE_PRELOAD="compiler", TORCHINDUCTOR_COMPILE_THREADS="1", OMP_NUM_THREADS="1")
sys.path.insert(0, str(ROOT))

from tabulate import tabulate  # noqa: E402

from conformance.run import child  # noqa: E402 -- needs the path above

CACHE = Path("~/.cache/torch-conformance/inductor").expanduser()
WORK = ("build", "prepare", "call")  # "second order" is measured inside "call"
DEADLINE = 300.0
ADDED_BY_ZOO = """
import time, torch
started = time.perf_counter()
import zoo
print(time.perf_counter() - started)
"""
TORCH_ALONE = """
import time
started = time.perf_counter()
import torch
print(time.perf_counter() - started)
"""
PLUGIN = "import sys, conformance.plugin; print('torch' in sys.modules)"

Row = list[Any]


def main() -> None:
    """Measure and print."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--models", nargs="*", default=["merge", "mlp", "softmax"])
    parser.add_argument("--modes", nargs="*", default=[])
    parser.add_argument("--precision", default="amp_bf16")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"of the compiler (default: {CACHE})")
    options = parser.parse_args()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(options.cache)
    options.cache.mkdir(parents=True, exist_ok=True)
    plan = _answer("conformance.plan.matrix:make", _plan_task(options))
    if "usage" in plan:
        sys.exit(plan["usage"])
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for model in plan["models"] for row in _rows_of_model(plan, model, Path(folder), options.runs)]
    rows += _rows_of_imports(options.runs)
    header = ["what", "wall", "torch work", "beside it", "of which judge", "wall/work"]
    print(tabulate(rows, header, tablefmt="github", floatfmt=".3f"))


def _plan_task(options: argparse.Namespace) -> dict[str, Any]:
    axes = {"modes": options.modes, "precisions": [options.precision], "devices": ["cpu"]}
    return {"sources": options.models, "seed": 0, "deadline": DEADLINE, **axes}


def _answer(target: str, task: dict[str, Any]) -> Any:
    ending = child.run(target, task, deadline=DEADLINE)
    if ending.kind != "answered":
        sys.exit(f"{target}: {ending.kind} in {ending.phase}: {ending.message}")
    return ending.answer


def _rows_of_model(plan: dict[str, Any], model: str, folder: Path, runs: int) -> list[Row]:
    path = folder / f"{model}.reference"
    common = {"home": plan["models"][model], "homes": plan["homes"], "seed": plan["seed"]}
    cells = [cell for cell in plan["cells"] if cell["model"] == model]
    precisions = sorted({"fp32"} | {cell["precision"] for cell in cells})
    task = {"model": model, "precisions": precisions, "path": str(path), **common}
    walls = []
    for run in range(max(2, runs // 2) + 1):
        ending = child.run("conformance.oracle.reference_file:make", task, deadline=DEADLINE)
        if ending.kind != "answered" or ending.answer["ending"] != "ok":
            return [[f"{model}: no reference, {ending.message or ending.answer['message']}"]]
        walls += [ending.seconds] if run else []  # the first one warms up
    rows: list[Row] = [[f"{model}: reference, {' and '.join(precisions)}", statistics.median(walls)]]
    for cell in cells:
        axes = {key: cell[key] for key in ("model", "mode", "precision", "device")}
        rows.append(_row_of_cell({"cell": axes, "reference": str(path), **common}, runs))
    return rows


def _row_of_cell(task: dict[str, Any], runs: int) -> Row:
    walls, works, judges = [], [], []
    cell = task["cell"]
    name = f"{cell['model']}: {cell['mode']} {cell['precision']} cell"
    for run in range(runs + 1):
        ending = child.run("conformance.cell.observe:observe", task, deadline=DEADLINE)
        if ending.kind != "answered" or ending.answer["ending"] != "finished":
            return [f"{name}: {ending.message or ending.answer.get('message', '')}"]
        if not run:  # warms up
            continue
        seconds = ending.answer["seconds"]
        walls.append(ending.seconds)
        works.append(sum(seconds.get(phase, 0.0) for phase in WORK))
        judges.append(seconds.get("judge", 0.0))
    wall, work = statistics.median(walls), statistics.median(works)
    beside = statistics.median(w - t for w, t in zip(walls, works, strict=True))
    return [name, wall, work, beside, statistics.median(judges), wall / work]


def _rows_of_imports(runs: int) -> list[Row]:
    torch = statistics.median(float(_printed(TORCH_ALONE)) for _ in range(runs))
    added = statistics.median(float(_printed(ADDED_BY_ZOO)) for _ in range(runs))
    return [
        ["import torch; import zoo", torch + added, torch, added, None, (torch + added) / torch],
        [f"import conformance.plugin imports torch: {_printed(PLUGIN)}"],
    ]


def _printed(code: str) -> str:
    """Run Python code in a fresh interpreter; what it printed."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603


if __name__ == "__main__":
    main()
