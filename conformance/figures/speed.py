"""Plans what is measured of a judged run, side by side, in up to two processes for each cell, and combines the results.

Only cells that pass are measured: their speed next to eager fp32 with the same weights and inputs, and for
`conformance bench` every figure, compile cost, bytes and ceilings. Each is one job, stored under its name:
`speed FIGURE GROUP #INDEX`, `compile CELL`, `footprint CELL`, `ceilings DEVICE`.
"""

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import TypeVar

from conformance.figures.meter import pooled_ratio
from conformance.judging.executor import Executor, cell_task
from conformance.process import pool
from conformance.records import measurements
from conformance.records.cell import STATUSES, Cell, Observation, Verdict
from conformance.records.plan import Plan, PlannedCell
from conformance.records.tasks import CEILINGS, COMPILE, FOOTPRINT, TIMING, CeilingsTask, CompileTask, TimingTask
from conformance.store.run_files import Contents

SPEED = "speed "  # begins the names of its jobs
DEFAULT = "default"  # in place of a figure's name: that of `default_figure`, at the working size of the model
LAUNCH_SECONDS = 0.2e-3  # a call that is shorter mostly starts ops
PROCESSES = 2  # each process has a bias of its own, from the addresses of its weights
BUDGET, DEFAULT_BUDGET = 0.5, 0.25  # seconds that the calls of one cell may take in one process

# the models of the zoo that are timed if nobody asks for more
HEART = (
    "merge merge_tiled batch_gather_loop batch_gather_native batch_gather_scripted batch_gather_vectorised "
    "checkerboard checkerboard_scripted fused_conv_bn2d square matmul_amp train_step"
).split()
HEART_PRECISIONS = ("fp32",)

Job = Callable[[], measurements.Result]
AnyJob = TypeVar("AnyJob")


@dataclass(frozen=True)
class Speed:
    """The speed of one cell."""

    cell: str  # its id
    figure: str = ""  # what was timed; a key of `FIGURES`
    seconds: float | None = None  # median time of one call; None if there is no figure
    ratios: Mapping[str, measurements.Ratio] = field(default_factory=dict)  # times faster than each, by its cell's id
    warm_calls: int = 0  # calls until the time was steady, the most of all processes
    reason: measurements.Reason | None = None  # why there is no figure

    @property
    def is_short(self) -> bool:
        """Whether a call is too short to tell more than how fast its ops start."""
        return self.seconds is not None and self.seconds < LAUNCH_SECONDS

    @property
    def lacks_verdict(self) -> bool:
        """Whether the reason is the cell's verdict, which the table shows already."""
        return self.reason is not None and self.reason.short in STATUSES


@dataclass(frozen=True)
class TimingGroup:
    """Cells that are timed together."""

    name: str  # model, precision and device
    cells: tuple[PlannedCell, ...]  # the baseline first; none if there is nothing to time
    refused: tuple[Speed, ...] = ()  # the cells that cannot be timed, with the reason

    @property
    def timed(self) -> list[str]:
        """Ids of the cells whose speed this group gives. A baseline of another precision belongs to another group."""
        return [p.id for p in self.cells if p.cell.precision == self.cells[-1].cell.precision]

    def jobs(self, figure: str) -> list[str]:
        """The names under which its results are stored; see `is_needed`."""
        return [f"{SPEED}{figure} {self.name} #{index}" for index in range(PROCESSES)] if self.cells else []


def timing_groups(plan: Plan, verdicts: Mapping[str, Verdict]) -> list[TimingGroup]:
    """One group for each model, precision and device to time: all cells that pass, and eager fp32 as the baseline."""
    cells = {p.id: p for p in plan.cells if p.id in verdicts and not p.skip}
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name, planned in cells.items():
        cell = planned.cell
        if plan.is_timed(cell):
            groups.setdefault((cell.model, cell.precision, cell.device), []).append(name)
    return [_group(Cell(m, "eager", "fp32", d), p, names, cells, verdicts) for (m, p, d), names in groups.items()]


def _group(
    base: Cell, precision: str, names: list[str], cells: Mapping[str, PlannedCell], verdicts: Mapping[str, Verdict]
) -> TimingGroup:
    missing = why_not(base.id, cells.get(base.id), verdicts)
    members, refused = [] if missing else [cells[base.id]], []
    for name in names:
        reason = why_not(name, cells[name], verdicts)
        if missing and not reason:
            reason = measurements.Reason("no baseline", f"{base.id} is {missing.short}")
        if reason:
            refused.append(Speed(name, reason=reason))
        elif name != base.id:
            members.append(cells[name])
    worth_it = members and (precision == "fp32" or len(members) > 1)
    return TimingGroup(f"{base.model}[{precision}-{base.device}]", tuple(members if worth_it else ()), tuple(refused))


def default_figure(figures: Sequence[str]) -> str:
    """The figure that is timed if none is named: "gradient" if the model has it, otherwise its first one."""
    return "gradient" if "gradient" in figures else figures[0]


def measurable(contents: Contents) -> list[Cell]:
    """The cells that may be measured, because they pass; see `why_not`."""
    planned = [p for p in contents.plan.cells if not p.skip and p.id in contents.verdicts]
    return [p.cell for p in planned if not why_not(p.id, p, contents.verdicts)]


def why_not(name: str, planned: PlannedCell | None, verdicts: Mapping[str, Verdict]) -> measurements.Reason | None:
    """Why a cell of that id is not measured; None if it passes, apart from declared dtypes."""
    if planned is None:
        return measurements.Reason("not judged")
    verdict = verdicts[name]
    only_dtypes = all(e.outcome == "dtype" for e in planned.expect)
    if verdict.status == "PASS" or (verdict.status == "EXPECTED" and only_dtypes):
        return None
    return measurements.Reason(verdict.status, "only a cell that passes has a speed")


def timing_jobs(plan: Plan, group: TimingGroup, executor: Executor, figure: str) -> dict[str, Job]:
    """The jobs of one group by name, one for each process; see `time_once`."""
    time = partial(time_once, plan, group.cells, executor, figure)
    return {name: partial(time, process_index=index) for index, name in enumerate(group.jobs(figure))}


def time_once(
    plan: Plan, cells: Sequence[PlannedCell], executor: Executor, figure: str, *, process_index: int
) -> measurements.Timing | measurements.Reason:
    """Time a figure of cells, the baseline first, in the process of that number among those that time the same cells.

    Unless the figure is `DEFAULT`, every sample is kept.
    """
    tasks, quick = [], figure == DEFAULT
    for planned in cells:
        sized = plan.working_size(planned.cell) if quick else None
        reference = executor.reference(sized.name if sized else planned.cell.model)
        if isinstance(reference, Observation):
            return measurements.Reason("no reference", reference.message)
        task = cell_task(plan, planned.cell, reference, planned.expect)
        tasks.append(replace(task, size=sized.size if sized else 0))
    taken = default_figure(plan.models[cells[0].cell.model].figures) if quick else figure
    budget = DEFAULT_BUDGET if quick else BUDGET
    return pool.result(TIMING, TimingTask(tuple(tasks), taken, process_index, budget, not quick), plan.deadline)


def speeds(contents: Contents, figure: str = DEFAULT) -> dict[str, Speed]:
    """The speed of each cell whose group is measured completely, by cell id."""
    groups = timing_groups(contents.plan, contents.verdicts)
    return {speed.cell: speed for group in groups for speed in _speeds_of(group, contents, figure)}


def completed_speeds(contents: Contents, job: str) -> list[Speed]:
    """The speeds of the group that a job belongs to, if the job was its last."""
    groups = [group for group in timing_groups(contents.plan, contents.verdicts) if job in group.jobs(DEFAULT)]
    return [speed for group in groups for speed in _speeds_of(replace(group, refused=()), contents, DEFAULT)]


def _speeds_of(group: TimingGroup, contents: Contents, figure: str) -> list[Speed]:
    """The speeds of a group; none until it is measured completely."""
    jobs = group.jobs(figure)
    if any(is_needed(job, contents.results) for job in jobs):
        return []
    results = [result for job in jobs if (result := contents.result(measurements.Timing, job)) is not None]
    return [*group.refused, *(pooled_speed(name, results) for name in group.timed if results)]


def is_needed(job: str, results: Mapping[str, measurements.Result]) -> bool:
    """Whether a job is not done and can still change a figure.

    A second process cannot make an interval narrower, or give a figure that the first one refused. The speed of
    starting ops is not worth one.
    """
    if job in results:
        return False
    group, _, index = job.rpartition(" #")
    first = results.get(f"{group} #0") if job.startswith(SPEED) and index != "0" else None
    if not isinstance(first, measurements.Timing):
        return first is None
    ratios = [one.ratios.values() for one in first.cells.values() if (one.seconds or 0.0) >= LAUNCH_SECONDS]
    return any(found.verdict != measurements.NOISY for each in ratios for found in each)


def pooled_speed(name: str, results: Sequence[measurements.Timing | measurements.Reason]) -> Speed:
    """One cell's speed from the results of all processes. If one could not measure it, there is no figure."""
    figure = next((result.figure for result in results if isinstance(result, measurements.Timing)), "")
    seen = [r.cells[name] if isinstance(r, measurements.Timing) else measurements.CellTiming(reason=r) for r in results]
    reason = next((timing.reason for timing in seen if timing.reason), None)
    if reason:
        return Speed(name, figure, reason=reason)
    return Speed(
        name,
        figure,
        seconds=min(timing.seconds or 0.0 for timing in seen),
        ratios={base: pooled_ratio([timing.ratios[base] for timing in seen]) for base in seen[0].ratios},
        warm_calls=max(timing.warm_calls for timing in seen),
    )


def in_batches(groups: Iterable[Mapping[str, AnyJob]]) -> list[dict[str, AnyJob]]:
    """The jobs of groups in batches for `pool.measure`.

    Those of one group, one for each process, compile the same code, so each is in another batch. The first one fills
    the cache, and the next one finds the code there.
    """
    filled = [list(jobs.items()) for jobs in groups if jobs]
    parts = [filled[start : start + pool.BATCH] for start in range(0, len(filled), pool.BATCH)]
    return [dict(filter(None, turn)) for part in parts for turn in zip_longest(*part)]


def default_jobs(contents: Contents, executor: Executor) -> list[dict[str, Job]]:
    """The jobs that the speeds of the matrix need, by name, in batches."""
    groups = timing_groups(contents.plan, contents.verdicts)
    return in_batches(timing_jobs(contents.plan, group, executor, DEFAULT) for group in groups)


# The jobs of `conformance bench`.

WARM_RUNS = 3


def ceilings_job(device: str) -> str:
    """The name of the job that measures a device's ceilings."""
    return f"ceilings {device}"


def footprint_job(cell: Cell) -> str:
    """The name of the job that counts what a cell costs."""
    return f"footprint {cell.id}"


def compile_job(cell: Cell) -> str:
    """The name of the job that measures what a cell costs before its first result."""
    return f"compile {cell.id}"


def bench_jobs(contents: Contents, executor: Executor) -> list[dict[str, Job]]:
    """All jobs of a bench, by name, in batches."""
    plan = contents.plan
    cells = measurable(contents)
    ceilings: dict[str, Job] = {}
    for device in dict.fromkeys(cell.device for cell in cells):
        precisions = tuple(dict.fromkeys(c.precision for c in cells if c.device == device))
        ceilings[ceilings_job(device)] = partial(pool.result, CEILINGS, CeilingsTask(device, precisions), plan.deadline)
    timings = in_batches(
        timing_jobs(plan, group, executor, figure)
        for group in timing_groups(plan, contents.verdicts)
        for figure in (plan.models[group.cells[0].cell.model].figures if group.cells else ())
    )
    costs: dict[str, Job] = {}
    for cell in cells:
        costs[footprint_job(cell)] = partial(footprint, plan, cell)
        if plan.models[cell.model].figures != ("fit",):
            costs[compile_job(cell)] = partial(_compile_cost, plan, cell)
    return [ceilings, *timings, costs]


def footprint(plan: Plan, cell: Cell) -> measurements.Footprint | measurements.Reason:
    """Count what a cell costs, in a child process; a reason if that fails."""
    return pool.result(FOOTPRINT, cell_task(plan, cell), plan.deadline)


def _compile_cost(plan: Plan, cell: Cell) -> measurements.CompileCost:
    """The cost of one start with an empty cache and, if the mode compiles, of further ones with the cache it filled."""
    with tempfile.TemporaryDirectory(prefix="conformance-cold-") as cache:
        task = CompileTask(cell_task(plan, cell), cache)
        wanted = ["miss", *(["hit"] * WARM_RUNS if cell.mode in plan.compiling_modes else [])]
        cold, *warm = (_compile_run(plan, task, state) for state in wanted)
    return measurements.CompileCost(cold, tuple(warm))


def _compile_run(plan: Plan, task: CompileTask, wanted: str) -> measurements.CompileRun:
    run = pool.result(COMPILE, task, plan.deadline)
    if isinstance(run, measurements.Reason):
        return measurements.CompileRun(reason=run)
    if run.cache not in ("", wanted):
        return replace(run, reason=measurements.Reason(f"cache {run.cache}", f"it should have been a {wanted}"))
    return run
