"""y_i = x_i sin²(π i / n), with a window that is computed in float64: float32 in, float64 out.

NumPy computes in float64, and a copy of its recipe does the same. A float64 tensor promotes the float32 tensors that
it is combined with, so everything after it costs twice as much. The values are more precise than required, so only
the dtype shows the fault.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec


def wrong_output_dtype(x: Tensor) -> Tensor:
    """Multiply each row by a Hann window.

    Args:
        x: (batch, n), floating.

    Returns:
        (batch, n), float64 for every dtype of `x`.

    >>> wrong_output_dtype(torch.ones(1, 4)).dtype
    torch.float64
    """
    steps = torch.arange(x.size(1), dtype=torch.float64, device=x.device)
    return x * torch.sin(steps * (math.pi / x.size(1))).square()


def _reference(_model: object, x: Tensor) -> Tensor:
    """Use torch's form of the same window, (1 - cos(2 π i / n)) / 2."""
    return x * torch.hann_window(x.size(1), dtype=x.dtype)


SPEC = Spec(
    name="wrong_output_dtype",
    summary="a float64 window promotes the output to float64",
    source="a window computed in float64, as NumPy does",
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
