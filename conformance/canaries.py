"""Wrong tensors that the gates must reject, made from the oracle's own: without them a pass proves nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from conformance.budget import NOISE, Allowance, Bounds
from conformance.inputs import seeded

OTHER = {  # a dtype of the same kind
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex128: torch.complex64,
}
SMALLEST = "smallest"
NOISY = 0.5
LOUD = 0.5  # of the rms: an element this large is worth missing


def global_canaries(oracle: torch.Tensor, bounds: Bounds, *, fine: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Damage to the whole tensor, which every budget must see.

    Args:
        oracle: the oracle's tensor in the dtype of the candidate.
        bounds: of this tensor.
        fine: it is held to float32, which must see noise, too, that low precisions may bring along.
    """
    extra = oracle.unsqueeze(0)
    yield "an extra axis", extra
    if not oracle.is_floating_point() and not oracle.is_complex():
        flipped = ~oracle if oracle.dtype == torch.bool else oracle + 1
        yield "every element changed", flipped
        return
    finite = oracle.isfinite().flatten()
    if bool(finite.any()):
        broken = oracle.flatten().clone()
        broken[int(finite.to(torch.uint8).argmax())] = math.nan
        yield "one NaN", broken.reshape(oracle.shape)
    yield "the wrong dtype", oracle.to(OTHER.get(oracle.dtype, torch.float32))
    if bounds.is_null:
        if not bounds.exact:
            yield "a spread as wide as the terms that cancelled", oracle + _cancelled(oracle, bounds)
        return
    yield "zeros", torch.zeros_like(oracle)
    yield "the negative", -oracle
    yield "1.25 times", 1.25 * oracle
    if fine:
        noise = torch.randn(oracle.shape, generator=seeded("noise"), dtype=torch.float64)
        yield (
            "noise of half its size",
            oracle + (NOISY * bounds.yardstick.norm / noise.norm() * noise).to(oracle.dtype),
        )


def _cancelled(oracle: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    size = bounds.spread["fp32"].absolute / (NOISE * 2.0**-24)
    signs = torch.randint(0, 2, oracle.shape, generator=seeded("cancelled")).to(oracle.dtype) * 2 - 1
    return size / 8 * signs / math.sqrt(oracle.numel())


def local_canaries(oracle: torch.Tensor, bounds: Bounds, allowed: Allowance) -> Iterator[tuple[str, torch.Tensor]]:
    """Damage to a part or to the order, where the tensor has parts and an order.

    Args:
        oracle: the oracle's tensor in the dtype of the candidate.
        bounds: of this tensor.
        allowed: the norm it allows decides which permutation is a damage at all.

    Yields: name and damaged tensor; names that start with `SMALLEST` damage the smallest slice of an axis.
    """
    yardstick = bounds.yardstick
    if bounds.is_null or oracle.numel() < 2:  # noqa: PLR2004 -- nothing to permute
        return
    flat = oracle.reshape(-1)
    orders = [flat.roll(1), flat.flip(0), flat.sort().values if not flat.is_complex() else flat.flip(0)]
    gaps = [float((order.double() - flat.double()).norm()) for order in orders] if not flat.is_complex() else []
    for order, gap in zip(orders, gaps, strict=False):
        if gap > allowed.norm:
            yield "elements in another order", order.reshape(oracle.shape)
            break
    if not yardstick.is_rounded:
        return
    if len(yardstick.shape) < 2:  # noqa: PLR2004 -- no slices: an element stands in
        yield "one element zeroed", _without_median_element(oracle, yardstick.rms)
        return
    for k, axis in enumerate(yardstick.axes):
        norms = yardstick.slice_norms[k]
        live = [i for i in norms.argsort().tolist() if not bounds.null_slice(k, i)] if axis < oracle.dim() else []
        for index in dict.fromkeys((live[len(live) // 2], live[0]) if live else ()):
            damaged = oracle.clone()
            damaged.select(axis, index).zero_()
            which = "median" if index == live[len(live) // 2] else SMALLEST
            yield f"{which} slice {index} of axis {axis} zeroed", damaged


def _without_median_element(oracle: torch.Tensor, rms: float) -> torch.Tensor:
    sizes = oracle.abs().double().nan_to_num(0.0, posinf=0.0)
    loud = (sizes >= LOUD * rms).nonzero().flatten()
    damaged = oracle.clone()
    damaged[loud[sizes[loud].argsort()[len(loud) // 2]]] = 0
    return damaged
