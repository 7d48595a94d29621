"""Tensors of rank 0 to 3 that a model creates in its forward, each added to the input.

Source: "Effective PyTorch", which begins with `torch.tensor(3)`, `torch.tensor([1, 2])`, a matrix of zeros and
`torch.rand(2, 2, 2)`. Written so in a forward, the first two hold int64 and all are on the CPU; with a point in the
number they hold float32, whatever the dtype of the input. Autocast lowers no creation. Added to float16, a tensor of
float32 makes the result float32, but one of rank 0 does not: it adapts, so the mistake shows only in the others. A
forward therefore names dtype and device. `torch.rand` draws from a generator of the whole process, so two calls differ
(see `global_rng`, and `seeded_dropout` for what to do); here stand fixed numbers in its place.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from zoo.arguments import want_floating
from zoo.case import Case
from zoo.error_input import ErrorInput
from zoo.family import Family
from zoo.scale import Scale
from zoo.spec import Spec


def add_created(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Add to `x` the scalar 3, the vector (1, 2), the matrix ((1, 2), (3, 4)) and a cube of 0 to 7, each created here.

    Args:
        x: (..., 2, 2, 2), floating.

    Returns:
        Four tensors with shape, dtype and device of `x`, also under autocast.

    Raises:
        TypeError: `x` is no tensor, or does not hold floating-point numbers.
        ValueError: `x` does not end in the sizes 2, 2, 2.

    >>> [y.sum().item() for y in add_created(torch.zeros(2, 2, 2))]
    [24.0, 12.0, 20.0, 28.0]
    >>> (torch.ones(2).half() + torch.tensor(3.0)).dtype, (torch.ones(2).half() + torch.tensor([3.0])).dtype
    (torch.float16, torch.float32)
    """
    want_floating("add_created", "x", x)
    if list(x.shape[-3:]) != [2, 2, 2]:
        raise ValueError(f"add_created: x must have shape (..., 2, 2, 2), got {list(x.shape)}")
    scalar = torch.tensor(3, dtype=x.dtype, device=x.device)
    vector = torch.tensor([1, 2], dtype=x.dtype, device=x.device)
    matrix = torch.tensor([[1, 2], [3, 4]], dtype=x.dtype, device=x.device)
    cube = torch.arange(8, dtype=x.dtype, device=x.device).reshape(2, 2, 2)
    return x + scalar, x + vector, x + matrix, x + cube


def _reference(_model: object, x: Tensor) -> tuple[Tensor, ...]:
    """Add plain numbers, element by element."""
    i, j, k = torch.meshgrid(*3 * (torch.arange(2, device=x.device),), indexing="ij")
    return x + 3, x + (k + 1), x + (2 * j + k + 1), x + (4 * i + 2 * j + k)


def _cubes(shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor]:
    return (torch.randn(*shape, 2, 2, 2, generator=generator),)


SPEC = Spec(
    name="add_created",
    summary="a scalar, a vector, a matrix and a cube that forward creates, each added to the input",
    source="Effective PyTorch, PyTorch basics",
    formula="x + 3, x + (1, 2), x + ((1, 2), (3, 4)), x + cube of 0 to 7",
    shapes="(..., 2, 2, 2) → four times (..., 2, 2, 2)",
    build=lambda: add_created,
    cases=(
        Case(name="typical", inputs=partial(_cubes, (5,))),
        Case(name="one-cube", inputs=partial(_cubes, ())),
        Case(name="empty", inputs=partial(_cubes, (0,))),
        Case(name="non-contiguous", inputs=lambda g: (torch.randn(2, 2, 2, 6, generator=g).permute(3, 2, 1, 0)[::2],)),
    ),
    error_inputs=(
        ErrorInput(
            name="no-cube",
            inputs=lambda g: (torch.randn(5, 2, 2, generator=g),),
            error=ValueError,
            match="x must have shape",
        ),
        ErrorInput(
            name="integers",
            inputs=lambda _: (torch.ones(2, 2, 2, dtype=torch.int64),),
            error=TypeError,
            match="x must have a floating dtype",
        ),
    ),
    dtypes="input",
    one_graph=True,
    float32_accurate=tuple(f"output[{rank}]" for rank in range(4)),
    reference=_reference,
    family=Family(sizes={"cubes": (1, 9)}, inputs=lambda cubes, g: _cubes((cubes,), g)),
    scale=Scale(
        size_name="rows",
        sizes=(16, 256, 4096),
        working=2**17,
        working_on_cuda=2**23,
        build=lambda _: add_created,
        inputs=lambda n, g: _cubes((n,), g),
    ),
)
