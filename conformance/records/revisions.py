"""Tasks and results of the workers that compare two revisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from conformance.records.measurements import Footprint, Reason, Sample
from conformance.records.plan import Plan
from conformance.records.tasks import CellTask, Nothing, PlanRequest, Target


@dataclass(frozen=True)
class RevisionPlan:
    """The plan for the sources that a revision has.

    Attributes:
        plan: the plan of those sources; None if the revision has none of them.
        unknown: a message for each source that the revision does not have, by the name of the source.
        first_cases: the inputs of each model's first case in words, by model.
    """

    plan: Plan | None
    unknown: Mapping[str, str] = field(default_factory=dict)
    first_cases: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ShortVerdict:
    """The status and the text of a `Verdict`."""

    status: str
    text: str


@dataclass(frozen=True)
class MeasuredCell:
    """A cell that passes.

    Attributes:
        footprint: what it costs, or the reason why that could not be counted.
        reference: path of the model's reference file.
    """

    footprint: Footprint | Reason
    reference: str


@dataclass(frozen=True)
class AccountTask:
    """Judge the cells of a revision, and count what they cost.

    Attributes:
        request: the sources and axes.
        folder: path of the folder for reference files.
    """

    request: PlanRequest
    folder: str


@dataclass(frozen=True)
class Account:
    """What one revision costs.

    Attributes:
        planned: its plan and first cases.
        verdicts: verdict of each cell, by cell id.
        measured: the cells that pass, by cell id.
    """

    planned: RevisionPlan
    verdicts: Mapping[str, ShortVerdict] = field(default_factory=dict)
    measured: Mapping[str, MeasuredCell] = field(default_factory=dict)


@dataclass(frozen=True)
class TimedRevision:
    """Prepare a revision's cells to be timed.

    Attributes:
        cells: the cells of one model, precision and device.
        figure: what to time; a key of `FIGURES`.
    """

    cells: tuple[CellTask, ...]
    figure: str


@dataclass(frozen=True)
class NotTimed:
    """Why some cells cannot be timed, by cell id."""

    reasons: Mapping[str, Reason] = field(default_factory=dict)


@dataclass(frozen=True)
class TimedCellRequest:
    """Work on one of the prepared cells.

    Attributes:
        cell: its id.
        slowed: add a tenth more work to its calls.
    """

    cell: str
    slowed: bool = False


@dataclass(frozen=True)
class WrongResult:
    """What is wrong with a result; "" if it is right."""

    text: str = ""


PLAN_REVISION = Target("conformance.measure.revision_plan:make", PlanRequest, RevisionPlan)
PREPARE_REVISION = Target("conformance.measure.revision_worker:prepare", TimedRevision, NotTimed)
WARM_UP = Target("conformance.measure.revision_worker:warm_up", TimedCellRequest, NotTimed)
SETTLE = Target("conformance.measure.revision_worker:settle", Nothing, Nothing)
SAMPLE = Target("conformance.measure.revision_worker:sample", TimedCellRequest, Sample)
WRONG_RESULT = Target("conformance.measure.revision_worker:wrong_result", TimedCellRequest, WrongResult)
MEASURE_REVISION = Target("conformance.against.account:measure_revision", AccountTask, Account)
