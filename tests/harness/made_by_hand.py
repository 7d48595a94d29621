"""Plans and timings made by hand, for tests that run nothing."""

from dataclasses import replace

from conformance.records.cell import Cell, Verdict
from conformance.records.measurements import CellTiming, Ratio, Timing
from conformance.records.plan import Environment, Plan, PlannedCell, PlannedModel, SpecLocation

ENVIRONMENT = Environment(
    torch="2.13.0",
    python="3.11.9",
    system="Linux x86_64",
    cpu="a processor",
    cpu_capability="AVX2",
    cores=2,
    threads_per_cell=1,
    gpus=(),
    cuda="",
    executable="python",
)


NOWHERE = PlannedModel(SpecLocation("nowhere"), ("gradient",))


def plan_for(*cells, figures=("gradient",), **others):
    """A plan of cells, or of planned cells; every model has the same figures."""
    planned = tuple(cell if isinstance(cell, PlannedCell) else PlannedCell(cell) for cell in cells)
    return Plan(
        seed=0,
        deadline=60.0,
        environment=ENVIRONMENT,
        modes={},
        models=dict.fromkeys((p.cell.model for p in planned), replace(NOWHERE, figures=tuple(figures))),
        cells=planned,
        **others,
    )


def with_models(plan, fields):
    """The plan with other fields of some models, or with more models, by name."""
    changed = {name: replace(plan.models.get(name, NOWHERE), **of) for name, of in fields.items()}
    return replace(plan, models={**plan.models, **changed})


def passed(plan, **status):
    """Verdicts of all cells of a plan: PASS, or the one given for the mode or for mode_precision."""

    def of(cell):
        return status.get(f"{cell.mode}_{cell.precision}", status.get(cell.mode, "PASS"))

    return {p.id: Verdict(p.id, of(p.cell)) for p in plan.cells}


def timed(*, seconds=1e-3, warm_calls=6, **middles):
    """The timing of one process of a model "net" on the CPU: the ratio of each mode to eager fp32."""
    base = Cell("net", "eager", "fp32", "cpu").id
    cells = {base: CellTiming(seconds, warm_calls)}
    for mode, middle in middles.items():
        ratios = {base: Ratio(middle, 0.99 * middle, 1.01 * middle, 100)}
        cells[Cell("net", mode, "fp32", "cpu").id] = CellTiming(seconds / middle, warm_calls, ratios)
    return Timing("gradient", cells)
