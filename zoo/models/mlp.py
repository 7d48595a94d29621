"""A plain baseline: y = W2 relu(W1 x + b1) + b2 with sizes 64, 32, 10.

Source: "Effective PyTorch", where it is the first model that uses ready-made layers.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from zoo.arguments import want_sizes
from zoo.case import Case
from zoo.claim import Claim
from zoo.family import Family
from zoo.scale import Scale
from zoo.spec import Spec

GPU_SIZES = (256, 1024, 4096)  # at smaller sizes the time is that of launching kernels


def mlp(in_features: int = 64, hidden_features: int = 32, out_features: int = 10) -> nn.Sequential:
    """Build a two-layer perceptron that maps (*, in_features), any floating dtype, to (*, out_features).

    Args:
        in_features: trailing size of the input.
        hidden_features: number of hidden units.
        out_features: trailing size of the result.

    Raises:
        TypeError, ValueError: a size is no integer of at least 1.
        RuntimeError: on call, if the trailing size of the input is not `in_features`, or if its dtype differs from
            that of the parameters without autocast (torch names both).

    >>> mlp()(torch.ones(2, 3, 64)).shape
    torch.Size([2, 3, 10])
    """
    want_sizes("mlp", in_features=in_features, hidden_features=hidden_features, out_features=out_features)
    first, last = nn.Linear(in_features, hidden_features), nn.Linear(hidden_features, out_features)
    return nn.Sequential(first, nn.ReLU(), last)


def _reference(model: nn.Sequential, x: Tensor) -> Tensor:
    first, second = model[0], model[2]
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    hidden = torch.einsum("...i,hi->...h", x, first.weight) + first.bias
    return torch.einsum("...h,oh->...o", hidden * (hidden > 0), second.weight) + second.bias


def _rows(count: int, generator: torch.Generator) -> tuple[Tensor]:
    return (torch.randn(count, 64, generator=generator),)


SPEC = Spec(
    name="mlp",
    summary="Linear 64 to 32, ReLU, Linear 32 to 10",
    source="Effective PyTorch, encapsulate your model with Modules",
    formula="y = W2 relu(W1 x + b1) + b2",
    shapes="(..., 64) → (..., 10)",
    build=mlp,
    cases=(
        Case(name="typical", inputs=partial(_rows, 24), independent_samples=True),
        Case(name="one-row", inputs=partial(_rows, 1), independent_samples=True),
        Case(name="empty", inputs=partial(_rows, 0)),
        Case(
            name="non-contiguous",
            inputs=lambda g: (torch.randn(64, 16, generator=g).t(),),
            independent_samples=True,
        ),
    ),
    dtypes="follows",
    one_graph=True,
    reference=_reference,
    family=Family(sizes={"rows": (1, 17)}, inputs=_rows),
    scale=Scale(
        size_name="width",
        sizes=(16, 64, 256, 1024),
        working=2**9,
        working_on_cuda=2**13,
        build=lambda n: mlp(n, n, n),
        inputs=lambda n, g: (torch.randn(64, n, generator=g),),
    ),
    claims=(
        Claim(
            text="automatic mixed precision roughly halves the training time",
            source="articles on automatic mixed precision; the GPU is not named",
            factor=2.0,
            quantity="step",
            precision="amp_fp16",
            device="cuda",
            sizes=GPU_SIZES,
        ),
        Claim(
            text="compiled training is 1.51 times faster under automatic mixed precision, over 163 models",
            source="PyTorch 2.0 announcement, on an NVIDIA A100",
            factor=1.51,
            quantity="step",
            mode="compiled",
            precision="amp_fp16",
            baseline_precision="amp_fp16",
            device="cuda",
            sizes=GPU_SIZES,
        ),
        Claim(
            text="compiled training is 1.21 times faster in float32, over 163 models",
            source="PyTorch 2.0 announcement, on an NVIDIA A100",
            factor=1.21,
            quantity="step",
            mode="compiled",
            device="cuda",
            sizes=GPU_SIZES,
        ),
    ),
)
