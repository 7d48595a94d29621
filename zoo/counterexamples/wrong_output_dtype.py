"""y_i = x_i sin²(π i / n), a window that was computed in float64: float32 in, float64 out.

NumPy computes in float64, and so does whoever copies its recipe; a tensor of float64 promotes every float32 that
meets it, and everything after it runs at double cost. Values are better than asked, so only the dtype tells.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec


def wrong_output_dtype(x: Tensor) -> Tensor:
    """Rows under a Hann window.

    Args:
        x: (batch, n), floating.

    Returns:
        (batch, n), float64 whatever `x` is.

    >>> wrong_output_dtype(torch.ones(1, 4)).dtype
    torch.float64
    """
    steps = torch.arange(x.size(1), dtype=torch.float64, device=x.device)
    return x * torch.sin(steps * (math.pi / x.size(1))).square()


def _reference(_model: object, x: Tensor) -> Tensor:
    """The same window as torch has it: (1 - cos(2 π i / n)) / 2."""
    return x * torch.hann_window(x.size(1), dtype=x.dtype)


SPEC = Spec(
    name="wrong_output_dtype",
    summary="a float64 window promotes the output to float64",
    source="a window computed as NumPy does, in float64",
    formula="y_i = x_i sin²(π i / n)",
    shapes="(batch, n) → (batch, n)",
    build=lambda: wrong_output_dtype,
    cases=(Case(name="typical", inputs=lambda g: (torch.randn(3, 8, generator=g),)),),
    dtypes="input",
    reference=_reference,
    expectations=(
        Expect(
            outcome="dtype",
            tensor="output",
            dtype="float64",
            reason="the window is a float64 tensor with dimensions, and promotes float32 to float64",
            link="https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc",
        ),
    ),
)
