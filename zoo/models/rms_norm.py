"""Normalisation by the root mean square of the last axis, written out: y = x / √(mean x² + eps) · weight.

Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", arXiv:1910.07467. It is layer normalisation
without the mean and without the bias. `RMSNormByHand` has the parameter of `torch.nn.RMSNorm` by name. It squares and
adds up in float32 whatever the dtype of its input: in float16, the square of 256 is infinite. Its eps is a number.
torch's default is the machine epsilon of the input's dtype, so there the result depends on the precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from zoo.arguments import want_floats, want_sizes, want_tensors
from zoo.case import Case
from zoo.claim import Claim
from zoo.error_input import ErrorInput
from zoo.family import Family
from zoo.scale import Scale
from zoo.shared_expectations import TANGENT_LOST
from zoo.spec import Spec

EPS = 1e-6


class RMSNormByHand(nn.Module):
    """Normalisation by the root mean square of the last axis, with a weight for each feature.

    Args:
        normalized_shape: size of the last axis.
        eps: positive float that is added to the mean square.

    Raises:
        TypeError: `normalized_shape` is not an integer.
        ValueError: `normalized_shape` is below 1, or `eps` is not a positive float.

    >>> model, torchs = RMSNormByHand(4), nn.RMSNorm(4, eps=EPS)
    >>> torchs.load_state_dict(model.state_dict())
    <All keys matched successfully>
    >>> x = torch.randn(3, 4)
    >>> torch.testing.assert_close(model(x), torchs(x))
    """

    def __init__(self, normalized_shape: int, eps: float = EPS) -> None:
        super().__init__()
        want_sizes("RMSNormByHand", normalized_shape=normalized_shape)
        want_floats("RMSNormByHand", eps=eps)
        if not isinstance(eps, float) or not eps > 0:
            raise ValueError(f"RMSNormByHand: eps must be a positive float, got {eps}")
        self.normalized_shape = normalized_shape
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(normalized_shape))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (*, normalized_shape), any floating dtype; the result has the same shape and dtype.

        Raises:
            ValueError: the trailing size of `x` is not `normalized_shape`.
            TypeError: `x` is not a tensor of floating-point numbers.
        """
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            want_tensors("RMSNormByHand", x=x)
        if x.dim() == 0 or x.size(-1) != self.normalized_shape:
            raise ValueError(
                f"RMSNormByHand: x must have trailing size {self.normalized_shape}, got shape {list(x.shape)}"
            )
        if not x.is_floating_point():
            raise TypeError(f"RMSNormByHand: x must have a floating dtype, got {x.dtype}")
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean_square = wide.square().mean(-1, keepdim=True)
        return (wide * torch.rsqrt(mean_square + self.eps) * self.weight).to(x.dtype)


def _reference(model: RMSNormByHand, x: Tensor) -> Tensor:
    """Scale each row by its Euclidean length, as a product of matrices."""
    assert model.eps is not None
    length = torch.linalg.vector_norm(x, dim=-1)
    divisor = torch.hypot(length / x.size(-1) ** 0.5, torch.full_like(length, model.eps**0.5))
    return x / divisor.unsqueeze(-1) @ torch.diag(model.weight)


def _draw_weight(model: nn.Module) -> None:
    """Draw a weight: with ones, a formula that leaves it out could go unseen."""
    nn.init.uniform_(model.get_parameter("weight"), 0.5, 1.5)


def _extreme(generator: torch.Generator) -> tuple[Tensor]:
    """Draw rows of sizes from 2⁻¹² to 2¹²: in the first, eps is larger than the mean square."""
    return (torch.randn(9, 16, generator=generator) * torch.logspace(-12, 12, 9, base=2).unsqueeze(1),)


def _zero_rows(generator: torch.Generator) -> tuple[Tensor]:
    x = torch.randn(4, 16, generator=generator)
    x[::2] = 0
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


SPEC = Spec(
    name="rms_norm",
    summary="normalisation by the root mean square, written out",
    source="Zhang and Sennrich 2019, Root Mean Square Layer Normalization, arXiv:1910.07467",
    formula="y = x / √(mean x² + eps) · weight",
    shapes="(..., n) → (..., n)",
    build=partial(RMSNormByHand, normalized_shape=16),
    cases=(
        Case(name="typical", inputs=lambda g: (torch.randn(2, 6, 16, generator=g),)),
        Case(name="one-row", inputs=lambda g: (torch.randn(16, generator=g),)),
        Case(name="empty", inputs=lambda _: (torch.empty(0, 16),)),
        Case(name="extreme", inputs=_extreme),
        Case(name="zero-rows", inputs=_zero_rows),
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
    initialise=_draw_weight,
    dtypes="input",
    twice_differentiable=True,
    vmappable=True,
    forward_mode=True,
    one_graph=True,
    float32_accurate=("output", "gradient of x", "gradient of weight"),
    reference=_reference,
    expectations=(TANGENT_LOST,),
    family=Family(
        sizes={"batch": (1, 5), "tokens": (1, 9)},
        inputs=lambda batch, tokens, g: (torch.randn(batch, tokens, 16, generator=g),),
    ),
    scale=_scale(RMSNormByHand),
)
NATIVE = replace(
    SPEC,
    name="rms_norm_native",
    summary="normalisation by the root mean square, by torch.nn.RMSNorm",
    build=partial(nn.RMSNorm, normalized_shape=16, eps=EPS),
    error_inputs=(
        ErrorInput(
            name="too-wide", inputs=lambda _: (torch.ones(4, 17),), error=RuntimeError, match="normalized_shape"
        ),
    ),
    twin="rms_norm",
    expectations=(),
    scale=_scale(partial(nn.RMSNorm, eps=EPS)),
    claims=(
        Claim(
            text="7 to 64 % less running time than layer normalisation, over several models",
            source="Zhang and Sennrich 2019, Root Mean Square Layer Normalization; whole models, on NVIDIA GPUs",
            factor=1.075,  # 7 % less time
            quantity="gradient",
            baseline="layer_norm_native",
            sizes=(256, 1024),
        ),
    ),
)
