"""Plans what `conformance bench` measures of a judged run: every figure, compile cost, bytes and ceilings.

Each is one job, stored under its name: `speed FIGURE GROUP #INDEX`, `compile CELL`, `footprint CELL`,
`ceilings DEVICE`.
"""

import tempfile
from dataclasses import replace
from functools import partial

from conformance.figures import speed
from conformance.judging.executor import Executor, cell_task
from conformance.process import pool
from conformance.records.cell import Cell
from conformance.records.measurements import CompileCost, CompileRun, Footprint, Reason
from conformance.records.plan import Plan
from conformance.records.tasks import CEILINGS, COMPILE, FOOTPRINT, CeilingsTask, CompileTask
from conformance.store.run_files import Contents

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


def bench_jobs(contents: Contents, executor: Executor) -> list[dict[str, speed.Job]]:
    """All jobs of a bench, by name, in batches."""
    plan = contents.plan
    cells = speed.measurable(contents)
    ceilings: dict[str, speed.Job] = {}
    for device in dict.fromkeys(cell.device for cell in cells):
        precisions = tuple(dict.fromkeys(c.precision for c in cells if c.device == device))
        ceilings[ceilings_job(device)] = partial(pool.result, CEILINGS, CeilingsTask(device, precisions), plan.deadline)
    timings = speed.in_batches(
        speed.timing_jobs(plan, group, executor, figure)
        for group in speed.timing_groups(plan, contents.verdicts)
        for figure in (plan.models[group.cells[0].cell.model].figures if group.cells else ())
    )
    costs: dict[str, speed.Job] = {}
    for cell in cells:
        costs[footprint_job(cell)] = partial(footprint, plan, cell)
        if plan.models[cell.model].figures != ("fit",):
            costs[compile_job(cell)] = partial(_compile_cost, plan, cell)
    return [ceilings, *timings, costs]


def footprint(plan: Plan, cell: Cell) -> Footprint | Reason:
    """Count what a cell costs, in a child process; a reason if that fails."""
    return pool.result(FOOTPRINT, cell_task(plan, cell), plan.deadline)


def _compile_cost(plan: Plan, cell: Cell) -> CompileCost:
    """The cost of one start with an empty cache and, if the mode compiles, of further ones with the cache it filled."""
    with tempfile.TemporaryDirectory(prefix="conformance-cold-") as cache:
        task = CompileTask(cell_task(plan, cell), cache)
        wanted = ["miss", *(["hit"] * WARM_RUNS if cell.mode in plan.compiling_modes else [])]
        cold, *warm = (_compile_run(plan, task, state) for state in wanted)
    return CompileCost(cold, tuple(warm))


def _compile_run(plan: Plan, task: CompileTask, wanted: str) -> CompileRun:
    run = pool.result(COMPILE, task, plan.deadline)
    if isinstance(run, Reason):
        return CompileRun(reason=run)
    if run.cache not in ("", wanted):
        return replace(run, reason=Reason(f"cache {run.cache}", f"it should have been a {wanted}"))
    return run
