"""Measures the distance of a tensor from the oracle's. It does not judge."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

SMALL_ELEMENT = 2.0**-12  # times the rms: smaller elements of the oracle may be zeros plus float64's noise


@dataclass(frozen=True)
class Distance:
    """The distance of a tensor y from the oracle's y*, over the elements that are finite in both.

    Attributes:
        absolute: ‖y − y*‖.
        slices: for each of the oracle's axes, ‖y − y*‖ of every index: float64, of the axis's length.
        point: largest |y_i − y*_i| / (|y*_i| + rms).
        gain: |⟨y − y*, y*⟩| / ‖y*‖².
        cosine_gap: 1 − cos of the angle between y and y*; infinite if either is zero.
        worst: flat index of the element that gives `point`.
    """

    absolute: float
    slices: tuple[torch.Tensor, ...]
    point: float
    gain: float
    cosine_gap: float = 0.0
    worst: int = 0


def farthest(distances: Iterable[Distance]) -> Distance:
    """The largest figures of several distances: the spread of perturbed runs.

    Raises:
        ValueError: no distances.
    """
    many = list(distances)
    return Distance(
        max(d.absolute for d in many),
        tuple(torch.stack(rows).amax(0) for rows in zip(*(d.slices for d in many), strict=True)),
        max(d.point for d in many),
        max(d.gain for d in many),
        max(d.cosine_gap for d in many),
    )


class OracleTensor:
    """The oracle's tensor, prepared to measure the distances of other tensors.

    Attributes:
        raw: the oracle's tensor as it is.
        shape: its shape.
        is_rounded: its numbers are floating or complex.
        reals: its numbers as float64 on the CPU; a complex tensor gets a last axis of size 2.
        finite: boolean mask of the finite numbers.
        all_finite: all numbers are finite.
        values: `reals` with 0 in place of infinities and NaN.
        norm, rms: 2-norm, and root mean square, of the finite numbers.
        axes: the axes of `reals` of size ≥ 2 whose slices have ≥ 2 elements.
        slice_norms: for each of these axes, the norm of every index: float64, of the axis's length.
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
        """The distance of a tensor of the same shape, with any dtype on any device."""
        reals = flat_reals(y)
        gap = reals - self.values
        if not (self.all_finite and bool(reals.isfinite().all())):
            gap = gap.where(self.finite & reals.isfinite(), 0.0)
        scaled = gap.abs() / (self.values.abs() + self.rms)
        scaled = scaled.nan_to_num(0.0, posinf=math.inf)  # 0/0: the whole oracle is zero, and so is y
        worst = int(scaled.argmax()) if scaled.numel() else 0
        absolute, along, square = float(gap.norm()), float((gap * self.values).sum()), self.norm * self.norm
        length = math.sqrt(max(0.0, square + 2.0 * along + absolute * absolute))
        return Distance(
            absolute,
            self._by_slice(gap.square()),
            float(scaled.flatten()[worst]) if scaled.numel() else 0.0,
            abs(along) / square if square else 0.0,
            1.0 - (square + along) / (self.norm * length) if self.norm * length else math.inf,
            worst,
        )

    def stays_finite(self, y: torch.Tensor) -> bool:
        """Whether a tensor has a finite number wherever the oracle has one."""
        return bool((flat_reals(y).isfinite() | ~self.finite).all())

    def without_bound(self) -> Distance:
        """An infinite distance."""
        slices = tuple(torch.full_like(norms, math.inf) for norms in self.slice_norms)
        return Distance(math.inf, slices, math.inf, math.inf, math.inf)

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
    """The tensor's numbers as float64 on the CPU; complex numbers become pairs along a new last axis."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.detach().to(device="cpu", dtype=torch.float64)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits, NaNs and the sign of zero included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.numel() == 0:
        return True
    left, right = (_bytes(t.detach().contiguous()) for t in (a, b))
    return torch.equal(left, right)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor; one element may have any stride, of which `view` would complain."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def dropped_bits_share(y: torch.Tensor, oracle: OracleTensor, bits: int, least: int, smallest: float = 0.0) -> float:
    """The share of elements whose low bits are all zero, among those whose oracle has some of these bits set.

    Args:
        y: a float32 or complex64 tensor.
        oracle: the oracle's tensor of the same shape.
        bits: number of low mantissa bits of a float32.
        least: the fewest elements that give an answer.
        smallest: elements of the oracle below it tell nothing.

    Returns:
        A number from 0 to 1; NaN if fewer than `least` elements can tell.
    """
    mask = (1 << bits) - 1
    found = flat_reals(y).to(torch.float32).view(torch.int32)
    wanted = oracle.values.to(torch.float32).view(torch.int32)
    loud = oracle.values.abs() > max(smallest, SMALL_ELEMENT * oracle.rms)  # see `SMALL_ELEMENT`
    telling = ((wanted & mask) != 0) & oracle.finite & loud
    count = int(telling.sum())
    if count < least:
        return math.nan
    return float(((found & mask) == 0)[telling].double().mean())
