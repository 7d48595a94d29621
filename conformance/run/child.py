"""Calls one function in a fresh process, and reports how the process ended.

TorchScript keeps the first autocast dtype for the life of a process, the recompile limit turns compiled code into
eager code, and a compiler can crash. So every cell has its own process. A fork server that has imported torch already
starts one in some 30 ms. The parent keeps the deadline, because native code does not notice a Python alarm.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any, Generic

from conformance.errors import RecordError
from conformance.records.convert import from_json, to_json
from conformance.records.tasks import ResultT, Target, TaskT
from conformance.run.child_side import WAITING, serve

FORK_SERVER = "conformance.fork_server"  # what the fork server imports
GRACE_SECONDS = 5.0  # for a child to exit after it has sent its result
LAST_SECONDS = 60.0  # for a killed child to disappear; a driver may hold it while a kernel still runs
MAX_MESSAGE_BYTES = 256 * 2**20

_running: set[int] = set()  # children of the fork server that are cells; cells have left all others behind
_starting = Lock()


@dataclass(frozen=True)
class Ending(Generic[ResultT]):
    """How a process ended.

    Attributes:
        kind: "answered", "refused" (it raised a `UsageError`), "crashed" or "timed out".
        result: what the function returned; None unless it answered.
        phase: the last phase that it reported.
        message: one line: the error, the signal, the exit code or the deadline.
        seconds: wall time from start to end.
    """

    kind: str
    result: ResultT | None = None
    phase: str = "start"
    message: str = ""
    seconds: float = 0.0


def run(target: Target[TaskT, ResultT], task: TaskT, *, deadline: float, method: str = "forkserver") -> Ending[ResultT]:
    """Call a target's function in a fresh process.

    Args:
        target: the function, and the records that it takes and returns.
        task: the argument of the function.
        deadline: seconds until the process and everything it started are killed; the phase `WAITING` does not count.
        method: "forkserver", or "spawn" for a process that shares nothing.

    Raises:
        EOFError: the fork server does not start; it has printed why.
    """
    started = time.monotonic()
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([FORK_SERVER])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(theirs, target.function, to_json(task)))  # type: ignore[attr-defined]
    with _starting, _without_main():
        process.start()
        pid = process.pid or 0
        _running.add(pid)
    theirs.close()
    server = _parent(pid)
    try:
        kind, told, phase = _listen(ours, process.sentinel, started + deadline)
        if kind in ("answered", "refused"):
            wait([process.sentinel], GRACE_SECONDS)
    finally:
        _kill([*_descendants(pid), pid], group=pid)
        with _starting:  # starting a process polls the others, and an exit code can be read only once
            process.join(LAST_SECONDS)
            _running.discard(pid)
            if server not in (0, 1, os.getpid()):
                _kill([p for p in _descendants(server) if not _is_running(p)])
        ours.close()
    seconds = time.monotonic() - started
    if kind == "timed out":
        return Ending(kind, None, phase, f"no answer within {deadline:g} s", seconds)
    if kind == "crashed" or process.exitcode != 0:
        own_words = told if kind == "crashed" else None
        cause = _cause_of_death(process.exitcode, answered=kind != "crashed")
        return Ending("crashed", None, phase, own_words or cause, seconds)
    if kind == "refused":
        return Ending(kind, None, phase, told, seconds)
    try:
        return Ending(kind, from_json(target.result, told), phase, "", seconds)
    except RecordError as problem:
        return Ending("crashed", None, phase, f"sent a result that cannot be read: {problem}", seconds)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the parent's main module, because a child would import it again and so run a script twice."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _listen(pipe: Connection, sentinel: int, deadline: float) -> tuple[str, Any, str]:  # noqa: PLR0911 -- one for each ending
    phase, since = "start", time.monotonic()
    while True:
        left = None if phase == WAITING else max(0.0, deadline - time.monotonic())
        ready = wait([pipe, sentinel], timeout=left)
        if not ready:
            return "timed out", None, phase
        if pipe not in ready:
            return "crashed", None, phase
        try:
            message = json.loads(pipe.recv_bytes(MAX_MESSAGE_BYTES))
        except (EOFError, OSError, ValueError):
            wait([sentinel], timeout=GRACE_SECONDS)
            return "crashed", None, phase
        match message:
            case {"phase": str(entered)}:
                deadline += time.monotonic() - since if phase == WAITING else 0.0
                phase, since = entered, time.monotonic()
                continue
            case {"result": result}:
                return "answered", result, phase
            case {"refused": str(text)}:
                return "refused", text, phase
            case {"failure": str(text)}:
                return "crashed", text, phase
        return "crashed", "sent an unknown message", phase


def _cause_of_death(exitcode: int | None, *, answered: bool) -> str:
    late = " after its answer" if answered else ""
    if exitcode is None:
        return f"killed{late}, and still there {LAST_SECONDS:g} s later; the system holds it"
    if exitcode >= 0:
        return f"left with exit code {exitcode}{late or ' and no answer'}"
    name = signal.Signals(-exitcode).name
    hint = " (perhaps by the system, because memory ran out)" if name == "SIGKILL" and not answered else ""
    return f"killed by {name}{late}{hint}"


def _kill(victims: list[int], group: int = 0) -> None:
    """Kill processes and, if one is named, a process group: no compiler outlives its cell."""
    for victim in victims:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(victim, signal.SIGKILL)
    if group:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _is_running(pid: int) -> bool:
    """Whether a process is a cell or comes from one that still runs."""
    while pid > 1:
        if pid in _running:
            return True
        pid = _parent(pid)
    return False


def _parent(pid: int) -> int:
    """The parent's process id; 0 if it is unknown."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return 0


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        children.setdefault(_parent(int(entry.name)), []).append(int(entry.name))
    found, pending = [], [pid]
    while pending:
        born = children.get(pending.pop(), [])
        found += born
        pending += born
    return found
