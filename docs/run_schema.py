"""The JSON Schema of what `Report.to_json()` returns, and of the files of a run folder."""

import json
from dataclasses import dataclass
from typing import Annotated

from conformance.records import schema
from conformance.records.cell import Verdict
from conformance.records.convert import one_of
from conformance.records.measurements import Result
from conformance.records.plan import Plan
from conformance.store.files import FORMAT

Format = Annotated[int, one_of([FORMAT])]


@dataclass
class Report:
    """What `Report.to_json()` returns. `ok`: every cell is as expected, and not all of them were skipped."""

    ok: bool
    plan: Plan
    verdicts: tuple[Verdict, ...]


@dataclass
class PlanFile:
    """The file `plan.json`. `crc32` is that of the line without this field, `version` that of conformance."""

    crc32: str
    format: Format
    version: str
    plan: Plan


@dataclass
class DoneFile:
    """The file `run.json`, which is there if the run is complete: the SHA-256 of `plan.json` and `cells.jsonl`."""

    crc32: str
    format: Format
    version: str
    sha256: str


@dataclass
class SelectionLine:
    """A line of `cells.jsonl`: the ids of the cells that are chosen from the plan. Without one, all are."""

    crc32: str
    selected: tuple[str, ...]


@dataclass
class ChangedLine:
    """A line of `cells.jsonl`: files that changed while the run went on. A later one replaces it."""

    crc32: str
    changed: tuple[str, ...]


@dataclass
class VerdictLine:
    """A line of `cells.jsonl`: a verdict. A later one on the same cell replaces it."""

    crc32: str
    verdict: Verdict


@dataclass
class ResultLine:
    """A line of `cells.jsonl`: what a process has measured. A later one of the same job replaces it."""

    crc32: str
    job: str
    result: Result


KINDS = (Report, PlanFile, DoneFile, SelectionLine, ChangedLine, VerdictLine, ResultLine)


def page() -> str:
    """docs/run.schema.json."""
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A report or a stored run of torch-conformance, format {FORMAT}",
        "description": "A field that equals its default is left out. An infinity or NaN is a text.",
        "anyOf": [schema.reference(kind.__name__) for kind in KINDS],
        "$defs": schema.definitions(*KINDS),
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
