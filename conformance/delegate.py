"""A process that imports from folders of its own, and does one thing after the other that it is told over a pipe.

Two packages of one name do not fit into one process, so two revisions of a model need two.
"""

from __future__ import annotations

import contextlib
import importlib
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
from typing import Any, Self

from conformance import isolation

START = "import sys; from conformance.delegate import serve; serve(int(sys.argv[1]))"


class DelegateError(RuntimeError):
    """A delegate raised, died or did not answer in time."""


class Delegate:
    """The process, seen from the one that tells it what to do; a context that ends with its death.

    Args:
        path: folders to import from before all others.
        environment: variables beside those of this process.
        deadline: seconds an answer may take; None where nobody knows.
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

    def tell(self, target: str, task: Any = None) -> None:
        """Have `target` ("package.module:function") called on the task, which JSON can hold, and do not wait."""
        with contextlib.suppress(OSError):  # `answer` says how it died
            self._pipe.send_bytes(json.dumps({"target": target, "task": task}).encode())

    def answer(self) -> Any:
        """What it returned, after a trip through JSON.

        Raises:
            DelegateError: it raised, died or did not answer in time.
        """
        if not self._pipe.poll(self._deadline):
            raise DelegateError(f"no answer within {self._deadline:g} s")
        try:
            message = json.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise DelegateError(self._last_words()) from None
        if "failure" in message:
            raise DelegateError(message["failure"])
        return message["answer"]

    def ask(self, target: str, task: Any = None) -> Any:
        """Tell, and wait for the answer."""
        self.tell(target, task)
        return self.answer()

    def _last_words(self) -> str:
        code = self._process.wait()
        self._complaints.seek(0)
        said = self._complaints.read().decode(errors="replace").strip().splitlines()
        died = f"killed by {signal.Signals(-code).name}" if code < 0 else f"left with exit code {code}"
        return f"{died}: {said[-1]}" if said else died


def serve(descriptor: int) -> None:
    """The process itself: do what it is told until nobody is left to tell."""
    isolation.die_with_parent()
    pipe = Connection(descriptor)
    while True:
        try:
            request = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        module, _, function = request["target"].partition(":")
        try:
            answer = {"answer": getattr(importlib.import_module(module), function)(request["task"])}
        except Exception as problem:  # noqa: BLE001 -- a model may raise anything
            answer = {"failure": f"{type(problem).__name__}: {problem}"}
        pipe.send_bytes(json.dumps(answer, allow_nan=False).encode())
