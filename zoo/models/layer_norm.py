"""Layer normalisation over the last axis, written out: y = (x - mean x) / √(var x + eps) · weight + bias.

Source: Ba, Kiros and Hinton 2016, "Layer Normalization", arXiv:1607.06450. `LayerNormByHand` has the parameters of
`torch.nn.LayerNorm` by name and gives what it gives. It computes in float32 whatever the dtype of its input. Gradients
too: on the CPU, torch's kernel adds up the gradient of the bias in the dtype of the input, which loses most of it in
bfloat16 (zoo/probes/layer_norm_sums_in_low_precision.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from zoo.arguments import want_floats, want_sizes, want_tensors
from zoo.case import Case
from zoo.error_input import ErrorInput
from zoo.expect import Expect
from zoo.family import Family
from zoo.scale import Scale
from zoo.shared_expectations import BEYOND_FLOAT16, TANGENT_LOST
from zoo.spec import Spec


class LayerNormByHand(nn.Module):
    """Layer normalisation over the last axis, with a weight and a bias for each feature.

    Args:
        normalized_shape: size of the last axis.
        eps: positive float that is added to the variance.

    Raises:
        TypeError: `normalized_shape` is not an integer.
        ValueError: `normalized_shape` is below 1, or `eps` is not a positive float.

    >>> model, torchs = LayerNormByHand(4), nn.LayerNorm(4)
    >>> torchs.load_state_dict(model.state_dict())
    <All keys matched successfully>
    >>> x = torch.randn(3, 4)
    >>> torch.testing.assert_close(model(x), torchs(x))
    """

    def __init__(self, normalized_shape: int, eps: float = 1e-5) -> None:
        super().__init__()
        want_sizes("LayerNormByHand", normalized_shape=normalized_shape)
        want_floats("LayerNormByHand", eps=eps)
        if not isinstance(eps, float) or not eps > 0:
            raise ValueError(f"LayerNormByHand: eps must be a positive float, got {eps}")
        self.normalized_shape = normalized_shape
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(normalized_shape))
        self.bias = nn.Parameter(torch.zeros(normalized_shape))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (*, normalized_shape), any floating dtype; the result has the same shape and dtype.

        Raises:
            ValueError: the trailing size of `x` is not `normalized_shape`.
            TypeError: `x` is not a tensor of floating-point numbers.
        """
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            want_tensors("LayerNormByHand", x=x)
        if x.dim() == 0 or x.size(-1) != self.normalized_shape:
            raise ValueError(
                f"LayerNormByHand: x must have trailing size {self.normalized_shape}, got shape {list(x.shape)}"
            )
        if not x.is_floating_point():
            raise TypeError(f"LayerNormByHand: x must have a floating dtype, got {x.dtype}")
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        centred = wide - wide.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        return (centred * torch.rsqrt(variance + self.eps) * self.weight + self.bias).to(x.dtype)


def _reference(model: LayerNormByHand, x: Tensor) -> Tensor:
    """Centre by a projection, and compute the variance from all pairs of features."""
    width = x.size(-1)
    projection = torch.eye(width, dtype=x.dtype) - torch.full((width, width), 1 / width, dtype=x.dtype)
    pairs = x.unsqueeze(-1) - x.unsqueeze(-2)
    variance = pairs.square().sum((-1, -2)) / (2 * width**2)
    return x @ projection / (variance + model.eps).sqrt().unsqueeze(-1) @ torch.diag(model.weight) + model.bias


def _draw_parameters(model: nn.Module) -> None:
    """Draw a weight and a bias: with ones and zeros, a formula that mixes them up could go unseen."""
    nn.init.uniform_(model.get_parameter("weight"), 0.5, 1.5)
    nn.init.normal_(model.get_parameter("bias"))


def _offset(generator: torch.Generator) -> tuple[Tensor]:
    """Draw rows whose mean is 64 times their deviation; the variance from sums of squares would be noise."""
    return (64 + torch.randn(6, 16, generator=generator),)


def _extreme(generator: torch.Generator) -> tuple[Tensor]:
    """Draw rows of sizes from 2⁻⁸ to 2⁸: below the first, eps is larger than the variance."""
    return (torch.randn(9, 16, generator=generator) * torch.logspace(-8, 8, 9, base=2).unsqueeze(1),)


def _constant_rows(generator: torch.Generator) -> tuple[Tensor]:
    x = torch.randn(4, 16, generator=generator)
    x[::2] = 0.5
    return (x,)


def _scale(build: Callable[[int], nn.Module]) -> Scale:
    return Scale(
        size_name="width",
        sizes=(16, 64, 256, 1024),
        working=2**13,
        working_on_cuda=2**20,
        build=build,
        inputs=lambda n, g: (torch.randn(64, n, generator=g),),
    )


READ_AFTER_REMOVAL = Expect(
    outcome="ERROR",
    modes=("compiled",),
    devices=("cpu",),
    torch=">=2.5,<2.7",
    error="AssertionError",
    match=r"^buf\d+$",
    reason="the backward for any number of rows reads a buffer that Inductor has removed; its own assertion finds it",
    link="https://github.com/pytorch/pytorch/pull/144243",
)
SPEC = Spec(
    name="layer_norm",
    summary="layer normalisation, written out",
    source="Ba, Kiros and Hinton 2016, Layer Normalization, arXiv:1607.06450",
    formula="y = (x - mean x) / √(var x + eps) · weight + bias",
    shapes="(..., n) → (..., n)",
    build=partial(LayerNormByHand, normalized_shape=16),
    cases=(
        Case(name="typical", inputs=lambda g: (torch.randn(2, 6, 16, generator=g),)),
        Case(name="one-row", inputs=lambda g: (torch.randn(16, generator=g),)),
        Case(name="empty", inputs=lambda _: (torch.empty(0, 16),)),
        Case(name="offset", inputs=_offset),
        Case(name="extreme", inputs=_extreme),
        Case(name="constant-rows", inputs=_constant_rows),
        Case(name="non-contiguous", inputs=lambda g: (torch.randn(16, 5, generator=g).t(),)),
    ),
    error_inputs=(
        ErrorInput(
            name="too-wide", inputs=lambda _: (torch.ones(4, 17),), error=ValueError, match="x must have trailing size"
        ),
        ErrorInput(
            name="integers",
            inputs=lambda _: (torch.ones(4, 16, dtype=torch.int64),),
            error=TypeError,
            match="x must have a floating dtype",
        ),
    ),
    initialise=_draw_parameters,
    dtypes="input",
    twice_differentiable=True,
    vmappable=True,
    forward_mode=True,
    one_graph=True,
    float32_accurate=("output", "gradient of x", "gradient of weight", "gradient of bias"),
    reference=_reference,
    expectations=(TANGENT_LOST, READ_AFTER_REMOVAL),
    family=Family(
        sizes={"batch": (1, 5), "tokens": (1, 9)},
        inputs=lambda batch, tokens, g: (torch.randn(batch, tokens, 16, generator=g),),
    ),
    scale=_scale(LayerNormByHand),
)
NATIVE = replace(
    SPEC,
    name="layer_norm_native",
    summary="layer normalisation by torch.nn.LayerNorm",
    build=partial(nn.LayerNorm, normalized_shape=16),
    error_inputs=(
        ErrorInput(
            name="too-wide", inputs=lambda _: (torch.ones(4, 17),), error=RuntimeError, match="normalized_shape"
        ),
    ),
    twin="layer_norm",
    expectations=(
        replace(TANGENT_LOST, precisions=("amp_fp16", "amp_bf16")),
        BEYOND_FLOAT16,
    ),
    scale=_scale(nn.LayerNorm),
)
