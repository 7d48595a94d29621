"""Keeps the references of a run, each made once by one of the processes that judge its cells."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from conformance.errors import MachineError, RecordError, StoreError, UsageError
from conformance.records.convert import from_json, to_json
from conformance.records.references import MadeReference
from conformance.store import regular_file
from conformance.store.bounded import RECORD_BYTES

POLL_SECONDS = 0.02


class References:
    """The references in a folder.

    Beside each reference file lies the record of its making. It is written last, so a file without it is unfinished.

    Args:
        folder: the folder; it is made.
    """

    def __init__(self, folder: Path) -> None:
        regular_file.make_folder(folder)
        self._folder = folder
        self._known: dict[str, MadeReference] = {}

    def path(self, model: str) -> Path:
        """The reference file of a model."""
        return self._folder / f"{model}.reference"

    def of(self, model: str, make: Callable[[str], MadeReference]) -> MadeReference:
        """How the making of a model's reference ended. The first process that asks makes it; the others wait.

        Args:
            model: name of the model.
            make: makes the reference file of a model.

        Raises:
            MachineError: the record of the making cannot be read or written, or `make` raises it.
        """
        if model not in self._known:
            try:
                with self._alone(model):
                    self._known[model] = self._stored(model) or self._make(model, make)
            except MachineError:
                raise
            except (StoreError, OSError) as problem:
                raise MachineError(f"the reference of {model} was not kept: {problem}") from problem
        return self._known[model]

    def forget(self, model: str, made: MadeReference) -> None:
        """Remove a damaged reference, so that it is made again; not if another process has done so already."""
        with self._alone(model):
            self._known.pop(model, None)
            if self._stored(model) == made:
                self._record(model).unlink()
                with contextlib.suppress(OSError):
                    self.path(model).unlink()

    def _make(self, model: str, make: Callable[[str], MadeReference]) -> MadeReference:
        made = make(model)
        regular_file.write_whole(self._record(model), json.dumps(to_json(made)).encode())
        return made

    def _stored(self, model: str) -> MadeReference | None:
        try:
            made: MadeReference = from_json(
                MadeReference, json.loads(regular_file.read(self._record(model), RECORD_BYTES))
            )
        except (FileNotFoundError, UsageError, ValueError, RecordError):
            return None
        return made

    def _record(self, model: str) -> Path:
        return self._folder / f"{model}.json"

    def _alone(self, model: str) -> FileLock:
        return FileLock(self._folder / f"{model}.lock", poll_interval=POLL_SECONDS)
