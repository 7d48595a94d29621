"""Files with one spec, written by a test, and plans made of them in this process."""

import pytest

from conformance.errors import UsageError
from conformance.plan import matrix
from conformance.process.child_side import ChildProcess
from conformance.records.tasks import PlanRequest

MODEL = """
import torch
from zoo import Case, Expect, Spec

def inputs(generator):
    return (torch.randn(3, generator=generator),)

{name} = Spec(
    name="{name}",
    summary="s",
    source="s",
    build=lambda: torch.nn.Identity(),
    cases=(Case(name="typical", inputs=inputs),),
    expectations=({expectations}),
)
"""


def file_of(folder, name, expectations="", stem=""):
    """Write a file with one spec; returns its path as text."""
    path = folder / f"{stem or name}.py"
    path.write_text(MODEL.format(name=name, expectations=expectations))
    return str(path)


def planned(*sources, modes=(), precisions=(), devices=(), **others):
    """The plan of some sources, made in this process."""
    request = PlanRequest(sources, modes, precisions, devices, seed=3, deadline=7.0, **others)
    return matrix.make(request, ChildProcess())


def complaint(*sources, **axes):
    """The text of the usage error that ends the planning of some sources."""
    with pytest.raises(UsageError) as caught:
        planned(*sources, **axes)
    return str(caught.value)
