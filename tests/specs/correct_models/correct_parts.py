"""What the files of correct models share. This file is no source of a run; the sources beside it import it."""

import torch
from torch import nn

from zoo import Case, Expect, Spec

PRECISIONS = ("fp32", "amp_fp16", "amp_bf16")
Cells = list[tuple[str, str, str]]


class Parts(nn.Module):
    """A module of the parts that it is given by name: modules, parameters, buffers (other tensors) and plain values."""

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)


def rows(*shape, name="typical", rowwise=False):
    return Case(name=name, inputs=lambda g: (torch.randn(*shape, generator=g),), independent_samples=rowwise)


def normals(*shapes):
    """A case of several inputs."""
    return drawn(lambda g: tuple(torch.randn(shape, generator=g) for shape in shapes))


def drawn(draw):
    return Case(name="typical", inputs=draw)


def green(
    cells,
    name,
    build,
    *cases,
    precisions=PRECISIONS,
    also=None,
    **fields,
):
    """Make a spec and note its cells: eager in `precisions`, other modes as `also` says; compiling takes long."""
    for mode, chosen in {"eager": precisions, **(also or {})}.items():
        cells.extend((name, mode, precision) for precision in chosen)
    cases = cases or (rows(6, 8),)
    return Spec(name=name, summary=name, source="a right model", build=build, cases=cases, **fields)


def function(function):
    return lambda: function


def scripted_dtype(precision, dtype):
    return Expect(
        outcome="dtype",
        modes=("scripted",),
        precisions=(precision,),
        tensor="output",
        dtype=dtype,
        reason="TorchScript's autocast pass has rules of its own",
    )
