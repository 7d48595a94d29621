"""The fork server, as the process of the run sees it: starts it, has it start children, and notices when it is lost.

The server is one process that has imported torch; a child is a fork of it, so a child starts in some 30 ms. The two
talk over a socket without a name, so no folder matters. Whoever ends the run closes the socket, and then the server
kills its children and ends. It exists on Linux alone: macOS breaks in forked children, and Windows has none.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from threading import Event, Lock, Thread
from typing import Any

from conformance.one_line import one_line
from conformance.process import environment, process_table
from conformance.process.processes import GRACE_SECONDS, LAST_SECONDS, Process, command, inherited_environment

READY_SECONDS = 300.0  # to import torch from a cold disk
START_SECONDS = 60.0  # for one fork
STEP_SECONDS = 1.0


class LostError(RuntimeError):
    """The fork server does not start, or has ended, was stopped, or does not answer. The message says which."""


def is_possible() -> bool:
    """Whether this system has what a fork server needs."""
    calls = all(hasattr(os, name) for name in ("fork", "setsid", "killpg", "getpgid", "waitid", "memfd_create"))
    signals = hasattr(signal, "SIGKILL") and hasattr(signal, "SIGCHLD")
    return sys.platform == "linux" and calls and signals and hasattr(socket, "SOCK_SEQPACKET")


class ForkServer:
    """A fork server that is ready.

    Attributes:
        pid: its process id.
        compiles_for: the device types for which it has prepared to compile.
        lost: how it ended; "" while it serves.

    Raises:
        LostError: it does not start.
        OSError: the system starts no process.
    """

    def __init__(self) -> None:
        self.lost = ""
        self.compiles_for = environment.compiles_for()
        self._children: dict[int, Forked] = {}
        self._started = 0
        self._lock = Lock()
        self._ready = Event()
        self._said = os.memfd_create("fork server")  # what it prints before it ends
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.ExitStack() as unless_it_starts:
            unless_it_starts.callback(os.close, self._said)
            unless_it_starts.enter_context(self._control)
            self._process = subprocess.Popen(  # noqa: S603
                command("conformance.process.forking"),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                env=inherited_environment(),
                start_new_session=True,  # an interrupt reaches the parent, and the parent decides
            )
            unless_it_starts.pop_all()
        self.pid = self._process.pid
        Thread(target=self._hear, daemon=True).start()
        self._await(self._ready, READY_SECONDS, "is not ready")

    def start(self, child: Forked, *descriptors: int) -> None:
        """Fork a child that reads its task from the first descriptor, answers to the second, complains to the third.

        Raises:
            LostError: the server does not do it.
        """
        with self._lock:
            self._started += 1
            child.number = self._started
            self._children[child.number] = child
        try:
            self._send({"start": child.number}, *descriptors)
            self._await(child.started, START_SECONDS, "starts no process")
        finally:
            if not child.pid:
                with self._lock:
                    del self._children[child.number]
        if child.lost:
            raise LostError(child.lost)

    def bury(self, child: Forked) -> None:
        """Forget a child that has ended, and kill what it left behind: its orphans are the server's children now."""
        with self._lock:
            self._children.pop(child.number, None)
        if self.lost:
            return
        with contextlib.suppress(LostError):
            self._send({"bury": child.number})
        left = process_table.descendants(self.pid)
        with self._lock:
            others = list(self._children.values())
        for other in others:
            other.started.wait(START_SECONDS)  # until then nobody knows which process it is
        running = {other.pid for other in others}
        process_table.kill(p for p in left if process_table.session_of(p) not in running and not _below(p, running))

    def import_compiler(self) -> None:
        """Import the compiler before the next child starts; a lost server does not."""
        with contextlib.suppress(LostError):
            self._send({"import": "compiler"})

    def check(self) -> None:
        """Notice whether the server has ended or was stopped. A stopped one is killed with all its children."""
        with self._lock:
            if self.lost:
                return
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:  # this process ignores SIGCHLD, so the system keeps no ended process
                self._lose(f"has ended{self._last_words()}")
                return
            if pid and os.WIFSTOPPED(status):
                self._lose(f"was stopped by {process_table.name_of_signal(os.WSTOPSIG(status))}")
            elif pid:
                code = self._process.returncode = os.waitstatus_to_exitcode(status)
                self._lose(f"{'was ' if code < 0 else ''}{process_table.how_it_died(code)}{self._last_words()}")

    def close(self) -> None:
        """End the server and its children."""
        with self._lock:
            self._lose("was closed")

    def _send(self, message: dict[str, Any], *descriptors: int) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self._control.sendmsg([json.dumps(message).encode()], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError as problem:
            self.check()
            with self._lock:
                self._lose(f"takes no message ({problem})")
            raise LostError(self.lost) from None

    def _hear(self) -> None:
        """Tell the children what the server says of them, until it has ended."""
        with self._control, contextlib.suppress(OSError):
            while data := self._control.recv(4096):
                told = json.loads(data)
                if "ready" in told:
                    self._ready.set()
                    continue
                with self._lock:
                    child = self._children.get(told["child"])
                if child is not None:
                    child.hear(told)
        until = time.monotonic() + GRACE_SECONDS
        while not self.lost and time.monotonic() < until:
            self.check()
            time.sleep(0.01)
        with self._lock:
            self._lose("closed its socket")

    def _await(self, event: Event, seconds: float, fault: str) -> None:
        """Wait for something that the server should do; time in which this process sleeps does not count."""
        left = seconds
        while not event.wait(min(STEP_SECONDS, left)):
            left -= STEP_SECONDS
            self.check()
            if left <= 0:
                with self._lock:
                    self._lose(f"{fault} within {seconds:g} s")
        if self.lost:
            raise LostError(self.lost)

    def _lose(self, how: str) -> None:
        """Kill the server with all its children, and tell them. Call it with the lock held."""
        if self.lost:
            return
        self.lost = f"the fork server {how}"
        if self._process.returncode is None:
            process_table.kill_group(self.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LAST_SECONDS)
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # wakes the thread that hears
        os.close(self._said)
        self._ready.set()
        for child in self._children.values():
            child.hear({"lost": self.lost})

    def _last_words(self) -> str:
        printed = os.pread(self._said, 2**16, max(0, os.fstat(self._said).st_size - 2**16))
        lines = printed.decode(errors="replace").strip().splitlines()
        return f": {one_line(lines[-1])}" if lines else ""


class Forked(Process):
    """A child process that a fork server starts, to do what a request asks for.

    Raises:
        LostError: the server does not start it.
    """

    number = 0

    def __init__(self, server: ForkServer, request: dict[str, Any]) -> None:
        self.started, self._ended = Event(), Event()
        self._server = server
        theirs_in, orders = os.pipe()
        answers, theirs_out = os.pipe()
        complaints, theirs_err = os.pipe()
        try:
            server.start(self, theirs_in, theirs_out, theirs_err)
        except LostError:
            for descriptor in (orders, answers, complaints):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (theirs_in, theirs_out, theirs_err):
                os.close(descriptor)
        super().__init__(orders, answers, complaints, request)

    def hear(self, told: dict[str, Any]) -> None:
        """Take in what the server says of this child, or that the server is lost."""
        if "pid" in told:
            self.pid = told["pid"]
        if "code" in told:
            self.exit_code = told["code"]
        self.lost = told.get("lost", "") if not self._ended.is_set() else self.lost
        if self.lost or "code" in told:
            self._ended.set()
        self.started.set()

    def has_ended(self) -> bool:
        """Whether the process has ended, or the fork server is lost and cannot tell."""
        if not self._ended.is_set():
            self._server.check()
        return self._ended.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended; returns whether it has."""
        left = seconds
        while not self._ended.wait(min(STEP_SECONDS, left)) and left > 0:
            left -= STEP_SECONDS
            self._server.check()
        return self._ended.is_set()

    def share(self) -> None:
        """Have the server import the compiler, as this child had to."""
        self._server.import_compiler()

    def end(self) -> None:
        """Kill the process and everything that it started. The server keeps its id until it is buried."""
        if not self.lost:
            process_table.kill_group(self.pid)
            self.wait(LAST_SECONDS)
        self._server.bury(self)
        self._close()  # the kernel kills what is left of the group


def _below(pid: int, others: set[int]) -> bool:
    """Whether a process is one of the others or comes from one."""
    while pid > 1:
        if pid in others:
            return True
        pid = process_table.parent_of(pid)
    return False


_server: ForkServer | None = None
_starting = Lock()


def current() -> ForkServer:
    """The fork server of this process; one that is lost, or lacks the compiler that children need, is replaced.

    Raises:
        LostError: it does not start.
        OSError: the system starts no process.
    """
    global _server  # noqa: PLW0603 -- a process has one
    with _starting:
        if _server is not None:
            _server.check()
            if not environment.compiles_for() <= _server.compiles_for:
                _server.close()
        if _server is None or _server.lost:
            _server = ForkServer()
        return _server


def compiles() -> bool:
    """Whether this process has a fork server that has loaded the compiler."""
    return _server is not None and bool(_server.compiles_for) and not _server.lost
