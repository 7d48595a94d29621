"""A function that a child process calls to open a cell, and to tell what it found."""

import warnings

import torch

from conformance.axes import MODES
from conformance.cell.session import open_task
from conformance.process import child
from conformance.records.cell import TensorName
from conformance.records.convert import to_json
from conformance.records.tasks import CellTask, Target


def opened(task: CellTask, process):
    """Open a cell after every switch was set the wrong way round."""
    switches = torch.backends.cuda.matmul, torch.backends.cudnn
    torch.set_num_threads(3)
    warnings.simplefilter("error")
    for switch in switches:
        switch.allow_tf32 = task.cell.precision != "tf32"
    session = open_task(task, process)
    warnings.warn("of a model or a compiler", stacklevel=1)
    (case, *_) = session.spec.cases
    known = session.known(case)
    return {
        "spec": session.spec.name,
        "cell": session.cell.id,
        "seed": session.seed,
        "mode": session.mode.name,
        "precision": session.precision.name,
        "is_eager": session.is_eager,
        "expect": [to_json(e) for e in session.expect],
        "references": sorted(session.references),
        "tensors": sorted(map(str, known.tensors)),
        "with_other_weights": [
            sorted(one.spread) for one in session.with_other_weights(case, TensorName("gradient", "linear1.bias"))
        ],
        "same_process": session.process is process,
        "modes": sorted(MODES),
        "threads": torch.get_num_threads(),
        "tf32": [switch.allow_tf32 for switch in switches],
    }


OPENED = Target(f"{__name__}:opened", CellTask, dict)


def open_in_child(task):
    """How opening a cell in a fresh process ended."""
    return child.run(OPENED, task, deadline=120.0)
