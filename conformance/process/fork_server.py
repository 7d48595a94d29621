"""The fork server: one process that has imported torch. A child is a fork of it, so a child starts in some 30 ms.

First comes the server as the process of the run sees it: that starts it, has it start and end children, and notices
when it is lost. Then comes what runs in the server. The two talk over a socket without a name, so no folder matters.
Whoever ends the run closes the socket, and then the server kills everything below it and ends. It exists on Linux
alone: macOS breaks in forked children, and Windows has none.
"""

import array
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from threading import Event, Lock, Thread
from typing import Any

from conformance.errors import one_line
from conformance.process import child_side, environment, process_table
from conformance.process.processes import GRACE_SECONDS, LAST_SECONDS, Process, command, inherited_environment

READY_SECONDS = 300.0  # to import torch from a cold disk
START_SECONDS = 60.0  # for one fork
STEP_SECONDS = 1.0


class LostError(RuntimeError):
    """The fork server does not start, or has ended, was stopped, or does not answer. The message says which."""


def is_possible() -> bool:
    """Whether this system has what a fork server needs."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


class ForkServer:
    """A fork server, which imports what children need while its run goes on.

    Attributes:
        pid: its process id.
        compiles_for: the device types for which it prepares to compile.
        lost: how it ended; "" while it serves.

    Raises:
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
                command(__name__),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                env=inherited_environment(),
                start_new_session=True,  # an interrupt reaches the parent, and the parent decides
            )
            unless_it_starts.pop_all()
        self.pid = self._process.pid
        Thread(target=self._hear, daemon=True).start()

    def start(self, child: "Forked", *descriptors: int) -> None:
        """Fork a child that reads its task from the first descriptor, answers to the second, complains to the third.

        It waits until the server is ready.

        Raises:
            LostError: the server does not do it.
        """
        self._await(self._ready, READY_SECONDS, "is not ready")
        with self._lock:
            self._started += 1
            child.number = self._started
            self._children[child.number] = child
        try:
            self._send({"start": child.number}, *descriptors)
            self._await(child.started, START_SECONDS, "starts no process")
        finally:
            if not child.pid:
                self._forget(child.number)
        if child.lost:
            raise LostError(child.lost)

    def ask(self, **message: Any) -> None:
        """Ask for something that a lost server need not do: to "end" the child of a number, or "import" modules.

        When a child has ended, by itself too, the server has killed what that child left behind before it says so.
        """
        with contextlib.suppress(LostError):
            self._send(message)

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
            while data := self._control.recv(MESSAGE_BYTES):
                news = json.loads(data)
                if "ready" in news:
                    self._ready.set()
                    continue
                child = self._forget(news["child"]) if "code" in news else self._children.get(news["child"])
                if child is not None:
                    child.hear(news)
        until = time.monotonic() + GRACE_SECONDS
        while not self.lost and time.monotonic() < until:
            self.check()
            time.sleep(0.01)
        with self._lock:
            self._lose("closed its socket")

    def _forget(self, number: int) -> "Forked | None":
        with self._lock:
            return self._children.pop(number, None)

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
        super().__init__(request)

    def _launch(self, orders: int, answers: int, complaints: int) -> None:
        self._server.start(self, orders, answers, complaints)

    def hear(self, news: dict[str, Any]) -> None:
        """Take in what the server says of this child, or that the server is lost."""
        if not self._ended.is_set():
            self.pid = news.get("pid", self.pid)
            self.exit_code, self.lost = news.get("code"), news.get("lost", "")
        if self.lost or "code" in news:
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

    def share(self, modules: Sequence[str]) -> None:
        """Have the server import modules, as this child had to."""
        self._server.ask(**{"import": modules})

    def end(self) -> None:
        """Kill the process and everything that it started."""
        if not self._ended.is_set():
            self._server.ask(end=self.number)
            self.wait(LAST_SECONDS)
        self._close()  # the kernel kills what is left of the group


_server: ForkServer | None = None
_starting = Lock()


def current() -> ForkServer:
    """The fork server of this process; one that is lost, or lacks the compiler that children need, is replaced.

    Raises:
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
    """Whether this process has a fork server that loads the compiler before it serves."""
    return _server is not None and bool(_server.compiles_for) and not _server.lost


# What runs in the server: it imports what children need, then forks a child for each request, and tells how it ended.
#
# It runs no model, so it always answers.

PRELOAD = "conformance.cell.preload"
PR_SET_CHILD_SUBREAPER = 36
CONTROL = 0  # the descriptor of the socket to the run; a child replaces it when it silences its streams
MESSAGE_BYTES, DESCRIPTORS = 4096, 3
LAST_ROUNDS, ROUND_SECONDS = 100, 0.05


def main() -> None:
    """Serve until the run has ended."""
    process_table.hear_of_children()
    process_table.tie(CONTROL)  # a compiler that hangs while the server imports dies with the run
    # Processes that a dead cell leaves behind become children of the server, which kills them.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    _load(lambda: importlib.import_module(PRELOAD))
    process_table.kill(process_table.descendants(os.getpid()))  # a compiler that gave no answer
    process_table.untie(CONTROL)
    _Loop(socket.socket(fileno=CONTROL)).serve()


def _load(step: Callable[[], object]) -> None:
    """Import something for all children. What fails is left to the child, which fails with its own words."""
    gc.disable()  # the collector would search a million objects, and all of them stay
    with contextlib.suppress(BaseException):
        step()
    gc.enable()
    gc.freeze()  # what is there lives as long as the process, so no child's collector needs to scan it


def _late() -> Collection[str]:
    """The modules that this process can import for all children, once one has needed them."""
    return getattr(sys.modules.get(PRELOAD), "LATE", ())


class _Loop:
    """The loop of the server."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._numbers: dict[int, int] = {}  # of the children that run, by process id
        self._woken, self._wakes = os.pipe()
        for descriptor in (self._woken, self._wakes):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wakes)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self) -> None:
        """Answer requests until the other end is closed."""
        self._tell(ready=True)
        while True:
            ready, _, _ = select.select([CONTROL, self._woken], [], [])
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 2**16)
                self._notice_the_dead()
            if CONTROL in ready:
                data, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, DESCRIPTORS)
                if not data:
                    _leave()
                for descriptor in descriptors:
                    os.set_inheritable(descriptor, False)  # what a model starts has no channel
                match json.loads(data):
                    case {"start": number}:
                        self._fork(number, *descriptors)
                    case {"end": number}:
                        for pid in [pid for pid, own in self._numbers.items() if own == number]:
                            process_table.kill_group(pid)
                    case {"import": names}:
                        _load(lambda: importlib.import_module(PRELOAD).import_late(names))

    def _fork(self, number: int, orders: int, answers: int, complaints: int) -> None:
        try:
            pid = os.fork()
        except OSError as problem:
            self._tell(child=number, lost=f"the fork server forks no process: {problem}")
            pid = -1
        if pid == 0:
            self._become_child(orders, answers, complaints)
        for descriptor in (orders, answers, complaints):
            os.close(descriptor)
        if pid > 0:
            self._numbers[pid] = number
            self._tell(child=number, pid=pid)

    def _become_child(self, orders: int, answers: int, complaints: int) -> None:
        code = 1
        try:
            os.dup2(complaints, 2)
            os.close(complaints)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.close(self._woken)
            os.close(self._wakes)
            self._control.detach()
            code = child_side.serve(orders, answers, _late())
        finally:
            os._exit(code)

    def _notice_the_dead(self) -> None:
        """Tell how children have ended, when what each left behind is killed; then their process ids are free."""
        with contextlib.suppress(ChildProcessError):  # there is no child
            while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                number = self._numbers.pop(dead.si_pid, None)
                if number is not None:
                    running = self._numbers.keys()
                    left = process_table.descendants(os.getpid(), beside=running)
                    process_table.kill(pid for pid in left if process_table.session_of(pid) not in running)
                    code = dead.si_status if dead.si_code == os.CLD_EXITED else -dead.si_status
                    self._tell(child=number, code=code)
                os.waitpid(dead.si_pid, 0)

    def _tell(self, **message: object) -> None:
        with contextlib.suppress(OSError):  # the run has ended; the loop will see it
            self._control.send(json.dumps(message).encode())


def _leave() -> None:
    """Kill everything below this process, until nothing is left, and end."""
    for _ in range(LAST_ROUNDS):
        process_table.kill(process_table.descendants(os.getpid()))
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not process_table.descendants(os.getpid()):
            break
        time.sleep(ROUND_SECONDS)
    os._exit(0)
