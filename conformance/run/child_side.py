"""Runs in the child: calls one function, reports its phases, and sends the result."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import time
import typing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from conformance.errors import UsageError
from conformance.records.convert import from_json, to_json
from conformance.run import machine_lock

WAITING = "waiting for the machine"  # in this phase the deadline does not run


class ChildProcess:
    """The child process, as the function that runs in it sees it: its phases, and the machine lock.

    Args:
        report: called with the name of each phase at its beginning.

    Attributes:
        seconds: seconds spent in each phase, by the name of the phase.
        current: name of the current phase.
    """

    def __init__(self, report: Callable[[str], None] = lambda phase: None) -> None:  # noqa: ARG005
        self.seconds: dict[str, float] = {}
        self.current = "start"
        self._report = report

    def enter(self, name: str) -> None:
        """Report a phase without adding up its seconds."""
        self.current = name
        self._report(name)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Report a phase, and add up its seconds."""
        self.enter(name)
        started = time.perf_counter()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - started, 4)

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the machine lock together with other cells; see `run.machine_lock`."""
        before = self.current
        self.enter(WAITING)
        with machine_lock.shared():
            self.enter(before)
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the machine lock alone; see `run.machine_lock`."""
        before = self.current
        self.enter(WAITING)
        with machine_lock.alone():
            self.enter(before)
            yield


def call(function: str, task: Any, *further: Any) -> Any:
    """Call a function of any module on a task. Task and result are in JSON form.

    Args:
        function: "package.module:function"; its annotations name the records that it takes and returns.
        task: the JSON form of its first argument.
        further: more arguments.

    Raises:
        RecordError: the task is not of the type that the function takes.
        Whatever the function raises.
    """
    module, _, name = function.partition(":")
    found = getattr(importlib.import_module(module), name)
    hints = typing.get_type_hints(found)
    result = found(from_json(hints.get("task", Any), task), *further)
    return to_json(result, hints.get("return"))


def serve(pipe: Connection, function: str, task: Any) -> None:
    """Call a function, and send over the pipe what it returns or raises.

    Args:
        pipe: the pipe to the parent.
        function: "package.module:function".
        task: the JSON form of its first argument.
    """
    os.setsid()
    die_with_parent()
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # the system kills the cell, not the run
    _silence()

    def send(**message: Any) -> None:
        pipe.send_bytes(json.dumps(message, allow_nan=False).encode())

    try:
        send(result=call(function, task, ChildProcess(lambda phase: send(phase=phase))))
    except UsageError as problem:
        send(refused=str(problem))
    except Exception as problem:
        send(failure=f"{type(problem).__name__}: {problem}")
        raise


def _silence() -> None:
    """Discard what models and compilers print: the pipe is the only channel."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere nothing happens)."""
    pr_set_pdeathsig = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
