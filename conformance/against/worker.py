"""Starts a process that imports from folders of its own, and runs the tasks that it receives over a pipe.

One process cannot hold two packages of the same name, so two revisions of a model need two processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self

from conformance.errors import UsageError, WorkerError
from conformance.records.convert import from_json, to_json
from conformance.records.tasks import ResultT, Target, TaskT
from conformance.run import child_side

START = "import sys; from conformance.against.worker import serve; serve(int(sys.argv[1]))"


class Worker:
    """The worker process, as its parent sees it. As a context manager, it kills the process at the end.

    Args:
        path: folders to import from before all others.
        environment: environment variables in addition to those of this process.
        deadline: seconds that a result may take; None for no limit.
    """

    def __init__(self, path: Sequence[Path], environment: Mapping[str, str], deadline: float | None = None) -> None:
        self._deadline = deadline
        self._pipe, theirs = Pipe()
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 -- open as long as the process lives
        folders = [*map(str, path), *filter(None, [os.environ.get("PYTHONPATH", "")])]
        own = {"PYTHONPATH": os.pathsep.join(folders), "PYTHONSAFEPATH": "1"}  # the working folder must hide no module
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", START, str(theirs.fileno())],
            env={**os.environ, **environment, **own},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._complaints,
            start_new_session=True,  # an interrupt reaches the parent, and the parent decides
        )
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its fork server is in the group, and its cells die with that
        self._process.wait()
        self._complaints.close()

    def send(self, target: Target[TaskT, ResultT], task: TaskT) -> None:
        """Send a task without waiting for its result."""
        message = {"function": target.function, "task": to_json(task)}
        with contextlib.suppress(OSError):  # `receive` reports how the process died
            self._pipe.send_bytes(json.dumps(message).encode())

    def receive(self, target: Target[TaskT, ResultT]) -> ResultT:
        """Wait for the result of a task that was sent.

        Raises:
            UsageError: the task cannot be done as asked.
            WorkerError: the process raised an exception, died, or sent no result before its deadline.
        """
        if not self._pipe.poll(self._deadline):
            raise WorkerError(f"no answer within {self._deadline:g} s")
        try:
            message = json.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise WorkerError(self._last_words()) from None
        if "refused" in message:
            raise UsageError(message["refused"])
        if "failure" in message:
            raise WorkerError(message["failure"])
        result: ResultT = from_json(target.result, message["result"])
        return result

    def call(self, target: Target[TaskT, ResultT], task: TaskT) -> ResultT:
        """Send a task, and wait for its result.

        Raises:
            UsageError, WorkerError: see `receive`.
        """
        self.send(target, task)
        return self.receive(target)

    def _last_words(self) -> str:
        code = self._process.wait()
        self._complaints.seek(0)
        printed = self._complaints.read().decode(errors="replace").strip().splitlines()
        died = f"killed by {signal.Signals(-code).name}" if code < 0 else f"left with exit code {code}"
        return f"{died}: {printed[-1]}" if printed else died


def serve(descriptor: int) -> None:
    """Run tasks in the worker until the other end of the pipe is closed; `descriptor` is that of the pipe."""
    child_side.die_with_parent()
    pipe = Connection(descriptor)
    while True:
        try:
            request = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            message = {"result": child_side.call(request["function"], request["task"])}
        except UsageError as problem:
            message = {"refused": str(problem)}
        except Exception as problem:  # noqa: BLE001 -- a model may raise anything
            message = {"failure": f"{type(problem).__name__}: {problem}"}
        pipe.send_bytes(json.dumps(message, allow_nan=False).encode())
