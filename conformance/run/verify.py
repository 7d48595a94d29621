"""Checks a run folder without anything else of this project: `python verify.py RUN`.

It reads the files on its own, with the standard library alone, so that a fault of the project's reader cannot hide
itself. It checks the sums, the plan against the records, and the statuses. It executes nothing and writes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GREEN = {"PASS", "EXPECTED", "UNSUPPORTED", "SKIPPED"}
RED = {"FAIL", "STALE", "ERROR", "CRASH", "TIMEOUT", "OOM", "VOID", "UNSTABLE", "INCONCLUSIVE", "INVALID", "NOTRUN"}
FORMAT, RECORD_BYTES, FILE_BYTES = 4, 200_000, 2**30
END = ',\n "sha256": "{}"\n}}\n'
END_BYTES = len(END.format("0" * 64))
CAREFUL = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


@dataclass
class Account:
    """What a run folder holds.

    Attributes:
        place: the file and line that was read last.
        damage: what is wrong there; "" if nothing is.
        cells: ids of the selected cells.
        statuses: the last status of each cell with a verdict.
        ending: why the run is not complete; "" if it is.
    """

    place: str = "plan.json"
    damage: str = ""
    cells: tuple[str, ...] = ()
    statuses: dict[str, str] = field(default_factory=dict)
    ending: str = ""

    @property
    def code(self) -> int:
        """0: all cells are judged and none is red; 1: one is red or missing; 4: damaged, or no run folder."""
        green = self.cells and all(self.statuses.get(cell) in GREEN for cell in self.cells)
        return 4 if self.damage else 0 if green and not self.ending else 1

    def text(self) -> str:
        """The account in one line."""
        counts = Counter(self.statuses.get(cell, "NOTRUN").lower() for cell in self.cells)
        counted = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        holds = f"{len(self.cells)} cells: {counted or 'none'}; all sums hold{self.ending}"
        return ascii(f"{self.place}: {self.damage}" if self.damage else holds)[1:-1]


def verify(folder: Path) -> Account:
    """Check a run folder; what is wrong stands in the account."""
    found = Account()
    try:
        _check(folder, found)
    except (ValueError, OSError) as problem:
        found.damage = str(problem)
    except (LookupError, TypeError, AttributeError, RecursionError) as problem:
        found.damage = f"it has another form: {problem!r}"
    return found


def _check(folder: Path, found: Account) -> None:
    plan, sums, data = (_content(folder / name) for name in ("plan.json", "run.json", "cells.jsonl"))
    if not plan:
        raise ValueError("there is none, so this is no run folder")
    made = _unsealed(plan)["plan"]
    models = made["shard"]["parts"][made["shard"]["index"] - 1] if "shard" in made else made["models"]
    own = (planned["cell"] for planned in made["cells"] if planned["cell"]["model"] in models)
    found.cells = tuple("{model}[{mode}-{precision}-{device}]".format(**cell) for cell in own)
    planned, total = Counter(found.cells), zlib.crc32(plan)
    *lines, torn = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        found.place, total = f"cells.jsonl, line {number}", zlib.crc32(line[9:], total)
        if line[:9] != b"%08x " % total:
            raise ValueError("its sum does not match")
        for cell in _take(_object(line[9:]), len(line), found):
            if planned[cell] != 1:
                raise ValueError(f"the plan has {planned[cell]} cells {cell!r:.80}")
    found.place = "run.json"
    found.ending = "" if sums else "; run.json is missing, so the run is not complete"
    found.ending += "; the last line is unfinished" if torn else ""
    if sums and (told := _unsealed(sums)["sums"]) != _sums(plan, data[: told["length"]], found):
        raise ValueError("plan.json or cells.jsonl is not what it counts")


def _take(record: dict[str, Any], size: int, found: Account) -> list[str]:
    match record:
        case {"selected": list(named), **rest} if not rest:
            found.cells = tuple(dict.fromkeys(named))
            return named
        case {"job": str(), "result": dict(), **rest} if not rest:
            return []
        case {"verdict": {"cell": str(cell), "status": str(status)}, **rest} if not rest and size < RECORD_BYTES:
            if status not in GREEN | RED:
                raise ValueError(f"unknown status {status!r:.40}")
            found.statuses[cell] = status
            return [cell]
    raise ValueError(f"unknown record, or one of more than {RECORD_BYTES} bytes")


def _sums(plan: bytes, counted: bytes, found: Account) -> dict[str, Any]:
    sums = {f"{name}_sha256": hashlib.sha256(x).hexdigest() for name, x in (("plan", plan), ("lines", counted))}
    judged = sum(cell in found.statuses for cell in found.cells)
    return {"cells": judged, "lines": counted.count(b"\n"), "length": len(counted), **sums}


def _content(path: Path) -> bytes:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | CAREFUL), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_BYTES:
                raise ValueError(f"{path.name} is no regular file, or has more than {FILE_BYTES} bytes")
            return file.read(FILE_BYTES)
    except FileNotFoundError:
        return b""


def _unsealed(data: bytes) -> dict[str, Any]:
    if data[-END_BYTES:] != END.format(hashlib.sha256(data[:-END_BYTES]).hexdigest()).encode():
        raise ValueError("its sum does not match")
    fields = _object(data)
    if fields["format"] != FORMAT:
        raise ValueError(f"format {fields['format']!r:.20} of version {fields.get('version')!r:.40}")
    return fields


def _object(text: bytes) -> dict[str, Any]:
    return {**json.loads(text.decode("ascii"))}  # raises a TypeError if it is no object


if __name__ == "__main__":
    account = verify(Path(sys.argv[1]))
    print(account.text())  # noqa: T201 -- this is the interface
    sys.exit(account.code)
