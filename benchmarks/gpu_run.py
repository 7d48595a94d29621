"""Everything that must be seen on a GPU, as one command that can be stopped and called again.

    python benchmarks/gpu_run.py results/h200 --seconds 540

Runs the steps below in order, correctness before speed, each in a process of its own, and stores what came of them in
the folder. When the seconds are over, the step at work is interrupted; the next call goes on where this one stopped: a
stored run without what is judged, a benchmark without what is measured. What cannot go on is not begun late in a call.
It ends by printing the tables. Nothing need be installed but torch, pytest, pytest-xdist, tabulate and packaging; to
try it with `--device cpu` no GPU is needed.
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
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATE, TABLES = "steps.json", "tables.txt"
GRACE = 20.0  # seconds that an interrupted step gets to store what it has
WHOLE = {"tests": 180.0, "probes": 120.0, "claims": 400.0}  # seconds for what starts over when it is interrupted
SIZED = {  # models at sizes that keep the device busy, for bytes, compile cost and shares of the ceilings
    "cpu": ("mlp@64",),
    "cuda": ("mlp@4096", "checkerboard@128", "batch_gather_native@1024"),
}


@dataclass
class Step:
    """One step and how it ended.

    Attributes:
        name: of the step and of its output file.
        code: exit code; None where it was interrupted or has not begun.
        seconds: spent on it, in all calls.
    """

    name: str
    code: int | None = None
    seconds: float = 0.0


def main() -> int:
    """Do what is left and print the tables; 0 where every step was done and none was red."""
    options = _options()
    folder: Path = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.seconds
    steps, begun = _read(folder), False
    for name, command in _commands(folder, options.device, options.models).items():
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
    parser.add_argument("folder", type=Path, help="for all results; what is there is not done again")
    parser.add_argument(
        "--seconds", type=float, default=540.0, help="until the last step is interrupted (default: 540)"
    )
    parser.add_argument("--device", choices=SIZED, default="cuda")
    parser.add_argument("--models", nargs="*", default=[], help="of the matrix (default: the whole zoo)")
    return parser.parse_args()


def _commands(folder: Path, device: str, models: list[str]) -> dict[str, list[str]]:
    """By name, in order, what each step runs, given how far it has come."""
    python = [sys.executable, "-m"]

    def stored(step: str, command: str, *arguments: str) -> list[str]:
        """A command that stores a run, or resumes the one there is."""
        begun = _runs(folder, step)
        axes = ["--device", device, "--store", str(folder / step)]
        return [*python, "conformance", command, *(["--resume", str(begun[0])] if begun else [*arguments, *axes])]

    board = [sys.executable, str(ROOT / "benchmarks" / "checkerboard.py"), "--device", device]
    small = ["--size", "32", "--steps", "10"] if device == "cpu" else []
    graphed = ["--mode", "eager", *(["--mode", "graphed"] if device == "cuda" else [])]
    gpu_tests = [f"tests/conformance/test_cuda{part}.py" for part in ("", "_matrix")]
    quiet = ["-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]  # warnings of that machine's own plugins
    return {
        "tests": [*python, "pytest", *quiet, "-n", "4", *gpu_tests],
        "probes": [*python, "conformance", "probes", "--device", device],
        "matrix": stored("matrix", "run", *models),
        "graphs": stored("graphs", "run", *models, *graphed, "--precision", "fp32", "--precision", "amp_bf16"),
        "checkerboard": [*board, "--json", str(folder / "checkerboard.json"), *small],
        "claims": [*python, "conformance", "claims", "--write", str(folder / "claims.md")],
        "bench": stored("bench", "bench", *SIZED[device]),
    }


def _read(folder: Path) -> dict[str, Step]:
    path = folder / STATE
    known = [Step(**step) for step in json.loads(path.read_text())] if path.exists() else []
    return {step.name: step for step in known}


def _carry_out(step: Step, command: list[str], folder: Path, seconds: float) -> None:
    """Run a step until it ends or the time is over; its output goes to a file of its name."""
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
    """End a step as Ctrl-C would, then for good, with everything it started."""
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environment() -> dict[str, str]:
    """As here, and the packages are found without being installed."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def _tables(folder: Path, steps: dict[str, Step]) -> str:
    """What every step has to show, then one line a step."""
    width = max(map(len, steps))
    parts = [f"━━ {step.name} ━━\n\n{_shown(folder, step).strip()}" for step in steps.values()]
    lines = [
        f"{s.name:<{width}}  {'unfinished' if s.code is None else f'exit code {s.code}'}, {s.seconds:.0f} s"
        for s in steps.values()
    ]
    return "\n\n".join([*parts, "\n".join(lines)]) + "\n"


def _shown(folder: Path, step: Step) -> str:
    """The step's run, printed again as far as it has come; where it stores none, what it printed."""
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
