"""y = a b under autocast, a Function that runs in the ambient precision: `custom_fwd` without `cast_inputs`.

Source: two articles on automatic mixed precision, one of them on `custom_bwd`. `custom_fwd` records the state
of autocast, and `custom_bwd` restores it for backward, wherever that runs. The leaves are saved as they came,
and autograd returns their gradients in their own dtype. Both decorators name one device type: one class each.
"""

from typing import Any

import torch
from torch import Tensor

from zoo.spec import Case, Spec

DEVICE_TYPES = ("cpu", "cuda", "mps", "xpu")


def _function(device_type: str) -> type[torch.autograd.Function]:
    class MatmulAmp(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device_type)  # type: ignore[untyped-decorator]
        def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type=device_type)  # type: ignore[untyped-decorator]
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            a, b = ctx.saved_tensors
            return grad @ b.t(), a.t() @ grad

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
        b: (k, m), floating; without autocast, of the dtype of `a`.

    Returns:
        (n, m), in the autocast dtype, or theirs without autocast (and for float64, which autocast leaves be).

    Raises:
        ValueError: they are not two matrices whose inner sizes agree.
        RuntimeError: their dtypes differ and autocast is off.
    """
    if a.dim() != 2 or b.dim() != 2 or a.size(1) != b.size(0):  # noqa: PLR2004
        raise ValueError(f"matmul_amp: want shapes (n, k) and (k, m), got {list(a.shape)} and {list(b.shape)}")
    result: Tensor = _apply(a, b)
    return result


def _reference(_model: object, a: Tensor, b: Tensor) -> Tensor:
    return (a.unsqueeze(2) * b).sum(1)


def _matrices(n: int, k: int, m: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(n, k, generator=generator), torch.randn(k, m, generator=generator)


SPEC = Spec(
    name="matmul_amp",
    summary="matrix product in the ambient precision, by custom_fwd and custom_bwd",
    source="articles on automatic mixed precision, custom_bwd",
    build=lambda: matmul_amp,
    cases=(
        Case(name="typical", inputs=lambda g: _matrices(6, 8, 5, g)),
        Case(name="one-by-one", inputs=lambda g: _matrices(1, 1, 1, g)),
        Case(name="empty", inputs=lambda g: _matrices(0, 8, 5, g)),
        Case(name="non-contiguous", inputs=lambda g: tuple(x.t() for x in reversed(_matrices(5, 8, 6, g)))),
    ),
    dtypes="follows",
    twice_differentiable=True,
    one_graph=True,
    reference=_reference,
)
