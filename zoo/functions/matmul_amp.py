"""y = a b under autocast, a Function that runs in the ambient precision: `custom_fwd` without `cast_inputs`.

Source: an article on `custom_bwd`, which leaves out `custom_fwd`. `custom_fwd` records the state of autocast on
`ctx`, and `custom_bwd` restores it for backward, wherever that runs. Here `custom_fwd` only records, so it can
decorate `setup_context`, and forward needs no `ctx`; `vmap` and `torch.func.grad` require this form. The inputs are
saved without a cast, and autograd returns their gradients in their own dtype.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from zoo.arguments import want_floating
from zoo.case import Case
from zoo.custom_ops import map_by_sample, run_in_autocast
from zoo.error_input import ErrorInput
from zoo.family import Family
from zoo.scale import Scale
from zoo.shared_expectations import SECOND_LOST, SECOND_LOST_EARLY
from zoo.spec import Spec

DEVICE_TYPES = ("cpu", "cuda", "mps", "xpu")


def _check(caller: str, a: Tensor, b: Tensor) -> None:
    want_floating(caller, "a", a)
    want_floating(caller, "b", b)
    if a.dim() != 2:  # noqa: PLR2004
        raise ValueError(f"{caller}: a must have shape (n, k), got {list(a.shape)}")
    if b.dim() != 2 or b.size(0) != a.size(1):  # noqa: PLR2004
        raise ValueError(f"{caller}: b must have shape ({a.size(1)}, m), got {list(b.shape)}")
    if a.device != b.device:
        raise ValueError(f"{caller}: b must be on the device of a, {a.device}, got {b.device}")


def _product(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype != b.dtype and not torch.is_autocast_enabled(a.device.type):
        raise TypeError(f"matmul_amp: b must have the dtype of a, {a.dtype}, outside autocast, got {b.dtype}")
    return a @ b


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    a, b = ctx.saved_tensors
    return grad @ b.t(), a.t() @ grad


def _function(device_type: str) -> type[torch.autograd.Function]:
    class MatmulAmp(torch.autograd.Function):
        generate_vmap_rule = True
        forward = staticmethod(_product)
        setup_context = staticmethod(torch.amp.custom_fwd(_save, device_type=device_type))
        backward = staticmethod(torch.amp.custom_bwd(_backward, device_type=device_type))

    return MatmulAmp


FUNCTIONS = {device_type: _function(device_type) for device_type in DEVICE_TYPES}


@torch.jit.ignore  # type: ignore[untyped-decorator]
def _apply(a: Tensor, b: Tensor) -> Tensor:
    result: Tensor = FUNCTIONS[a.device.type].apply(a, b)
    return result


def matmul_amp(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product that may be differentiated outside the autocast block it ran in.

    Args:
        a: (n, k), floating.
        b: (k, m), floating, on the device of `a`. Without autocast it must have the dtype of `a`.

    Returns:
        (n, m), in the autocast dtype. Without autocast, and for float64, which autocast does not cast, the result
        has the dtype of `a`. The function supports `vmap` and `torch.func.grad`.

    Raises:
        TypeError: one of them is no tensor, a dtype is not floating, or the two dtypes differ and autocast is off.
        ValueError: `a` and `b` are not two matrices with equal inner sizes, or their devices differ.

    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     matmul_amp(torch.ones(1, 3), torch.ones(3, 2))
    tensor([[3., 3.]], dtype=torch.bfloat16)
    """
    _check("matmul_amp", a, b)
    result: Tensor = _apply(a, b)
    return result


_operator = torch.library.custom_op("torch_conformance::matmul_amp", _product, mutates_args=())
_operator.register_fake(_product)


def _operator_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    with torch.autocast(grad.device.type, enabled=False):  # all three already have the dtype of the product
        return _backward(ctx, grad)


_operator.register_autograd(_operator_backward, setup_context=_save)
map_by_sample(_operator)
run_in_autocast("matmul_amp")


def matmul_amp_op(a: Tensor, b: Tensor) -> Tensor:
    """`matmul_amp` as an operator of torch.library, which torch.jit can also save; contract of `matmul_amp`.

    It supports `vmap`; `torch.func.grad` raises an error, as for all custom operators (pytorch#170834).

    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     matmul_amp_op(torch.ones(1, 3), torch.ones(3, 2))
    tensor([[3., 3.]], dtype=torch.bfloat16)
    """
    _check("matmul_amp_op", a, b)
    result: Tensor = torch.ops.torch_conformance.matmul_amp(a, b)
    return result


def _reference(_model: object, a: Tensor, b: Tensor) -> Tensor:
    return (a.unsqueeze(2) * b).sum(1)


def _matrices(n: int, k: int, m: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(n, k, generator=generator), torch.randn(k, m, generator=generator)


ROWS = 64  # the rows of a, at every width

CASES = (
    Case(name="typical", inputs=partial(_matrices, 6, 8, 5)),
    Case(name="one-by-one", inputs=partial(_matrices, 1, 1, 1)),
    Case(name="empty", inputs=partial(_matrices, 0, 8, 5)),
    Case(name="non-contiguous", inputs=lambda g: tuple(x.t() for x in reversed(_matrices(5, 8, 6, g)))),
)


def _scale(model: Callable[[Tensor, Tensor], Tensor]) -> Scale:
    return Scale(
        size_name="width",
        sizes=(16, 64, 256, 1024),
        working=2**9,
        working_on_cuda=2**13,
        build=lambda _: model,
        inputs=lambda n, g: _matrices(ROWS, n, n, g),
    )


ERROR_INPUTS = (
    ErrorInput(
        name="integers",
        inputs=lambda g: tuple(t.long() for t in _matrices(6, 8, 5, g)),
        error=TypeError,
        match="a must have a floating dtype",
    ),
    ErrorInput(
        name="sizes-differ",
        inputs=lambda g: (torch.randn(6, 8, generator=g), torch.randn(7, 5, generator=g)),
        error=ValueError,
        match="shape",
    ),
    ErrorInput(
        name="batches",
        inputs=lambda g: (torch.randn(2, 6, 8, generator=g), torch.randn(8, 5, generator=g)),
        error=ValueError,
        match="shape",
    ),
    ErrorInput(
        name="devices-differ",
        inputs=lambda g: (torch.randn(6, 8, generator=g), torch.empty(8, 5, device="meta")),
        error=ValueError,
        match="b must be on the device of a",
    ),
)

SPEC = Spec(
    name="matmul_amp",
    summary="matrix product in the ambient precision, by custom_fwd and custom_bwd",
    source="articles on automatic mixed precision, custom_bwd",
    formula="y = a b",
    shapes="(n, k), (k, m) → (n, m)",
    build=lambda: matmul_amp,
    cases=CASES,
    error_inputs=ERROR_INPUTS,
    dtypes="follows",
    twice_differentiable=True,
    vmappable=True,
    one_graph=True,
    reference=_reference,
    expectations=(SECOND_LOST, SECOND_LOST_EARLY),
    family=Family(sizes={"n": (1, 9), "k": (1, 17), "m": (1, 9)}, inputs=_matrices),
    scale=_scale(matmul_amp),
)
OP = replace(
    SPEC,
    name="matmul_amp_op",
    summary="`matmul_amp` as a custom operator with an autocast kernel",
    build=lambda: matmul_amp_op,
    twin="matmul_amp",
    scale=_scale(matmul_amp_op),
    expectations=(
        SECOND_LOST,
        SECOND_LOST_EARLY,
    ),
)
