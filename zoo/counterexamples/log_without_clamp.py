"""log(w p), the log-likelihood of mixtures, without a clamp: -inf if the product underflows in float16.

Source: articles on automatic mixed precision. Under autocast the product w p is float16, which has no number between
0 and 6e-8. The cast to float32 comes too late. float32 and bfloat16 reach down to 1e-38, so they give the right
result. The remedy is a product in float32, or a clamp at the smallest number that may occur.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec


def log_without_clamp(weights: Tensor, densities: Tensor) -> Tensor:
    """Compute the log-likelihood of every sample under every mixture.

    Args:
        weights: (mixtures, components), positive, floating.
        densities: (components, samples), positive, dtype of `weights`.

    Returns:
        (mixtures, samples), float32; -inf where the product underflows.

    >>> rare = torch.full((1, 1), 1e-4)
    >>> log_without_clamp(rare, rare)
    tensor([[-18.4207]])
    >>> with torch.autocast("cpu", dtype=torch.float16):
    ...     log_without_clamp(rare, rare)
    tensor([[-inf]])
    """
    return torch.log((weights @ densities).float())


def _reference(_model: object, weights: Tensor, densities: Tensor) -> Tensor:
    """Compute log sum_k exp(log w_k + log p_k)."""
    return torch.logsumexp(weights.log().unsqueeze(2) + densities.log(), 1)


def _mixtures(size: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    weights, densities = torch.rand(6, 8, generator=generator), torch.rand(8, 5, generator=generator)
    return (weights + 1) * size, (densities + 1) * size


SPEC = Spec(
    name="log_without_clamp",
    summary="log of a product that underflows in float16: -inf",
    source="articles on automatic mixed precision, log of a clamped value",
    formula="y = log(w p)",
    shapes="(mixtures, components), (components, samples) → (mixtures, samples)",
    build=lambda: log_without_clamp,
    cases=(
        Case(name="likely", inputs=lambda g: _mixtures(0.5, g)),
        Case(name="rare", inputs=lambda g: _mixtures(2.0**-16, g)),
    ),
    dtypes="float32",
    reference=_reference,
    expectations=(
        Expect(
            outcome="FAIL",
            precisions=("amp_fp16", "fp16"),
            gate="class",
            case="rare",
            reason="sums of products below 2^-25 round to 0 in float16, and log 0 is -inf",
        ),
    ),
)
