"""A process that imports from folders of its own, and runs one task after another that it receives over a pipe.

Two packages of one name do not fit into one process, so two revisions of a model need two.
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
    """The process, as the one that commands it sees it; a context that ends with its death.

    Args:
        path: folders to import from before all others.
        environment: variables beside those of this process.
        deadline: seconds that a result may take; None if nobody knows.
    """

    def __init__(self, path: Sequence[Path], environment: Mapping[str, str], deadline: float | None = None) -> None:
        self._deadline = deadline
        self._pipe, theirs = Pipe()
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 -- open as long as the process lives
        folders = [*map(str, path), *filter(None, [os.environ.get("PYTHONPATH", "")])]
        own = {"PYTHONPATH": os.pathsep.join(folders), "PYTHONSAFEPATH": "1"}  # the working folder hides nothing
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
        """Send a task, and do not wait for its result."""
        message = {"function": target.function, "task": to_json(task)}
        with contextlib.suppress(OSError):  # `receive` reports how the process died
            self._pipe.send_bytes(json.dumps(message).encode())

    def receive(self, target: Target[TaskT, ResultT]) -> ResultT:
        """The result of a task that was sent.

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
    """The worker itself: run tasks until the other end of the pipe is closed."""
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
