"""Measures how far a tensor is from the oracle's. It never judges."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

FAINT = 2.0**-12


@dataclass(frozen=True)
class Distance:
    """How far one tensor lies from the oracle, over the elements that are finite in both.

    Attributes:
        absolute: ‖y − y*‖.
        slices: for each of the oracle's axes, ‖y − y*‖ of every index.
        point: largest |y_i − y*_i| / (|y*_i| + rms); `worst` is its flat index.
        gain: |⟨y − y*, y*⟩| / ‖y*‖².
        turn: 1 − cos of the angle between y and y*; NaN where y is zero.
    """

    absolute: float
    slices: tuple[torch.Tensor, ...]
    point: float
    gain: float
    turn: float = 0.0
    worst: int = 0


def farthest(distances: Iterable[Distance]) -> Distance:
    """The worst value of every measure over several tensors: the spread of perturbed runs."""
    many = list(distances)
    return Distance(
        max(d.absolute for d in many),
        tuple(torch.stack(rows).amax(0) for rows in zip(*(d.slices for d in many), strict=True)),
        max(d.point for d in many),
        max(d.gain for d in many),
    )


class OracleTensor:
    """The oracle's tensor, prepared to measure others against.

    Attributes:
        raw: the oracle's tensor as it is.
        reals: its values in float64; a complex tensor is seen as pairs of reals.
        shape: as the model returned it.
        finite: where the oracle is finite.
        norm, rms: of the finite elements.
        axes: those of size ≥ 2 whose slices have ≥ 2 elements.
        slice_norms: for each of these axes, the norm of every index.
    """

    def __init__(self, oracle: torch.Tensor) -> None:
        self.raw = oracle
        self.shape = tuple(oracle.shape)
        self.is_rounded = oracle.is_floating_point() or oracle.is_complex()
        self.reals = flat_reals(oracle)
        self.finite = self.reals.isfinite()
        self.all_finite = bool(self.finite.all())
        self.values = self.reals if self.all_finite else self.reals.where(self.finite, 0.0)
        self.norm = float(self.values.norm())
        count = int(self.finite.sum())
        self.rms = self.norm / math.sqrt(count) if count else 0.0
        sizes = tuple(self.reals.shape)
        self.axes = tuple(axis for axis, size in enumerate(sizes) if size > 1 and self.reals.numel() > size)
        self.slice_norms = self._by_slice(self.values.square())

    def distance(self, y: torch.Tensor) -> Distance:
        """Measure a tensor of the same shape."""
        reals = flat_reals(y)
        gap = reals - self.values
        if not (self.all_finite and bool(reals.isfinite().all())):
            gap = gap.where(self.finite & reals.isfinite(), 0.0)
        scaled = gap.abs() / (self.values.abs() + self.rms)
        scaled = scaled.nan_to_num(0.0, posinf=math.inf)  # 0/0 where the whole oracle is zero and met
        worst = int(scaled.argmax()) if scaled.numel() else 0
        absolute, along, square = float(gap.norm()), float((gap * self.values).sum()), self.norm * self.norm
        length = math.sqrt(max(0.0, square + 2.0 * along + absolute * absolute))
        return Distance(
            absolute,
            self._by_slice(gap.square()),
            float(scaled.flatten()[worst]) if scaled.numel() else 0.0,
            abs(along) / square if square else 0.0,
            1.0 - (square + along) / (self.norm * length) if self.norm * length else math.nan,
            worst,
        )

    def _by_slice(self, squares: torch.Tensor) -> tuple[torch.Tensor, ...]:
        every = range(squares.dim())
        return tuple(squares.sum([a for a in every if a != axis]).sqrt() for axis in self.axes)

    def index(self, flat: int) -> tuple[int, ...]:
        """A flat index as a position in the tensor."""
        position: list[int] = []
        for size in reversed(self.reals.shape):
            flat, place = divmod(flat, size)
            position.insert(0, place)
        return tuple(position[: len(self.shape)])


def flat_reals(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's numbers as float64 on the CPU; complex ones as pairs along a new last axis."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.detach().to(device="cpu", dtype=torch.float64)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits, NaNs and the sign of zero included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.numel() == 0:
        return True
    left, right = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(left, right)


def dropped_bits_share(y: torch.Tensor, oracle: OracleTensor, bits: int, least: int) -> float:
    """Share of float32 elements with this many zero low bits, among those whose oracle has some set there.

    NaN where fewer than `least` elements can tell.
    """
    mask = (1 << bits) - 1
    found = flat_reals(y).to(torch.float32).view(torch.int32)
    wanted = oracle.values.to(torch.float32).view(torch.int32)
    loud = oracle.values.abs() > FAINT * oracle.rms  # fainter ones may be zero but for float64's noise
    telling = ((wanted & mask) != 0) & oracle.finite & loud
    count = int(telling.sum())
    if count < least:
        return math.nan
    return float(((found & mask) == 0)[telling].double().mean())
