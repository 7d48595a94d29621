"""Run folders of three cells, written by a test."""

from conformance.records.cell import Cell
from conformance.records.convert import to_json
from conformance.records.plan import Environment, Plan, PlannedCell, SpecLocation
from conformance.records.verdicts import Verdict
from conformance.run import store

NAMES = ("a", "b", "c")
ENVIRONMENT = Environment(
    torch="2.9", python="3.12", system="Linux", cpu="a processor", cpu_capability="AVX2", cores=2,
    threads_per_cell=1, gpus=(), cuda="", executable="python",
)  # fmt: skip


def cell(name):
    """The id of the only cell of a model."""
    return planned(name).id


def planned(name):
    """The only cell of a model, as planned."""
    return PlannedCell(Cell(name, "eager", "fp32", "cpu"))


def plan_of(*names):
    """A plan with one cell for each model."""
    place = SpecLocation(file="/nets.py")
    return Plan(
        seed=0,
        deadline=1.0,
        environment=ENVIRONMENT,
        sources=(place,),
        models=dict.fromkeys(names, place),
        figures=dict.fromkeys(names, ("forward",)),
        cells=tuple(map(planned, names)),
    )


def verdict(name, status="PASS"):
    """A verdict with a text that is hard to store."""
    return Verdict(cell(name), status, f"text of {name} with a line\nbreak, a \r return and ünïcode", 0.25)


def write(folder, *names, status="PASS"):
    """Add verdicts to a run folder."""
    writer = store.Writer(folder)
    try:
        for name in names:
            writer.add(to_json(verdict(name, status)))
    finally:
        writer.close()
