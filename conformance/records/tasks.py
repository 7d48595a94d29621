"""Tasks and results of child processes. A target names a function, and the records that it takes and returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Generic, TypeVar

from conformance.axes import MODES
from conformance.records import convert, measurements
from conformance.records.cell import STATUSES, Cell, Discrepancy, Observation
from conformance.records.plan import NOTHING_GIVEN, Environment, OwnModel, Plan, SpecLocation
from zoo.expect import Expect

CELL_SECONDS = 300.0  # that a cell may take, unless a person says otherwise

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Target(Generic[TaskT, ResultT]):
    """A function that a child process calls, and the types of the records that it takes and returns.

    It is "package.module:function"; a fresh process calls it as function(task, process) with a
    `process.child_side.ChildProcess`.
    """

    function: str
    task: type[TaskT]
    result: type[ResultT]


@dataclass(frozen=True)
class Nothing:
    """A task without data."""


@dataclass(frozen=True)
class PlanRequest:
    """What the user asks for.

    Attributes:
        sources: models or folders of the zoo, files, modules; empty for the whole zoo.
        modes, precisions, devices: only these; empty for the default ones.
        seed: seed of weights, inputs and cotangents.
        deadline: seconds that a cell may take.
        all_sizes: plan each model with a scale at all its sizes.
        shapes: plan each model at so many shapes of its family, in place of its cases; 0 for its cases.
        first_case: judge compiled cells at the first case of their model alone.
        given: what was said of the models without a spec: their inputs, and the mode to put them into.
        own: the location of a model without a spec that is judged in place of sources.
        declared: divergences that are declared outside the code, by the model's name.
        registered: the file that registers the modes of the caller's process; None if it has registered none.
    """

    sources: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    seed: int = 0
    deadline: float = CELL_SECONDS
    all_sizes: bool = False
    shapes: int = 0
    first_case: bool = False
    given: OwnModel = NOTHING_GIVEN
    own: SpecLocation | None = None
    declared: Mapping[str, tuple[Expect, ...]] = field(default_factory=dict)
    registered: SpecLocation | None = None

    @property
    def may_compile(self) -> bool:
        """Whether a mode that was asked for compiles; of the modes in a source, only the plan knows."""
        asked = self.modes or [name for name, mode in MODES.items() if mode.default]
        return any(MODES[name].compiles for name in asked if name in MODES)


@dataclass(frozen=True)
class ListedModel:
    """A model as `conformance list` shows it: its name, its summary in one line, and the names of its cases."""

    name: str
    summary: str
    cases: tuple[str, ...]


@dataclass(frozen=True)
class Listing:
    """All models that were asked for."""

    models: tuple[ListedModel, ...]


@dataclass(frozen=True)
class ReferenceTask:
    """Make the reference of a model, of weights, inputs and cotangents of a seed.

    Attributes:
        precisions: names of the precisions for which the perturbed runs are made.
        path: path of the file to write.
        light: only outputs and first derivatives of the first case, with which a timed call is compared.
    """

    model: str
    location: SpecLocation
    seed: int
    precisions: tuple[str, ...]
    path: str
    light: bool = False


@dataclass(frozen=True)
class ReferenceResult:
    """How the making of a reference ended.

    Attributes:
        ending: "ok", "invalid", "random", "no oracle", "out of memory", "machine failed", or "raised" for SystemExit
            and the like.
        message: the reason in one line; "" if it is ok.
        files: the content of the files that the reference depends on, in a few letters, by path.
        variables: the same of the environment variables, by name.
        fingerprint: the fingerprint of the model and its inputs.
    """

    ending: str
    message: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""


@dataclass(frozen=True)
class CellTask:
    """Open one cell, whose spec is at a location, with weights, inputs and cotangents of a seed.

    Attributes:
        sources: the modules and files to import first: the one that registers the cell's mode, if it is no built-in
            one. No other source is imported, so none can change the verdict.
        reference: path of the model's reference file; "" for work that needs no oracle.
        expect: the declared divergences that apply to the cell.
        cache: path of the folder of compiled code; "" for the one that all cells of the run share.
        fingerprint: the fingerprint that the model must have; "" if its reference is of this run.
        size: the size of the model; 0 for that of its cases.
        left_out: the names of the model's cases that are not judged.
        plain: each case is asked in one way alone.
    """

    cell: Cell
    location: SpecLocation
    sources: tuple[SpecLocation, ...]
    seed: int
    reference: str = ""
    expect: tuple[Expect, ...] = ()
    cache: str = ""
    fingerprint: str = ""
    size: int = 0
    left_out: tuple[str, ...] = ()
    plain: bool = False


@dataclass(frozen=True)
class CompileTask:
    """Time how long a cell takes to its first result, with a compile cache in a folder."""

    cell: CellTask
    cache: str


@dataclass(frozen=True)
class TimingTask:
    """Time a figure, one of `FIGURES`, of cells side by side, the baseline first.

    Attributes:
        process_index: number of this process among those that time the same cells; it seeds the order of the calls.
        budget: seconds that the calls of one cell may take.
        keep_samples: return every sample.
    """

    cells: tuple[CellTask, ...]
    figure: str
    process_index: int
    budget: float
    keep_samples: bool = False


@dataclass(frozen=True)
class ReproTask:
    """Write a script that shows why a cell is red.

    Attributes:
        verdict: the verdict, in words.
        fault: the tensor that the verdict names, with the measure of the gate alone; None if the cell raised or died.
        error: the type of the exception that it raised; "" if it died.
        script: path of the script; what seeds do not give lies beside it.
        wrong_backward: finite differences in float64 have told another derivative than backward.
    """

    cell: CellTask
    verdict: str
    fault: Discrepancy | None
    error: str
    script: str
    wrong_backward: bool


@dataclass(frozen=True)
class ReproResult:
    """That it was written, and why the script imports the model; "" if it holds its source."""

    imports: str = ""


@dataclass(frozen=True)
class CeilingsTask:
    """Measure the highest rates of a device at these precisions."""

    device: str
    precisions: tuple[str, ...]


PLAN = Target("conformance.plan.matrix:make", PlanRequest, Plan)
ENVIRONMENT = Target("conformance.plan.matrix:observe_environment", Nothing, Environment)
LIST_MODELS = Target("conformance.plan.find:list_models", PlanRequest, Listing)
REFERENCE = Target("conformance.cell.observe:make_reference", ReferenceTask, ReferenceResult)
CELL = Target("conformance.cell.observe:observe", CellTask, Observation)
TIMING = Target("conformance.measure.side_by_side:observe", TimingTask, measurements.Timing)
FOOTPRINT = Target("conformance.measure.costs:count", CellTask, measurements.Footprint)
COMPILE = Target("conformance.measure.costs:time_compilation", CompileTask, measurements.CompileRun)
SIMPLEST = Target("conformance.cell.compiler:compile_the_simplest", Nothing, Nothing)
REPRO = Target("conformance.cell.repro:write", ReproTask, ReproResult)
CEILINGS = Target("conformance.measure.ceilings:observe", CeilingsTask, measurements.Ceilings)


# What is known of a reference once a process has made it.

KEPT = "kept reference"  # in the seconds of an observation, in place of "reference"


@dataclass(frozen=True)
class MadeReference:
    """How the making of a model's reference ended; `ReferenceResult` explains the fields that are not listed.

    Attributes:
        seconds: how long it took.
        refused: the observation of each cell of the model, if there is no reference; None if there is one.
        kept: an earlier run made it.
        tail: what tells its file from others, where it is kept.
    """

    seconds: float
    refused: Observation | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    kept: bool = False
    tail: str = ""


@dataclass(frozen=True)
class FingerprintsTask:
    """Build models, whose specs are at locations, with weights and inputs of a seed, and take their fingerprints."""

    models: Mapping[str, SpecLocation]
    seed: int


@dataclass(frozen=True)
class Fingerprints:
    """The fingerprint of each model that could be built, by name."""

    found: Mapping[str, str]


FINGERPRINTS = Target("conformance.cell.session:take_fingerprints", FingerprintsTask, Fingerprints)


# Tasks and results of the processes that read and run probes of known torch faults.


@dataclass(frozen=True)
class ProbesRequest:
    """Read the probes of a package, by its dotted name, for a device type."""

    package: str
    device: str


@dataclass(frozen=True)
class SeenOn:
    """The torch versions that show a fault on one device; see `zoo.probe.Seen`.

    They are a range such as ">=2.6,<2.15"; the probe was run on those checked.
    """

    torch: str
    checked: tuple[str, ...]


@dataclass(frozen=True)
class ProbeInfo:
    """A probe, as data. `zoo.probe.Probe` explains the fields that are not listed.

    Attributes:
        seen: the versions that show the fault, by device type.
        concerns: whether the probe applies to the device that was asked for.
        declared: whether this torch should show the fault on that device; None if nothing is declared for the device.
        remedy: what to do instead.
    """

    name: str
    summary: str
    issue: str
    source: str
    symptom: str
    devices: tuple[str, ...]
    seen: Mapping[str, SeenOn]
    concerns: bool
    declared: bool | None
    remedy: str = ""

    @property
    def link(self) -> str:
        """The upstream issue, or the source if there is none."""
        return self.issue or self.source


@dataclass(frozen=True)
class ProbeList:
    """All probes of a package, and the environment of the process that read them."""

    probes: tuple[ProbeInfo, ...]
    environment: Environment


@dataclass(frozen=True)
class ProbeTask:
    """Run the probe of a module on a device type, with a folder for its compile cache."""

    module: str
    device: str
    cache: str


@dataclass(frozen=True)
class ProbeSighting:
    """The result of running a probe: "saw", "raised" or "unavailable".

    The text of "saw" is the symptom, or "" if torch is correct; otherwise it is the reason.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class ProbeFinding:
    """The result of a probe.

    Attributes:
        status: a key of `STATUSES`: EXPECTED, PASS, STALE, FAIL, INCONCLUSIVE, ERROR, CRASH, TIMEOUT, UNSUPPORTED
            or SKIPPED.
        seen: the symptom, the error, how the process died, or why it was skipped; "" if torch is correct.
        link: address of the issue, or the source if there is none.
        summary, remedy: the risk in one line, and what to do instead.
    """

    probe: str
    status: Annotated[str, convert.one_of(STATUSES)]
    seen: str
    link: str
    summary: str = ""
    remedy: str = ""

    @property
    def red(self) -> bool:
        """Whether the declaration and this torch disagree."""
        return STATUSES[self.status].red


@dataclass(frozen=True)
class ProbeRun:
    """What the probes found in one torch on one device, as `conformance probes --write` stores it."""

    environment: Environment
    device: str
    findings: tuple[ProbeFinding, ...]


PACKAGE = "zoo.probes"
READ_PROBES = Target("conformance.plan.matrix:read_probes", ProbesRequest, ProbeList)
RUN_PROBE = Target("conformance.cell.observe:observe_probe", ProbeTask, ProbeSighting)
