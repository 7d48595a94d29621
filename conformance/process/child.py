"""Calls one function in a fresh process, and reports how the process ended.

TorchScript keeps the first autocast dtype for the life of a process, the recompile limit turns compiled code into
eager code, and a compiler can crash. So every cell has its own process, on Linux a fork of a server that has imported
torch already. The parent keeps the deadline, because native code does not notice a Python alarm. The time in which the
parent itself is stopped, or the machine sleeps, does not count.
"""

import contextlib
import time
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Generic

from conformance.errors import RecordError
from conformance.process import child_side, fork_server, process_table
from conformance.process.fork_server import Forked, ForkServer, LostError
from conformance.process.processes import GRACE_SECONDS, LAST_SECONDS, Process, Spawned
from conformance.records.convert import from_json, to_json
from conformance.records.tasks import ResultT, Target, TaskT

NO_GROUPS = "this system has no process groups, so what a cell starts may outlive it"

_fallback = Lock()
_without_server: list[str] = []  # why this process uses no fork server, once it does not


@dataclass(frozen=True)
class Ending(Generic[ResultT]):
    """How a process ended.

    Attributes:
        kind: "answered", "refused" (it raised a `UsageError`), "crashed" or "timed out".
        result: what the function returned; None unless it answered.
        phase: the last phase that it reported.
        message: one line: the error, the signal, the exit code or the deadline.
        seconds: wall time from start to end.
        remarks: what else to know, each one line: a lock or a fork server that this machine does not have.
        said: the last lines that it printed on its error stream, if it crashed or timed out.
    """

    kind: str
    result: ResultT | None = None
    phase: str = "start"
    message: str = ""
    seconds: float = 0.0
    remarks: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


def run(target: Target[TaskT, ResultT], task: TaskT, *, deadline: float, method: str = "forkserver") -> Ending[ResultT]:
    """Call a target's function in a fresh process.

    If the fork server is lost meanwhile, the process starts once more, under a server of its own. If it loses that too,
    it is the one that ends it, and it crashed.

    Args:
        target: the function, and the records that it takes and returns.
        task: the argument of the function.
        deadline: seconds until the process and everything it started are killed; the phase `WAITING` does not count.
        method: "forkserver", or "spawn" for a process that shares nothing. Without a fork server, each is "spawn".

    Raises:
        OSError: the system starts no process, or does not send it the task.
    """
    request = {"function": target.function, "task": to_json(task)}
    if method == "spawn" or _does_without_server():
        ending, _ = _await_end(Spawned(request), target, deadline)
        return replace(ending, remarks=(*_without_server, *ending.remarks))
    try:
        ending, lost = _await_end(_fork(request), target, deadline)
        if not lost:
            return ending
        server = ForkServer()
        try:
            return _await_end(Forked(server, request), target, deadline)[0]
        finally:
            server.close()
    except LostError as problem:
        _refuse(f"every process imports torch anew, because {problem}")
        return run(target, task, deadline=deadline)


def start_server() -> None:
    """Let the fork server start while this process does something else. Who needs it meets what goes wrong."""
    if not _does_without_server():
        with contextlib.suppress(OSError):
            fork_server.current()


def _fork(request: dict[str, Any]) -> Process:
    """A process under the fork server; if that is lost in this moment, under the one that replaces it."""
    try:
        return Forked(fork_server.current(), request)
    except LostError:
        return Forked(fork_server.current(), request)


def _does_without_server() -> bool:
    """Whether this process uses no fork server."""
    if not fork_server.is_possible():
        _refuse("this system has no fork server, so every process imports torch anew")
    return bool(_without_server)


def _refuse(reason: str) -> None:
    with _fallback:
        if not _without_server:
            _without_server.append(reason)
            _without_server.extend([NO_GROUPS] * (not process_table.has_groups()))


def _await_end(process: Process, target: Target[TaskT, ResultT], deadline: float) -> tuple[Ending[ResultT], bool]:
    """How a process ends, and whether the fork server was lost before."""
    started = time.monotonic()
    conversation, left = _Conversation(), Deadline(deadline, process.pid)
    try:
        kind, content = conversation.listen(process, left)
        if kind in ("answered", "refused"):
            process.wait(GRACE_SECONDS)
        if conversation.imported:
            process.share(conversation.imported)
    finally:
        process.end()
    seconds, phase = time.monotonic() - started, conversation.phase
    if process.lost:
        kind, content = "crashed", f"{process.lost} while this ran alone under it, twice"
    elif kind == "timed out":
        content = f"no answer within {left}"
    elif kind == "crashed":
        content = content or _cause_of_death(process.exit_code, answered=False)
    elif process.exit_code != 0:
        kind, content = "crashed", _cause_of_death(process.exit_code, answered=True)
    elif kind == "answered":
        try:
            return Ending(kind, from_json(target.result, content), phase, "", seconds, conversation.remarks), False
        except (RecordError, RecursionError) as problem:
            kind, content = "crashed", f"sent a result that cannot be read: {problem}"
    said = () if kind == "refused" else process.last_lines()
    return Ending(kind, None, phase, content, seconds, said=said), bool(process.lost)


class _Conversation:
    """What a process says until it ends.

    Attributes:
        phase: the last phase that it reported.
        remarks: those that came with its result.
        imported: what it had to import, and later processes may need too.
    """

    def __init__(self) -> None:
        self.phase = "start"
        self.remarks: tuple[str, ...] = ()
        self.imported: tuple[str, ...] = ()

    def listen(self, process: Process, deadline: "Deadline") -> tuple[str, Any]:
        """Wait for the result; returns the kind of the ending, and the result or what is known of it.

        Raises:
            OSError: the system did not send the task.
        """
        while True:
            began = time.monotonic()
            event = process.next_event(min(STEP_SECONDS, max(0.0, deadline.left)))
            if self.phase != child_side.WAITING:
                deadline.passes(time.monotonic() - began)
            if event is None:
                if deadline.left <= 0:
                    halfway = "crashed", "it stopped in the middle of a message"
                    return halfway if process.halfway else ("timed out", None)
            elif event.kind == "message":
                answer = self._answer(event.content)
                if answer is not None:
                    return answer
            elif event.kind == "unsent":
                raise OSError(event.content)
            else:
                if event.kind == "closed":
                    process.wait(GRACE_SECONDS)
                return "crashed", event.content

    def _answer(self, message: Any) -> tuple[str, Any] | None:
        """The kind and the text or result of a message; None for one that is no ending."""
        match message:
            case {"phase": str(phase)}:
                self.phase = phase
                return None
            case {"imported": list(names)}:
                self.imported = tuple(map(str, names))
                return None
            case {"result": result, "remarks": list(remarks)}:
                self.remarks = tuple(map(str, remarks))
                return "answered", result
            case {"refused": str(text)}:
                return "refused", text
            case {"failure": str(text)}:
                return "crashed", text
        return "crashed", "sent an unknown message"


def _cause_of_death(exit_code: int | None, *, answered: bool) -> str:
    late = " after its answer" if answered else ""
    if exit_code is None:
        return f"killed{late}, and still there {LAST_SECONDS:g} s later; the system holds it"
    died = process_table.how_it_died(exit_code)
    if answered and died.endswith("SIGKILL"):
        return f"it did not end within {GRACE_SECONDS:g} s after its answer, so it was killed"
    if exit_code >= 0:
        return f"{died}{late or ' and no answer'}"
    limit = process_table.say_memory_limit()
    hint = f" (perhaps by the system, because memory ran out{f': {limit}' * bool(limit)})"
    return f"{died}{late}{hint * died.endswith('SIGKILL')}"


# Counts down the time that a process may take, without the time that others take from it.
#
# Neither a machine that sleeps nor a core that another process uses is the fault of a model.

STEP_SECONDS = 1.0  # the most that a step counts, however long this process slept in it
UNWATCHED = 0.5  # share of the time in which nobody looks: few processes need more, and a look takes milliseconds
MOST = 3.0  # times the deadline: for so long may others keep a process from its core
WORTH_SAYING = 10.0  # seconds


class Deadline:
    """The time that a process may take.

    Args:
        seconds: how long it may run.
        pid: its process id.

    Attributes:
        left: the seconds that it has left.
        taken: the seconds that it waited for a core, as far as they did not count.
    """

    def __init__(self, seconds: float, pid: int) -> None:
        self.left, self.taken = seconds, 0.0
        self._seconds, self._pid = seconds, pid
        self._waited: dict[str, float] = {}

    def passes(self, seconds: float) -> None:
        """Count a step of so many seconds, except those in which a thread of the process waited for a core."""
        step = min(seconds, STEP_SECONDS)
        self.left -= step
        if self.left > UNWATCHED * self._seconds:
            return
        before, self._waited = self._waited, process_table.waiting_seconds(self._pid)
        longest = max((now - before[thread] for thread, now in self._waited.items() if thread in before), default=0.0)
        given = min(longest, step, MOST * self._seconds - self.taken)
        self.left += given
        self.taken += given

    def __str__(self) -> str:
        kept = f", beside {self.taken:.0f} s in which others used its core" if self.taken >= WORTH_SAYING else ""
        return f"{self._seconds:g} s{kept}"
