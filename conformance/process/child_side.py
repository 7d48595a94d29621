"""Runs in the child: calls one function, reports its phases, and sends the result."""

import contextlib
import importlib
import os
import sys
import threading
import time
import typing
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from conformance.errors import UsageError, blame, describe_error, one_line
from conformance.process import machine_lock, process_table
from conformance.process.processes import OPENING_KEY, Receiver, Sender
from conformance.records.convert import from_json, to_json
from conformance.torch_versions import complaint_about_import

WAITING = "waiting for the machine"  # in this phase the deadline does not run
_serving: list[bool] = []  # whether this process is a child
LOOK_SECONDS = 0.1  # between two looks whether somebody waits for the machine; a small model has parts of 2 ms
USAGE_LENGTH = 4000  # of the text of a `UsageError`, which names everything that a person needs


class ChildProcess:
    """The child process, as the function that runs in it sees it: its phases, and the machine lock.

    Args:
        report: called with the name of each phase at its beginning.

    Attributes:
        seconds: seconds spent in each phase, by the name of the phase.
        current: name of the current phase.
        remarks: what the run should know of this process beside its result.
    """

    def __init__(self, report: Callable[[str], None] = lambda phase: None) -> None:  # noqa: ARG005
        self.seconds: dict[str, float] = {}
        self.current = "start"
        self.remarks: list[str] = []
        self._report = report
        self._slot: machine_lock.Slot | None = None
        self._looked = 0.0  # when it last looked whether somebody waits for the machine

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
        """Hold the machine lock together with other cells; see `process.machine_lock`."""
        before = self._wait()
        with machine_lock.Slot() as slot:
            self._slot = slot
            try:
                self._go_on(before, slot.remark)
                yield
            finally:
                self._slot = None

    def give_way(self) -> None:
        """Between two parts of what takes long: let a measurement that waits for the machine go first."""
        now = time.monotonic()
        if self._slot is None or now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        if self._slot.is_in_the_way():
            before = self._wait()
            self._slot.give_way()
            self._go_on(before, self._slot.remark)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the machine lock alone; see `process.machine_lock`."""
        before = self._wait()
        with machine_lock.alone() as remark:
            self._go_on(before, remark)
            yield

    def _wait(self) -> str:
        before = self.current
        self.enter(WAITING)
        return before

    def _go_on(self, phase: str, remark: str) -> None:
        self.remarks += [remark] * bool(remark)
        self.enter(phase)


def is_child() -> bool:
    """Whether this process is a child that serves a run."""
    return bool(_serving)


def main() -> None:
    """Serve in a fresh interpreter, whose input brings the task and whose output takes the answers."""
    orders, answers = os.dup(0), os.dup(1)
    _silence()  # so that a process started here has none of them
    os._exit(serve(orders, answers))  # as a forked one does: to take torch down could last longer than it may live on


def serve(orders: int, answers: int, late: Collection[str] = ()) -> int:
    """Read a task, call its function, and send what it returns or raises.

    Args:
        orders: the pipe that brings the task. It stays open as long as the run's process wants this one to live.
        answers: the pipe that takes the answers.
        late: modules that the run wants to know of, if this process has to import them.

    Returns:
        The exit code of the process.
    """
    _serving.append(True)
    if hasattr(os, "setsid"):
        with contextlib.suppress(OSError):  # it leads its session already
            os.setsid()
    process_table.hear_of_children()
    process_table.die_with_parent()
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # the system kills the cell, not the run
    request = next(Receiver(orders, OPENING_KEY).messages())
    process_table.tie(orders)
    _silence()
    sys.path[:] = request["path"]
    os.environ.update(request["variables"])  # the fork server may have started with others
    if request["folder"] is not None:
        os.chdir(request["folder"])
    return _answer(request, Sender(answers, request["key"]), late)


def _answer(request: dict[str, Any], sender: Sender, late: Collection[str]) -> int:
    process = ChildProcess(lambda phase: sender.send(phase=phase))
    try:
        with _imports_told(sender, late):
            result = _call(request["function"], request["task"], process)
        sender.send(result=result, remarks=process.remarks)
    except UsageError as problem:
        sender.send(refused=one_line(problem, USAGE_LENGTH))
    except BaseException as problem:  # noqa: BLE001 -- a model may raise anything, and the run goes on
        sender.send(failure=blame(problem, describe_error(problem)))
        return 1
    # As at an interpreter's exit: idle pools end, threads are joined. One that does not end is a fault of the cell.
    if lasting := [thread.name for thread in threading.enumerate()[1:] if not thread.daemon]:
        os.write(2, f"threads that were still running, and are no daemons: {', '.join(lasting)}\n".encode())
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 -- multiprocessing ends its children so too
    return 0


def _call(function: str, task: Any, process: ChildProcess) -> Any:
    """Call a function of any module on a task. Task and result are in JSON form.

    Args:
        function: "package.module:function"; its annotations name the records that it takes and returns.
        task: the JSON form of its first argument.
        process: its second argument.

    Raises:
        RecordError: the task is not of the type that the function takes.
        UsageError: torch does not import.
        Whatever the function raises.
    """
    module, _, name = function.partition(":")
    found = getattr(_import(module), name)
    hints = typing.get_type_hints(found)
    result = found(from_json(hints.get("task", Any), task), process)
    return to_json(result, hints.get("return"))


def _import(name: str) -> Any:
    """A module of this project. If it does not import because torch does not, only that is said."""
    try:
        return importlib.import_module(name)
    except Exception as problem:
        if complaint := complaint_about_import():
            limit = process_table.say_memory_limit()
            raise UsageError("; ".join(filter(None, (complaint, limit)))) from problem
        raise


@contextlib.contextmanager
def _imports_told(sender: Sender, late: Collection[str]) -> Iterator[None]:
    """Tell the run which of these modules the context has to import. Later children may need them too."""
    missing = [name for name in late if name not in sys.modules]
    try:
        yield
    finally:
        if imported := [name for name in missing if name in sys.modules]:
            sender.send(imported=imported)


def _silence() -> None:
    """Discard what models and compilers print. What they print on the error stream goes to the run, if they crash."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    if nowhere > 2:  # noqa: PLR2004 -- none of the standard streams
        os.close(nowhere)
