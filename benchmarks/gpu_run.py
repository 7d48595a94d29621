"""Does everything that needs a GPU, as one command that can be stopped and called again.

    python -m benchmarks.gpu_run results/h200 --seconds 540

It runs several steps in order, correctness before speed, each in a process of its own, and stores their results in the
folder. When the seconds are over, it interrupts the running step. The next call continues where this one stopped: a run
without the cells that are judged, a benchmark without what is measured. A step that starts over after an interruption
does not begin late in a call. At the end it prints the tables. It needs only torch, pytest, pytest-xdist, tabulate and
packaging, and Pillow for pictures of what was learnt. With `--device cpu` it needs no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATE, TABLES = "steps.json", "tables.txt"
GPU_TESTS = "tests/conformance/cuda/test_cuda.py"
GRACE = 20.0  # seconds that an interrupted step gets to store what it has
# seconds for steps that start over after an interruption
WHOLE = {"tests": 180.0, "probes": 120.0, "meter": 120.0, "claims": 400.0}
SIZED = {  # models at sizes that keep the device busy, for bytes, compile cost and shares of the ceilings
    "cpu": ("mlp@64",),
    "cuda": ("mlp@4096", "checkerboard@128", "batch_gather_native@1024"),
}


@dataclass
class Step:
    """One step and how it ended.

    Attributes:
        name: of the step and of its output file.
        code: exit code; None if it was interrupted or has not begun.
        seconds: spent on it, in all calls.
    """

    name: str
    code: int | None = None
    seconds: float = 0.0


def main() -> int:
    """Do what is left and print the tables; returns 0 if every step is done and none is red."""
    options = _options()
    folder: Path = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.seconds
    steps, begun = _read(folder), False
    for name, command in commands(folder, options.device, options.models).items():
        step = steps.setdefault(name, Step(name))
        left = deadline - time.monotonic()
        if step.code is None and left > GRACE and (left > WHOLE.get(name, 0.0) or not begun):
            begun = True
            _carry_out(step, command, folder, left - GRACE)
            (folder / STATE).write_text(json.dumps([asdict(s) for s in steps.values()], indent=1) + "\n")
    tables = _tables(folder, steps)
    (folder / TABLES).write_text(tables)
    print(tables)
    return int(any(step.code != 0 for step in steps.values()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for all results; stored results are not taken again")
    parser.add_argument("--seconds", type=float, default=540.0, help="time for this call (default: 540)")
    parser.add_argument("--device", choices=SIZED, default="cuda", help="default: cuda")
    parser.add_argument("--models", nargs="*", default=[], help="of the matrix (default: the whole zoo)")
    return parser.parse_args()


def commands(folder: Path, device: str, models: list[str]) -> dict[str, list[str]]:
    """The command of each step, by name and in order. It depends on what is stored already."""
    python = [sys.executable, "-m"]

    def stored(step: str, command: str, *arguments: str) -> list[str]:
        """A command that stores a run, or resumes the stored one."""
        begun = _runs(folder, step)
        axes = ["--device", device, "--store", str(folder / step)]
        return [*python, "conformance", command, *(["--resume", str(begun[0])] if begun else [*arguments, *axes])]

    board = [*python, "benchmarks.checkerboard", "--device", device]
    small = ["--size", "32", "--steps", "10"] if device == "cpu" else []
    graphed = ["--mode", "eager", *(["--mode", "graphed"] if device == "cuda" else [])]
    quiet = ["-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]  # warnings of that machine's own plugins
    return {
        "tests": [*python, "pytest", *quiet, "-n", "4", GPU_TESTS],
        "probes": [*python, "conformance", "probes", "--device", device],
        "matrix": stored("matrix", "run", *models),
        "graphs": stored("graphs", "run", *models, *graphed, "--precision", "fp32", "--precision", "amp_bf16"),
        "checkerboard": [*board, "--json", str(folder / "checkerboard.json"), *small],
        "meter": [*python, "benchmarks.device_meter", "--device", device],
        "claims": [*python, "benchmarks.claims", *(["--pictures", str(folder)] if find_spec("PIL") else [])],
        "bench": stored("bench", "bench", *SIZED[device]),
    }


def _read(folder: Path) -> dict[str, Step]:
    path = folder / STATE
    known = [Step(**step) for step in json.loads(path.read_text())] if path.exists() else []
    return {step.name: step for step in known}


def _carry_out(step: Step, command: list[str], folder: Path, seconds: float) -> None:
    """Run a step until it ends or its time is over. Its output goes to a file of its name."""
    started = time.monotonic()
    print(f"{step.name}: {' '.join(command)}", flush=True)
    with (folder / f"{step.name}.txt").open("w") as output:
        process = subprocess.Popen(  # noqa: S603 -- our own commands
            command, cwd=ROOT, env=_environment(), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            step.code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            _interrupt(process)
    step.seconds += round(time.monotonic() - started, 1)


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """End a step as Ctrl-C does. Kill what is left after a while, with everything that it started."""
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environment() -> dict[str, str]:
    """The variables of this process; the packages are found even if they are not installed."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def _tables(folder: Path, steps: dict[str, Step]) -> str:
    """The results of every step, then one line for each step."""
    width = max(map(len, steps))
    parts = [f"━━ {step.name} ━━\n\n{_shown(folder, step).strip()}" for step in steps.values()]
    lines = [
        f"{s.name:<{width}}  {'unfinished' if s.code is None else f'exit code {s.code}'}, {s.seconds:.0f} s"
        for s in steps.values()
    ]
    return "\n\n".join([*parts, "\n".join(lines)]) + "\n"


def _shown(folder: Path, step: Step) -> str:
    """The stored run of a step as a table. If the step stores none, what it printed."""
    output = folder / f"{step.name}.txt"
    runs = _runs(folder, step.name)
    if not runs:
        return output.read_text() if output.exists() else "not begun"
    command = [sys.executable, "-m", "conformance", "show", str(runs[0])]
    shown = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False)  # noqa: S603
    return shown.stdout or shown.stderr


def _runs(folder: Path, step: str) -> list[Path]:
    return sorted((folder / step / "runs").glob("*"))


if __name__ == "__main__":
    sys.exit(main())
