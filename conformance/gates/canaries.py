"""Makes wrong tensors from the oracle's. The gates must reject them; otherwise a pass proves nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from conformance.gates.budget import NOISE, Budget, TensorReference
from conformance.seeds import seed_of

OTHER = {  # a dtype of the same kind
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex128: torch.complex64,
}
SMALLEST = "smallest"
NOISY = 0.5
LARGE_ELEMENT = 0.5  # times the rms: zeroing an element this large must be noticed


def global_canaries(
    truth: torch.Tensor, reference: TensorReference, *, held_to_float32: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that are wrong as a whole, which all budgets must reject.

    Args:
        truth: the oracle's tensor in the dtype of the candidate.
        reference: the reference of the tensor.
        held_to_float32: float32's budgets apply, which must also reject noise of half the tensor's size.

    Yields:
        Name and wrong tensor.
    """
    extra = truth.unsqueeze(0)
    yield "an extra axis", extra
    if not truth.is_floating_point() and not truth.is_complex():
        flipped = ~truth if truth.dtype == torch.bool else truth + 1
        yield "every element changed", flipped
        return
    finite = truth.isfinite().flatten()
    if bool(finite.any()):
        broken = truth.flatten().clone()
        broken[int(finite.to(torch.uint8).argmax())] = math.nan
        yield "one NaN", broken.reshape(truth.shape)
    yield "the wrong dtype", truth.to(OTHER.get(truth.dtype, torch.float32))
    if reference.is_null:
        if not reference.exact:
            yield "a spread as wide as the terms that cancelled", truth + _cancelled(truth, reference)
        return
    yield "zeros", torch.zeros_like(truth)
    yield "the negative", -truth
    yield "1.25 times", 1.25 * truth
    if held_to_float32:
        noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(seed_of("noise")), dtype=torch.float64)
        yield (
            "noise of half its size",
            truth + (NOISY * reference.oracle.norm / noise.norm() * noise).to(truth.dtype),
        )


def _cancelled(truth: torch.Tensor, reference: TensorReference) -> torch.Tensor:
    size = reference.spread["fp32"].absolute / (NOISE * 2.0**-24)
    signs = (
        torch.randint(0, 2, truth.shape, generator=torch.Generator().manual_seed(seed_of("cancelled"))).to(truth.dtype)
        * 2
        - 1
    )
    return size / 8 * signs / math.sqrt(truth.numel())


def local_canaries(
    truth: torch.Tensor, reference: TensorReference, budget: Budget
) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that are wrong in one part or in the order of their elements.

    Args:
        truth: the oracle's tensor in the dtype of the candidate.
        reference: the reference of the tensor.
        budget: the budgets of the tensor; a permutation counts as wrong only if it exceeds their norm.

    Yields:
        Name and wrong tensor. A name that starts with `SMALLEST` means that the smallest slice of an axis is zero.
    """
    oracle = reference.oracle
    if reference.is_null or truth.numel() < 2:  # noqa: PLR2004 -- nothing to permute
        return
    flat = truth.reshape(-1)
    orders = [flat.roll(1), flat.flip(0), flat.sort().values if not flat.is_complex() else flat.flip(0)]
    gaps = [float((order.double() - flat.double()).norm()) for order in orders] if not flat.is_complex() else []
    for order, gap in zip(orders, gaps, strict=False):
        if gap > budget.norm:
            yield "elements in another order", order.reshape(truth.shape)
            break
    if not oracle.is_rounded:
        return
    if len(oracle.shape) < 2:  # noqa: PLR2004 -- no slices, so one element is damaged
        yield "one element zeroed", _without_median_element(truth)
        return
    for k, axis in enumerate(oracle.axes):
        norms = oracle.slice_norms[k]
        live = [i for i in norms.argsort().tolist() if not reference.null_slice(k, i)] if axis < truth.dim() else []
        for index in dict.fromkeys((live[len(live) // 2], live[0]) if live else ()):
            damaged = truth.clone()
            damaged.select(axis, index).zero_()
            which = "median" if index == live[len(live) // 2] else SMALLEST
            yield f"{which} slice {index} of axis {axis} zeroed", damaged


def _without_median_element(truth: torch.Tensor) -> torch.Tensor:
    sizes = truth.abs().double().nan_to_num(0.0, posinf=0.0)
    loud = (sizes >= LARGE_ELEMENT * sizes.square().mean().sqrt()).nonzero().flatten()
    damaged = truth.clone()
    damaged[loud[sizes[loud].argsort()[len(loud) // 2]]] = 0
    return damaged
