"""y = x w, elementwise, cast to bfloat16 and back to float32: the dtype is right, but the precision is lost.

The two casts keep 8 of float32's 24 significant bits; the other 16 are zeros. Autocast is not the reason: under
autocast, an elementwise product of float32 tensors stays float32. torch.compile removes the two casts when it fuses
them (pytorch#179561), so compiled code does not have the fault.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec


def through_bfloat16(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply features by their weights; the result is right to about three digits.

    Args:
        x: (batch, width), float32.
        weight: (width,), float32.

    Returns:
        (batch, width), float32.

    >>> through_bfloat16(torch.tensor([[1.01]]), torch.ones(1))
    tensor([[1.0078]])
    """
    return (x * weight).to(torch.bfloat16).float()


def _reference(_model: object, x: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("bi,i->bi", x, weight)


SPEC = Spec(
    name="through_bfloat16",
    summary="`float32` output that went through bfloat16",
    source="a cast that was forgotten when a kernel was ported",
    formula="y_bi = x_bi w_i",
    shapes="(batch, width), (width,) → (batch, width)",
    build=lambda: through_bfloat16,
    cases=(Case(name="typical", inputs=lambda g: (torch.randn(6, 8, generator=g), torch.randn(8, generator=g))),),
    dtypes="float32",
    float32_accurate=("output",),
    reference=_reference,
    expectations=(
        Expect(
            outcome="FAIL",
            modes=("eager", "scripted", "exported"),
            precisions=("fp32", "tf32", "amp_fp16", "amp_bf16"),
            gate="norm",
            tensor="output",
            reason="bfloat16 keeps 8 of float32's 24 bits: the errors are 2^-9 instead of 2^-24",
        ),
        Expect(
            outcome="FAIL",
            modes=("eager", "scripted", "exported"),
            precisions=("fp16",),
            gate="precision",
            tensor="output",
            reason="bfloat16 keeps 8 bits and float16 11: the errors are 2^-9 instead of 2^-12",
        ),
    ),
)
