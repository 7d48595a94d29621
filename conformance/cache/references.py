"""Keeps the references of a run, each made once by one of the processes that judge its cells."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from conformance.cache import sources
from conformance.errors import MachineError, StoreError, UsageError
from conformance.records.convert import to_json
from conformance.records.plan import Environment
from conformance.records.tasks import MadeReference, ReferenceTask
from conformance.store import files, run_files

POLL_SECONDS = 0.02
MADE = "made"  # the field of a document that holds the record of a making


class References:
    """The references in a folder.

    Beside each reference file lies the record of its making. It is written last, so a file without it is unfinished.

    Args:
        folder: the folder; it is made.

    Raises:
        StoreError: it cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(exist_ok=True)
        except OSError as problem:
            raise StoreError(f"{folder} cannot be made: {problem.strerror}") from None
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
                    made = _load(self._record(model))
                    if made is None:
                        made = make(model)
                        _store(made, self._record(model))
                    self._known[model] = made
            except MachineError:
                raise
            except (StoreError, OSError) as problem:
                raise MachineError(f"the reference of {model} was not kept: {problem}") from problem
        return self._known[model]

    def forget(self, model: str, made: MadeReference) -> None:
        """Remove a damaged reference, so that it is made again; not if another process has done so already."""
        with self._alone(model):
            self._known.pop(model, None)
            if _load(self._record(model)) == made:
                self._record(model).unlink()
                with contextlib.suppress(OSError):
                    self.path(model).unlink()

    def _record(self, model: str) -> Path:
        return self._folder / f"{model}.json"

    def _alone(self, model: str) -> FileLock:
        return FileLock(self._folder / f"{model}.lock", poll_interval=POLL_SECONDS)


# Keeps references from one run to the next, as torch keeps compiled code.
#
# A reference is used again if nothing it depends on has changed: the request for it, torch and all other installed
# packages, the folders from which others are imported, the processor, and every source, data file and environment
# variable that was read when it was made, those of this project included.
# A saved model and its saved inputs are part of the request by what they hold, so they may lie anywhere:
# `conformance.check` saves the same model in another folder each time.

SUFFIX = ".reference"
TAIL_BYTES = 12  # of a reference file
LARGEST_SHARE = 0.1  # of the free space of the disk, for all references together


class KeptReferences:
    """The references in a folder of this user.

    Args:
        folder: the folder; None to keep nothing. Nothing is kept either if it cannot be written.
        environment: torch and the machine.
        planned: the content of files as they were planned; a file that has changed since is not trusted.
    """

    def __init__(self, folder: Path | None, environment: Environment, planned: Mapping[str, str]) -> None:
        self._folder, self._environment, self._planned = folder, environment, planned
        self._imports = *sources.installed_packages(), *sources.search_path()
        self._seen: dict[str, str] = {}

    def fetch(self, task: ReferenceTask) -> MadeReference | None:
        """Put the kept reference at the path of a task; None if there is none, or if it is out of date."""
        made = self._made(task)
        try:
            if made is None or made.tail != _tail(self._file(task)):  # it was damaged, or is that of another model
                return None
            _link(self._file(task), Path(task.path))
            self._record(task).touch()  # the ones that are used least recently go first
        except OSError:
            return None
        return replace(made, kept=True, tail="")

    def describe(self, task: ReferenceTask) -> str:
        """All that the kept reference of a task depends on; "" if there is none, or if it is out of date."""
        made = self._made(task)
        return json.dumps([self._request(task), dict(made.files), dict(made.variables)]) if made else ""

    def fingerprint(self, task: ReferenceTask) -> str:
        """The fingerprint of the model and the inputs of the kept reference of a task; "" as for `describe`."""
        made = self._made(task)
        return made.fingerprint if made else ""

    def _made(self, task: ReferenceTask) -> MadeReference | None:
        made = None if self._folder is None else _load(self._record(task))
        return made if made is not None and self._holds(made) else None

    def keep(self, task: ReferenceTask, made: MadeReference) -> None:
        """Keep the reference at the path of a task."""
        if self._folder is None:
            return
        made = replace(made, files={p: what for p, what in made.files.items() if p not in _paths_of_saved(task)})
        with contextlib.suppress(OSError, StoreError):  # it is made again
            self._folder.mkdir(parents=True, exist_ok=True)
            self.forget(task)
            if not self._make_room(Path(task.path).stat().st_size):
                return
            _link(Path(task.path), self._file(task))
            _store(replace(made, tail=_tail(self._file(task))), self._record(task))

    def forget(self, task: ReferenceTask) -> None:
        """Remove the kept reference of a task, if there is one."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._record(task).unlink(missing_ok=True)
                self._file(task).unlink(missing_ok=True)

    def _holds(self, made: MadeReference) -> bool:
        """Whether what a reference depends on still is what it was."""
        return all(self._content(path) == what for path, what in made.files.items()) and all(
            sources.content_of_variable(name) == what for name, what in made.variables.items()
        )

    def _content(self, path: str) -> str:
        if path not in self._seen:
            self._seen[path] = self._planned.get(path) or sources.content_of_file(Path(path))
        return self._seen[path]

    def _make_room(self, size: int) -> bool:
        """Remove the references that are not used until one of some bytes fits; whether it does."""
        assert self._folder is not None
        left = LARGEST_SHARE * shutil.disk_usage(self._folder).free - size
        if left < 0:
            return False
        for record in sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True):
            file = record.with_suffix(SUFFIX)
            left -= file.stat().st_size if file.exists() else 0
            if left < 0:
                record.unlink(missing_ok=True)
                file.unlink(missing_ok=True)
        return True

    def _request(self, task: ReferenceTask) -> str:
        known, place = self._environment, task.location
        ran_on = [known.torch, known.python, known.cpu, known.cpu_capability, *self._imports]
        held = replace(place, own=place.moved(lambda path: self._content(path) or path).own)
        return json.dumps([to_json(replace(task, location=held, path="")), *ran_on])

    def _record(self, task: ReferenceTask) -> Path:
        assert self._folder is not None
        return self._folder / f"{hashlib.sha256(self._request(task).encode()).hexdigest()[:32]}.json"

    def _file(self, task: ReferenceTask) -> Path:
        return self._record(task).with_suffix(SUFFIX)


def _load(record: Path) -> MadeReference | None:
    """The record of a making; None if there is none that can be read."""
    try:
        made: MadeReference = files.decode(record, files.read(record, run_files.RECORD_BYTES), MADE, MadeReference)
    except (OSError, UsageError):
        return None
    return made


def _store(made: MadeReference, record: Path) -> None:
    files.write_document(record, MADE, made)


def _paths_of_saved(task: ReferenceTask) -> tuple[str, ...]:
    """The paths of the saved model and its inputs."""
    return replace(task.location, file="").paths


def _tail(path: Path) -> str:
    """Size and last bytes of a reference file, which are a sum of all that it holds; "" if it is no regular file."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        return f"{size} {file.read().hex()}"


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where that cannot be; what stands at the name is replaced."""
    draft = target.with_name(f"{target.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        os.link(source, draft)
    except OSError:
        shutil.copyfile(source, draft)
    draft.replace(target)
