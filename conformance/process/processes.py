"""A child process as its parent sees it: what it sends, whether it lives, and that nothing of it is left at the end.

Threads write the task and read the answers, so the parent never waits longer than it wants to. The pipe that carried
the task stays open: the child's life is tied to it, see `process_table.tie`.

A message is a line: the key of the channel, a checksum, and JSON. The parent draws the key for each child and sends it
with the task. So bytes that a model writes to file descriptors that it does not own are seen as damage, and never as a
message. The key is no secret from code that looks for it in its own process.
"""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Literal, NamedTuple

from conformance.errors import one_line
from conformance.process import environment, process_table

OPENING_KEY = "0" * 32  # of the message to a child, which brings the key of its answers
MAX_MESSAGE_BYTES = 64 * 2**20
READ_BYTES = 2**16
GRACE_SECONDS = 5.0  # for a child to exit after it has sent its result
LAST_SECONDS = 60.0  # for a killed child to disappear; a driver may hold it while a kernel still runs
NAP_SECONDS = 0.01
SAID_LINES, SAID_LENGTH, SAID_BYTES = 20, 400, 2**16  # what is kept of a process's error stream, and of a line
IGNORED = ("PYTHONWARNINGS", "PYTHONINSPECT")  # a warning of torch is no error of a model, and nobody talks to a child
FLAGS = {  # of the interpreter, by its names; none that makes an error of a warning
    "isolated": "I",
    "ignore_environment": "E",
    "no_user_site": "s",
    "safe_path": "P",
    "dont_write_bytecode": "B",
    "optimize": "O",
}


class DamageError(ValueError):
    """What arrived is no message of this channel, or is cut off. The text says what was found."""


def message_line(key: str, message: Any) -> bytes:
    """The line of a message.

    Raises:
        TypeError, ValueError: JSON cannot hold the message, or it is too long.
    """
    text = json.dumps(message, allow_nan=False).encode()
    if len(text) > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {len(text)} bytes; at most {MAX_MESSAGE_BYTES}")
    return _with_sum(key, text) + b"\n"


def _with_sum(key: str, text: bytes) -> bytes:
    return b"%s %08x %s" % (key.encode(), zlib.crc32(text), text)


def _write(descriptor: int, data: bytes) -> None:
    with os.fdopen(descriptor, "wb", closefd=False) as pipe:
        pipe.write(data)


class Sender:
    """The child's end of a channel. Only the process that made it sends; a copy of that process does not.

    Args:
        descriptor: the pipe to the parent.
        key: the key of the channel.
    """

    def __init__(self, descriptor: int, key: str) -> None:
        self._descriptor, self._key, self._owner = descriptor, key, os.getpid()

    def send(self, **message: Any) -> None:
        """Send a message. In a forked copy of the process, end that copy: its original speaks.

        Raises:
            TypeError, ValueError: JSON cannot hold the message, or it is too long.
            OSError: nobody reads the pipe, or it is closed.
        """
        if os.getpid() != self._owner:
            os._exit(1)
        _write(self._descriptor, message_line(self._key, message))


class Receiver:
    """The parent's end of a channel.

    Args:
        descriptor: the pipe from the child.
        key: the key of the channel.
    """

    def __init__(self, descriptor: int, key: str) -> None:
        self._descriptor, self._key = descriptor, key
        self._rest = bytearray()

    @property
    def halfway(self) -> bool:
        """Whether a message has begun and is not complete."""
        return bool(self._rest)

    def messages(self) -> Iterator[Any]:
        """Every message, as it arrives, until nobody can write to the pipe.

        Raises:
            DamageError: something else arrived, or the end came in the middle of a message.
        """
        while data := self._read():
            self._rest += data
            if b"\n" in data:
                *whole, self._rest = self._rest.split(b"\n")
                yield from map(self._decode, whole)
            if not self._key.encode().startswith(self._rest[: len(self._key)]):
                raise DamageError("bytes that are no message arrived in its channel")
            if len(self._rest) > MAX_MESSAGE_BYTES + READ_BYTES:
                raise DamageError(f"it sent a message of more than {MAX_MESSAGE_BYTES} bytes")
        if self._rest:
            raise DamageError(f"its last message breaks off after {len(self._rest)} bytes")

    def _read(self) -> bytes:
        try:
            return os.read(self._descriptor, READ_BYTES)
        except OSError as problem:
            raise DamageError(f"its channel cannot be read: {problem}") from None

    def _decode(self, line: bytearray) -> Any:
        if not line.startswith(self._key.encode()):
            raise DamageError("bytes that are no message arrived in its channel")
        text = bytes(line[len(_with_sum(self._key, b"")) :])
        if line != _with_sum(self._key, text):
            raise DamageError("a message in its channel is damaged")
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise DamageError("a message in its channel is no JSON") from None


class Event(NamedTuple):
    """What the pipe of a child brought: a message, damage, its end, or that the system did not take the task."""

    kind: Literal["message", "damaged", "closed", "unsent"]
    content: Any = None


class Process:
    """A child process that has started.

    Args:
        request: what the child should do; see `process.child_side.serve`. The variables of children go with it.

    Attributes:
        pid: its process id.
        exit_code: as `subprocess` gives it; None if it is not known.
        lost: how the process that should tell the exit code ended before it could; "" if it did not.
    """

    pid: int = 0
    exit_code: int | None = None
    lost: str = ""

    def __init__(self, request: dict[str, Any]) -> None:
        (theirs_in, orders), (answers, theirs_out), (complaints, theirs_err) = os.pipe(), os.pipe(), os.pipe()
        try:
            self._launch(theirs_in, theirs_out, theirs_err)
        except BaseException:
            for descriptor in (orders, answers, complaints):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (theirs_in, theirs_out, theirs_err):
                os.close(descriptor)
        key = secrets.token_hex(len(OPENING_KEY) // 2)
        place = {"path": sys.path, "folder": _working_folder(), "variables": environment.of_children()}
        task = message_line(OPENING_KEY, {**request, **place, "key": key})
        self._orders: int | None = orders
        self._said = bytearray()
        self._receiver = Receiver(answers, key)
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._overhearing = _start(self._overhear, complaints)
        _start(self._listen, answers)
        self._writing = _start(self._send, orders, task)

    def _launch(self, orders: int, answers: int, complaints: int) -> None:
        """Start the process, which reads its task from one pipe, answers to another, and complains to the third."""
        raise NotImplementedError

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

    def share(self, modules: Sequence[str]) -> None:
        """Spare later processes the modules that this one had to import, if they can share them."""

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

    def _send(self, orders: int, task: bytes) -> None:
        try:
            _write(orders, task)
        except BrokenPipeError:  # the process died before it read everything, which shows elsewhere
            pass
        except OSError as problem:
            self._events.put(Event("unsent", f"its task cannot be sent: {problem}"))

    def _listen(self, answers: int) -> None:
        try:
            for message in self._receiver.messages():
                self._events.put(Event("message", message))
            self._events.put(Event("closed"))
        except DamageError as problem:
            self._events.put(Event("damaged", str(problem)))
        finally:
            os.close(answers)

    def _close(self) -> None:
        """Close the pipe to which the life of the process is tied, when nobody writes to it any more."""
        self._writing.join(GRACE_SECONDS)
        if self._orders is not None and not self._writing.is_alive():
            os.close(self._orders)
            self._orders = None


def _start(function: Any, *arguments: Any) -> Thread:
    thread = Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def _working_folder() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return None


def command(module: str) -> list[str]:
    """The command that calls `main` of a module in a fresh interpreter that imports from the same places."""
    flags = [
        f"-{letter * getattr(sys.flags, name, 0)}" for name, letter in FLAGS.items() if getattr(sys.flags, name, 0)
    ]
    flags += [f"-Xutf8={sys.flags.utf8_mode}", *["-Xdev"] * sys.flags.dev_mode]
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

    def _launch(self, orders: int, answers: int, complaints: int) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            command("conformance.process.child_side"),
            stdin=orders,
            stdout=answers,
            stderr=complaints,
            env=inherited_environment(),
            start_new_session=True,  # an interrupt reaches the parent, and the parent decides
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
        )
        self.pid = self._process.pid

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
