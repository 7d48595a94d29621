"""Marks the plans that this user makes on this machine, because resuming a run executes the code that its plan names.

The mark is a keyed sum of the plan. The key is a file that only this user can read. A run folder from somebody else
bears another mark or none, so its sources run only if the person names them on the command line. If no key can be kept,
for example in a read-only home folder, no run bears a mark.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from pathlib import Path
from typing import Any

from conformance.errors import UsageError
from conformance.records.plan import Plan, SpecLocation
from conformance.run import regular_file

KEY_BYTES = 32
ZOO = "zoo"


def mark(plan: Any) -> str:
    """The mark of a plan in JSON form; "" if there is no key."""
    key = _key()
    text = json.dumps(plan, sort_keys=True).encode()
    return hmac.new(key, text, hashlib.sha256).hexdigest() if key else ""


def bears(found: Any, plan: Any) -> bool:
    """Whether a mark is that of this user for a plan in JSON form."""
    wanted = mark(plan)
    return isinstance(found, str) and bool(wanted) and hmac.compare_digest(wanted.encode(), found.encode())


def check(folder: Path, plan: Plan, named: tuple[str, ...], *, own: bool) -> None:
    """Refuse to resume a run that would execute code which this user did not name.

    The models of the zoo are part of this project. A file inside the run folder is never taken unless it is named.

    Args:
        folder: the run folder.
        plan: its plan.
        named: the files and modules that the command line names.
        own: whether this user planned the run on this machine.

    Raises:
        UsageError: a source must be named, or a named one is not part of the run; the message names it.
    """
    wanted = {place.name: place for place in (*plan.modes.values(), *plan.models.values()) if not _of_the_zoo(place)}
    given = {_place(name): name for name in named}
    for name, text in given.items():
        if name not in wanted:
            raise UsageError(f"{folder} has no source {text}; a resumed run takes its cells from the stored run")
    inside = {name for name in wanted if Path(name).is_absolute() and Path(name).is_relative_to(folder)}
    missing = [name for name in wanted if name not in given and (name in inside or not own)]
    if missing:
        why = "it lies in the run folder" if own else "this user did not plan the run on this machine"
        command = f"conformance run --resume {folder} {' '.join([*named, *missing])}"
        raise UsageError(f"{folder} would execute {missing[0]}, and {why}; name the sources to allow it: {command}")


def _place(source: str) -> str:
    """The name of the location of a source: the path of its file, or its module."""
    file = source if Path(source).is_file() else source.rpartition(":")[0]
    return str(Path(file).resolve()) if Path(file).is_file() else source.partition(":")[0]


def _of_the_zoo(place: SpecLocation) -> bool:
    return not place.file and place.module.partition(".")[0] == ZOO


def _key() -> bytes | None:
    """The key of this user, made if there is none; None if it cannot be kept."""
    with contextlib.suppress(OSError, UsageError, RuntimeError):
        state = os.environ.get("XDG_STATE_HOME", "")
        base = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
        path = base / "torch-conformance" / "key"
        with contextlib.suppress(FileNotFoundError):
            key = regular_file.read(path, KEY_BYTES)
            return key if len(key) == KEY_BYTES else None
        path.parent.mkdir(parents=True, exist_ok=True)
        return _made(path)
    return None


def _made(path: Path) -> bytes:
    """A new key; of two processes that make one at a time, both take the first."""
    draft = path.with_name(f"key.{os.getpid()}.{secrets.token_hex(4)}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        regular_file.write_all(file, secrets.token_bytes(KEY_BYTES))
    finally:
        os.close(file)
    try:
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
    return regular_file.read(path, KEY_BYTES)
