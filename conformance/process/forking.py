"""Runs in the fork server: imports what children need, then forks a child for each request, and tells how it ended.

It runs no model, so it always answers. When the process of the run has ended, it kills everything below it and ends. A
dead child keeps its process id until the run has killed what that child left.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

from conformance.process import child_side, lifeline, process_table

PRELOAD = "conformance.fork_server"
PR_SET_CHILD_SUBREAPER = 36
CONTROL = 0  # the descriptor of the socket to the run; a child replaces it when it silences its streams
MESSAGE_BYTES, DESCRIPTORS = 4096, 3
LAST_ROUNDS, ROUND_SECONDS = 100, 0.05


def main() -> None:
    """Serve until the run has ended."""
    lifeline.tie(CONTROL)  # a compiler that hangs while the server imports dies with the run
    # Processes that a dead cell leaves behind become children of the server, where the run finds them.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    _load(lambda: importlib.import_module(PRELOAD))
    process_table.kill(process_table.descendants(os.getpid()))  # a compiler that gave no answer
    lifeline.untie(CONTROL)
    _Server(socket.socket(fileno=CONTROL)).serve()


def _load(step: Callable[[], object]) -> None:
    """Import something for all children. What fails is left to the child, which fails with its own words."""
    gc.disable()  # the collector would search a million objects, and all of them stay
    with contextlib.suppress(BaseException):
        step()
    gc.enable()
    gc.freeze()  # what is there lives as long as the process, so no child's collector needs to scan it


def _has_compiler() -> bool:
    """Whether this process has imported the compiler, or cannot import it for all children."""
    ask = getattr(sys.modules.get(PRELOAD), "has_compiler", None)
    return ask is None or bool(ask())


class _Server:
    """The loop of the server."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._numbers: dict[int, int] = {}  # of the children, by process id
        self._dead: set[int] = set()  # children that have ended and are not buried
        self._forgotten: set[int] = set()  # numbers of children that may be buried when they end
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
                request = json.loads(data)
                if "start" in request:
                    self._fork(request["start"], *descriptors)
                elif "import" in request:
                    _load(lambda: importlib.import_module(PRELOAD).import_compiler())
                else:
                    self._bury(request["bury"])

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
            for number in (signal.SIGCHLD, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.default_int_handler)
            os.close(self._woken)
            os.close(self._wakes)
            self._control.detach()
            code = child_side.serve(orders, answers, _has_compiler)
        finally:
            os._exit(code)

    def _notice_the_dead(self) -> None:
        for pid in self._numbers.keys() - self._dead:
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                self._dead.add(pid)
                code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
                self._tell(child=self._numbers[pid], code=code)
                if self._numbers[pid] in self._forgotten:
                    self._bury(self._numbers[pid])
        for pid in process_table.descendants(os.getpid()):
            if pid not in self._numbers:
                with contextlib.suppress(ChildProcessError):  # it is below another one
                    os.waitpid(pid, os.WNOHANG)

    def _bury(self, number: int) -> None:
        self._forgotten.add(number)
        for pid in [pid for pid in self._dead if self._numbers[pid] in self._forgotten]:
            os.waitpid(pid, 0)
            self._dead.discard(pid)
            self._forgotten.discard(self._numbers.pop(pid))

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
