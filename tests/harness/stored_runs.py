"""Run folders of three cells, written by a test."""

from conformance.records.cell import Cell, Verdict
from conformance.records.convert import to_json
from conformance.records.plan import PlannedCell
from conformance.store import run_files
from harness.made_by_hand import plan_for

NAMES = ("a", "b", "c")


def cell(name):
    """The id of the only cell of a model."""
    return planned(name).id


def planned(name):
    return PlannedCell(Cell(name, "eager", "fp32", "cpu"))


def plan_of(*names):
    return plan_for(*map(planned, names))


def verdict(name, status="PASS"):
    """A verdict with a text that is hard to store."""
    return Verdict(cell(name), status, f"text of {name} with a line\nbreak, a \r return and ünïcode", 0.25)


def write(folder, *names, status="PASS"):
    writer = run_files.Writer(folder)
    try:
        for name in names:
            writer.add(to_json(verdict(name, status)))
    finally:
        writer.close()
