"""What is told and returned when two revisions are compared."""

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
        plan: of the known sources; None if it has none of them.
        unknown: a message for each source that it does not have.
        first_cases: by model, its first case in words.
    """

    plan: Plan | None
    unknown: Mapping[str, str] = field(default_factory=dict)
    first_cases: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ShortVerdict:
    """The word of a verdict and its line of text."""

    status: str
    text: str


@dataclass(frozen=True)
class MeasuredCell:
    """A cell that passes: its footprint, or why it could not be counted, and the path of its reference file."""

    footprint: Footprint | Reason
    reference: str


@dataclass(frozen=True)
class AccountTask:
    """Judge and count what a revision has of some sources; `folder` is for the references."""

    request: PlanRequest
    folder: str


@dataclass(frozen=True)
class Account:
    """What one revision costs.

    Attributes:
        planned: its plan and first cases.
        verdicts: by cell id.
        measured: the cells that pass, by id.
    """

    planned: RevisionPlan
    verdicts: Mapping[str, ShortVerdict] = field(default_factory=dict)
    measured: Mapping[str, MeasuredCell] = field(default_factory=dict)


@dataclass(frozen=True)
class TimedRevision:
    """Prepare a revision's cells to be timed."""

    cells: tuple[CellTask, ...]
    figure: str


@dataclass(frozen=True)
class Refusals:
    """Why some cells cannot be timed, by cell id."""

    reasons: Mapping[str, Reason] = field(default_factory=dict)


@dataclass(frozen=True)
class TimedCellRequest:
    """Which of the prepared cells; with `slowed`, a tenth more work is added to its calls."""

    cell: str
    slowed: bool = False


@dataclass(frozen=True)
class Complaint:
    """What is wrong with a result; "" if nothing is."""

    text: str = ""


PLAN_REVISION = Target("conformance.measure.revision_plan:make", PlanRequest, RevisionPlan)
PREPARE_REVISION = Target("conformance.measure.revision_worker:prepare", TimedRevision, Refusals)
WARM_UP = Target("conformance.measure.revision_worker:warm_up", TimedCellRequest, Refusals)
SETTLE = Target("conformance.measure.revision_worker:settle", Nothing, Nothing)
SAMPLE = Target("conformance.measure.revision_worker:sample", TimedCellRequest, Sample)
WRONG_RESULT = Target("conformance.measure.revision_worker:wrong_result", TimedCellRequest, Complaint)
MEASURE_REVISION = Target("conformance.against.account:measure_revision", AccountTask, Account)
