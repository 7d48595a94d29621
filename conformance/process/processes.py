"""A child process as its parent sees it: what it sends, whether it lives, and that nothing of it is left at the end.

Threads write the task and read the answers, so the parent never waits longer than it wants to. The pipe that carried
the task stays open: it is the lifeline of the child, see `process.lifeline`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Literal, NamedTuple

from conformance.one_line import one_line
from conformance.process import channel, environment, process_table

GRACE_SECONDS = 5.0  # for a child to exit after it has sent its result
LAST_SECONDS = 60.0  # for a killed child to disappear; a driver may hold it while a kernel still runs
NAP_SECONDS = 0.01
OPENING_KEY = bytes(channel.KEY_BYTES)  # of the message to a child, which brings the key of its answers
SAID_LINES, SAID_LENGTH, SAID_BYTES = 20, 400, 2**16  # what is kept of a process's error stream, and of a line
IGNORED = ("PYTHONWARNINGS", "PYTHONINSPECT")  # a warning of torch is no error of a model, and nobody talks to a child


class Event(NamedTuple):
    """What the pipe of a child brought.

    Attributes:
        kind: "message", "damaged" (something else than a message arrived), "closed" (nobody can write to it) or
            "unsent" (the system did not take a message to the process).
        told: the message, or what arrived.
    """

    kind: Literal["message", "damaged", "closed", "unsent"]
    told: Any = None


class Process:
    """A child process that has started.

    Args:
        orders: descriptor of the pipe to the child.
        answers: descriptor of the pipe from the child.
        complaints: descriptor of the pipe that brings what the child prints on its error stream.
        request: what the child should do; see `process.child_side.serve`. The variables of children go with it.

    Attributes:
        pid: its process id.
        exit_code: as `subprocess` gives it; None if it is not known.
        lost: how the process that should tell the exit code ended before it could; "" if it did not.
    """

    pid: int = 0
    exit_code: int | None = None
    lost: str = ""

    def __init__(self, orders: int, answers: int, complaints: int, request: dict[str, Any]) -> None:
        key = channel.new_key()
        self._orders, self._answers = orders, answers
        self._said = bytearray()
        self._overhearing = Thread(target=self._overhear, args=(complaints,), daemon=True)
        self._overhearing.start()
        self._receiver = channel.Receiver(answers, key)
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._closed = False
        self._listening = Thread(target=self._listen, daemon=True)
        self._listening.start()
        place = {"path": sys.path, "folder": _working_folder(), "variables": environment.of_children()}
        task = channel.frame(OPENING_KEY, {**request, **place, "key": key.hex()})
        self._writing = Thread(target=self._write, args=(task,), daemon=True)
        self._writing.start()

    def next_event(self, seconds: float) -> Event | None:
        """The next thing that its pipe brings; None if nothing does for so long and the process has not ended."""
        with contextlib.suppress(Empty):
            return self._events.get(timeout=seconds)
        if not self.has_ended():
            return None
        with contextlib.suppress(Empty):  # its last words may still be on their way
            return self._events.get(timeout=GRACE_SECONDS)
        return Event("closed")

    @property
    def halfway(self) -> bool:
        """Whether a message has begun and is not complete."""
        return self._receiver.halfway

    def has_ended(self) -> bool:
        """Whether the process has ended, or nothing can tell it any more."""
        raise NotImplementedError

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended; returns whether it has."""
        until = time.monotonic() + seconds
        while not self.has_ended():
            if time.monotonic() >= until:
                return False
            time.sleep(NAP_SECONDS)
        return True

    def end(self) -> None:
        """Kill the process and everything that it started, as far as that still lives."""
        raise NotImplementedError

    def share(self) -> None:
        """Spare later processes what this one had to import, if they can share it."""

    def last_lines(self) -> tuple[str, ...]:
        """The last lines that it printed on its error stream, each on one bounded line. Ask when it has ended."""
        self._overhearing.join(GRACE_SECONDS)  # what it started may still hold the pipe
        lines = bytes(self._said).decode(errors="replace").splitlines()
        return tuple(one_line(line, SAID_LENGTH) for line in lines if line.strip())[-SAID_LINES:]

    def _overhear(self, complaints: int) -> None:
        with os.fdopen(complaints, "rb", buffering=0) as pipe:
            while printed := pipe.read(SAID_BYTES):
                self._said += printed
                del self._said[:-SAID_BYTES]

    def _write(self, task: bytes) -> None:
        try:
            channel.write(self._orders, task)
        except BrokenPipeError:  # the process died before it read everything, which shows elsewhere
            pass
        except OSError as problem:
            self._events.put(Event("unsent", f"its task cannot be sent: {problem}"))

    def _listen(self) -> None:
        try:
            for message in self._receiver.messages():
                self._events.put(Event("message", message))
            self._events.put(Event("closed"))
        except channel.DamageError as problem:
            self._events.put(Event("damaged", str(problem)))
        finally:
            os.close(self._answers)

    def _close(self) -> None:
        """Close the lifeline, when nobody writes to it any more."""
        self._writing.join(GRACE_SECONDS)
        if not self._closed and not self._writing.is_alive():
            self._closed = True
            os.close(self._orders)


def command(module: str) -> list[str]:
    """The command that calls `main` of a module in a fresh interpreter that imports from the same places."""
    flags = [f for f in subprocess._args_from_interpreter_flags() if not f.startswith("-W")]  # type: ignore[attr-defined]  # noqa: SLF001 -- what multiprocessing uses too
    code = f"import sys; sys.path[:] = {sys.path!r}; from {module} import main; main()"
    return [sys.executable, *flags, "-c", code]


def inherited_environment() -> dict[str, str]:
    """The environment variables of child processes."""
    return {name: value for name, value in os.environ.items() if name not in IGNORED}


class Spawned(Process):
    """A child process in a fresh interpreter, which shares nothing with others.

    Args:
        request: what the child should do.

    Raises:
        OSError: the system starts no process.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            command("conformance.process.child_side"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=inherited_environment(),
            start_new_session=True,  # an interrupt reaches the parent, and the parent decides
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
        )
        self.pid = self._process.pid
        ours = self._process
        super().__init__(
            _own_descriptor(ours.stdin), _own_descriptor(ours.stdout), _own_descriptor(ours.stderr), request
        )

    def has_ended(self) -> bool:
        """Whether the process has ended. Where the system can, its id is kept, so that no other process gets it."""
        if self._process.returncode is not None or not hasattr(os, "waitid"):
            return self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:  # the caller ignores SIGCHLD, so the system keeps no ended process
            return True

    def end(self) -> None:
        """Kill the process and everything that it started."""
        if self._process.returncode is None:
            process_table.kill_group(self.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.exit_code = self._process.wait(LAST_SECONDS)
        self._close()


def _own_descriptor(pipe: Any) -> int:
    """A descriptor of one's own for a pipe of `subprocess`."""
    with pipe:
        return os.dup(pipe.fileno())


def _working_folder() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return None
