"""Rotary position embedding: pair i of the features at position p is turned by the angle p · base^(-2i/d).

Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", arXiv:2104.09864. A pair is
made of neighbours, (x[2i], x[2i + 1]), as in the paper; other code pairs x[i] with x[i + d/2]. The product of a query
and a key that are both turned depends only on the distance of their positions. Angles, cosines and sines are computed
in float32 whatever the dtype of x: bfloat16 cannot tell position 257 from 256.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from zoo.arguments import want_numbers, want_tensors
from zoo.case import Case
from zoo.error_input import INTEGERS, ErrorInput
from zoo.expect import Expect
from zoo.family import Family
from zoo.scale import Scale
from zoo.shared_expectations import NAN_IN_BOUNDS, TANGENT_LOST
from zoo.spec import Spec


def rotary_embedding(x: Tensor, base: float = 10000.0) -> Tensor:
    """Turn the pairs of features of queries or keys by angles that grow with the position.

    Args:
        x: (*, tokens, d), any floating dtype, d even; the positions are 0, 1, …, tokens - 1.
        base: positive number; pair i turns by base^(-2i/d) from one position to the next.

    Returns:
        The turned pairs, shape and dtype of `x`.

    Raises:
        TypeError: `x` is not a tensor of floating-point numbers.
        ValueError: `x` has fewer than two axes or an odd number of features, or `base` is not positive.

    >>> rotary_embedding(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))  # (cos p, sin p) for positions 0 and 1
    tensor([[1.0000, 0.0000],
            [0.5403, 0.8415]])
    """
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        want_tensors("rotary_embedding", x=x)
        want_numbers("rotary_embedding", base=base)
    if x.dim() < 2 or x.size(-1) % 2 != 0:  # noqa: PLR2004
        raise ValueError(f"rotary_embedding: x must have shape (..., tokens, d) with an even d, got {list(x.shape)}")
    if not x.is_floating_point():
        raise TypeError(f"rotary_embedding: x must have a floating dtype, got {x.dtype}")
    if not base > 0:
        raise ValueError(f"rotary_embedding: base must be positive, got {base}")
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    tokens, d = x.size(-2), x.size(-1)
    positions = torch.arange(tokens, device=x.device, dtype=wide.dtype)
    rates = base ** (-torch.arange(0, d, 2, device=x.device, dtype=wide.dtype) / d)
    angles = positions.unsqueeze(1) * rates
    cos, sin = angles.cos(), angles.sin()
    first, second = wide[..., 0::2], wide[..., 1::2]
    turned = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1)
    return turned.flatten(-2).to(x.dtype)


def _reference(_model: object, x: Tensor, base: float = 10000.0) -> Tensor:
    """Multiply complex numbers by powers of unit phasors."""
    tokens, d = x.size(-2), x.size(-1)
    rates = base ** (torch.arange(d // 2, dtype=x.dtype) * (-2 / d))
    phasors = torch.polar(torch.ones_like(rates), rates) ** torch.arange(tokens).unsqueeze(1)
    pairs = torch.complex(x[..., 0::2], x[..., 1::2]) * phasors
    return torch.stack((pairs.real, pairs.imag), -1).reshape(x.shape)


def _draw(shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor]:
    return (torch.randn(shape, generator=generator),)


SPEC = Spec(
    name="rotary_embedding",
    summary="rotary position embedding of neighbouring pairs",
    source="Su et al. 2021, RoFormer: Enhanced Transformer with Rotary Position Embedding, arXiv:2104.09864",
    formula="(y[2i], y[2i + 1]) = R(p · base^(-2i/d)) (x[2i], x[2i + 1]), R(a) the rotation by a",
    shapes="(..., tokens, d) → (..., tokens, d)",
    build=lambda: rotary_embedding,
    cases=(
        Case(name="typical", inputs=partial(_draw, (2, 3, 7, 8))),
        Case(name="one-token", inputs=partial(_draw, (2, 1, 8))),
        Case(name="one-pair", inputs=partial(_draw, (5, 2))),
        Case(name="many-tokens", inputs=partial(_draw, (600, 4))),
        Case(name="empty", inputs=partial(_draw, (0, 7, 8))),
        Case(name="small-base", inputs=lambda g: (*_draw((9, 6), g), 4.0)),
        Case(name="non-contiguous", inputs=lambda g: (torch.randn(2, 12, 7, generator=g).transpose(1, 2)[..., ::2],)),
    ),
    error_inputs=(
        ErrorInput(
            name="odd-features",
            inputs=partial(_draw, (2, 3, 7)),
            error=ValueError,
            match="x must have shape",
        ),
        ErrorInput(
            name="base-of-zero",
            inputs=lambda g: (*_draw((2, 3, 8), g), 0.0),
            error=ValueError,
            match="base must be positive",
        ),
        INTEGERS,
    ),
    dtypes="input",
    vmappable=True,
    forward_mode=True,
    one_graph=True,
    float32_accurate=("output", "gradient of x"),
    reference=_reference,
    expectations=(
        TANGENT_LOST,
        NAN_IN_BOUNDS,
        Expect(
            outcome="ERROR",
            modes=("compiled", "graphed"),
            torch=">=2.6,<2.7",
            error="AssertionError",
            match="SpeculationLog diverged",
            reason="Dynamo starts again at the second value of a Python float, and then takes another path",
        ),
    ),
    family=Family(
        sizes={"batch": (1, 4), "tokens": (1, 9), "pairs": (1, 5)},
        inputs=lambda batch, tokens, pairs, g: _draw((batch, tokens, 2 * pairs), g),
    ),
    scale=Scale(
        size_name="tokens",
        sizes=(16, 64, 256, 1024),
        working=2**10,
        working_on_cuda=2**18,
        build=lambda _: rotary_embedding,
        inputs=lambda n, g: _draw((4, n, 64), g),
    ),
)
