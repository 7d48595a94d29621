"""Runs one function in a fresh process and says how it ended: result, crash, timeout.

TorchScript keeps the first autocast dtype for the life of a process, the recompile limit turns compiled
into eager, and a compiler can crash; so every cell gets its own process. A fork server with torch already
imported gives one in some 30 ms. Only the parent's deadline counts: native code hears no Python alarm.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
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
from typing import Any

WAITING = "waiting for the machine"  # a phase that has no deadline and uses none up
GRACE_SECONDS = 5.0  # for a child that has answered to leave
LAST_SECONDS = 60.0  # for a killed one to be gone; a driver may hold it, with a kernel that runs on
MAX_MESSAGE_BYTES = 256 * 2**20

_running: set[int] = set()  # children of the fork server that are cells; any other is something a cell left
_starting = Lock()


@dataclass(frozen=True)
class Ending:
    """How a process ended.

    Attributes:
        kind: "answered", "crashed" or "timed out".
        answer: what the function returned, after a trip through JSON.
        phase: the last one it reported.
        message: one line on a death: signal, exit code, or deadline.
        seconds: wall time from start to end.
    """

    kind: str
    answer: Any = None
    phase: str = "start"
    message: str = ""
    seconds: float = 0.0


def run(target: str, task: dict[str, Any], *, deadline: float, method: str = "forkserver") -> Ending:
    """Call `target` ("package.module:function") as function(task, enter_phase) in a fresh process.

    Args:
        target: the function; it takes the task and a function that reports the phase it is in, and
            returns something JSON can hold.
        task: JSON-like arguments.
        deadline: seconds until the process and everything it started are killed; time in the phase `WAITING`
            apart.
        method: "forkserver", or "spawn" for a process that shares nothing.
    """
    started = time.monotonic()
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["conformance.preload"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, target, task))  # type: ignore[attr-defined]
    with _starting, _without_main():
        process.start()
        pid = process.pid or 0
        _running.add(pid)
    theirs.close()
    server = _parent(pid)
    try:
        kind, answer, phase = _listen(ours, process.sentinel, started + deadline)
        if kind == "answered":
            wait([process.sentinel], GRACE_SECONDS)
    finally:
        _kill([*_descendants(pid), pid], group=pid)
        with _starting:  # starting a process polls the others, and an exit code can be read only once
            process.join(LAST_SECONDS)
            _running.discard(pid)
            if server not in (0, 1, os.getpid()):
                _kill([p for p in _descendants(server) if not _is_running(p)])
        ours.close()
    message = ""
    if kind == "timed out":
        message = f"no answer within {deadline:g} s"
    elif kind == "crashed" or process.exitcode != 0:
        told = answer if kind == "crashed" else None
        message = told or _cause_of_death(process.exitcode, answered=kind == "answered")
        kind, answer = "crashed", None if told else answer
    return Ending(kind, answer, phase, message, time.monotonic() - started)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the parent's main module: a child would import it again, and so run a script twice."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _listen(pipe: Connection, sentinel: int, deadline: float) -> tuple[str, Any, str]:
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
            case {"answer": answer}:
                return "answered", answer, phase
            case {"failure": str(text)}:
                return "crashed", text, phase
        return "crashed", "sent no message of ours", phase


def _cause_of_death(exitcode: int | None, *, answered: bool) -> str:
    late = " after its answer" if answered else ""
    if exitcode is None:
        return f"killed{late}, and still there {LAST_SECONDS:g} s later: something in the system holds it"
    if exitcode >= 0:
        return f"left with exit code {exitcode}{late or ' and no answer'}"
    name = signal.Signals(-exitcode).name
    hint = " (perhaps by the system, for want of memory)" if name == "SIGKILL" and not answered else ""
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
    """The parent's process id, 0 where it cannot be told."""
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


def _child(pipe: Connection, target: str, task: dict[str, Any]) -> None:
    os.setsid()
    die_with_parent()
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # the system's killer picks the cell, not the run
    _silence()
    module, _, function = target.partition(":")

    def enter_phase(name: str) -> None:
        pipe.send_bytes(json.dumps({"phase": name}).encode())

    try:
        answer = getattr(importlib.import_module(module), function)(task, enter_phase)
        message = json.dumps({"answer": answer}, allow_nan=False)
    except Exception as problem:
        pipe.send_bytes(json.dumps({"failure": f"{type(problem).__name__}: {problem}"}).encode())
        raise
    pipe.send_bytes(message.encode())


def _silence() -> None:
    """Send what models and compilers print to nowhere: the pipe is the only channel."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the fork server goes (Linux; elsewhere nothing happens)."""
    pr_set_pdeathsig = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
