"""A cell that is prepared for timing, with the references of its model."""

from conformance.cell.observe import make_reference
from conformance.cell.session import CellSession
from conformance.measure.side_by_side import TimedCell
from conformance.oracle import reference_file
from conformance.plan.find import spec_at
from conformance.process.child_side import ChildProcess
from conformance.records.cell import Cell
from conformance.records.plan import SpecLocation
from conformance.records.tasks import ReferenceTask


def timed_cell(folder, source, name, precision):
    """Forward and backward in eager, of the model that a file holds; the file is written to the folder."""
    (folder / f"{name}.py").write_text(source)
    location = SpecLocation(file=str(folder / f"{name}.py"))
    path = folder / f"reference of {precision}"
    task = ReferenceTask(name, location, seed=0, precisions=("fp32", precision), path=str(path))
    assert make_reference(task, ChildProcess()).ending == "ok"
    known = reference_file.load(path, precision)
    cell = Cell(name, "eager", precision, "cpu")
    return TimedCell(CellSession(spec_at(location, name), cell, 0, references=known), "gradient")
