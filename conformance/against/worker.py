"""Starts a process that imports from folders of its own, and runs the tasks that it receives over a pipe.

One process cannot hold two packages of the same name, so two revisions of a model need two processes.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from conformance.errors import RecordError, UsageError, WorkerError
from conformance.one_line import named, one_line
from conformance.records.convert import from_json, to_json
from conformance.records.tasks import ResultT, Target, TaskT
from conformance.run import channel, child_side, lifeline, process_table
from conformance.run.process import GRACE_SECONDS, OPENING_KEY, Spawned

if TYPE_CHECKING:
    from typing_extensions import Self  # torch brings it

START = "import sys; sys.path[:] = filter(None, sys.path); from conformance.against.worker import serve; serve()"
STEP_SECONDS = 1.0


class Worker:
    """The worker process, as its parent sees it. As a context manager, it kills the process at the end.

    Args:
        path: folders to import from before all others.
        environment: environment variables in addition to those of this process.
        deadline: seconds that a result may take; None for no limit.
    """

    def __init__(self, path: Sequence[Path], environment: Mapping[str, str], deadline: float | None = None) -> None:
        self._deadline = deadline
        folders = [*map(str, path), *filter(None, [os.environ.get("PYTHONPATH", "")])]
        own = {"PYTHONPATH": os.pathsep.join(folders), "PYTHONSAFEPATH": "1"}  # the working folder must hide no module
        self._process = Spawned({}, [sys.executable, "-c", START], {**environment, **own})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.end()

    def send(self, target: Target[TaskT, ResultT], task: TaskT) -> None:
        """Send a task without waiting for its result."""
        self._process.send({"function": target.function, "task": to_json(task)})

    def receive(self, target: Target[TaskT, ResultT]) -> ResultT:
        """Wait for the result of a task that was sent.

        Raises:
            UsageError: the task cannot be done as asked.
            WorkerError: the process raised an exception, died, or sent no result before its deadline.
        """
        message = self._answer()
        if "refused" in message:
            raise UsageError(message["refused"])
        if "failure" in message:
            raise WorkerError(message["failure"])
        try:
            result: ResultT = from_json(target.result, message["result"])
        except RecordError as problem:
            raise WorkerError(f"sent a result that cannot be read: {problem}") from None
        return result

    def call(self, target: Target[TaskT, ResultT], task: TaskT) -> ResultT:
        """Send a task, and wait for its result.

        Raises:
            UsageError, WorkerError: see `receive`.
        """
        self.send(target, task)
        return self.receive(target)

    def _answer(self) -> dict[str, Any]:
        left = math.inf if self._deadline is None else self._deadline
        while True:
            event = self._process.next_event(min(STEP_SECONDS, left))
            if event is None:
                left -= STEP_SECONDS
                if left <= 0:
                    raise WorkerError(f"no answer within {self._deadline:g} s")
            elif event.kind != "message" or not isinstance(event.told, dict):
                raise WorkerError(event.told if event.kind == "damaged" else self._last_words())
            else:
                return event.told

    def _last_words(self) -> str:
        self._process.wait(GRACE_SECONDS)
        self._process.end()
        printed = self._process.last_lines()
        code = self._process.exit_code
        died = "killed, and still there" if code is None else process_table.how_it_died(code)
        return f"{died}: {printed[-1]}" if printed else died


def serve() -> None:
    """Run tasks in the worker until the other end of its input is closed."""
    lifeline.die_with_parent()
    orders, answers = child_side.take_streams()
    messages = channel.Receiver(orders, OPENING_KEY).messages()
    sender = channel.Sender(answers, bytes.fromhex(next(messages)["key"]))
    for request in messages:
        try:
            sender.send(result=child_side.call(request["function"], request["task"]))
        except UsageError as problem:
            sender.send(refused=one_line(problem, child_side.USAGE_LENGTH))
        except Exception as problem:  # noqa: BLE001 -- a model may raise anything
            sender.send(failure=named(problem))
