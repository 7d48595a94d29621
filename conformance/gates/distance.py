"""Measures the distance of a tensor from the oracle's, in a draw of a case and summed over several. It does not judge.

Large tensors are measured in blocks: what fits into a processor's cache is measured ten times as fast.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

BLOCK = 2**16  # elements that are measured at once
UNSEEN = 2.0**-22  # times y*: the length of a shorter y comes from a difference that float64 rounds
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # by bytes of an element; int64 for all others


@dataclass(frozen=True)
class Distance:
    """The distance of a tensor y from the oracle's y*, over the elements that are finite in both.

    Attributes:
        absolute: ‖y − y*‖.
        slices: for each of the oracle's axes, ‖y − y*‖ of every index: float64, of the axis's length.
        point: largest |y_i − y*_i| / (|y*_i| + rms).
        gain: |⟨y − y*, y*⟩| / ‖y*‖².
        cosine_gap: 1 − cos of the angle between y and y*; 1 if one is zero, or y so small that its angle is unknown.
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


@dataclass(frozen=True)
class Figures:
    """What is measured of the oracle's tensor itself, once.

    Attributes:
        all_finite: all numbers are finite.
        norm, rms: 2-norm, and root mean square, of the finite numbers.
        slice_norms: for each axis of `OracleTensor.axes`, the norm of every index: float64, of the axis's length.
    """

    all_finite: bool
    norm: float
    rms: float
    slice_norms: tuple[torch.Tensor, ...]


class OracleTensor:
    """The oracle's tensor, prepared to measure the distances of other tensors.

    Args:
        oracle: the tensor, on the CPU.
        figures: what has been measured of it; None: it is measured here.

    Attributes:
        raw: the oracle's tensor, contiguous.
        shape, sizes: its shape, and that of `reals`.
        is_rounded: its numbers are floating or complex.
        axes: the axes of `reals` of size ≥ 2 whose slices have ≥ 2 elements.
        figures, all_finite, norm, rms, slice_norms: see `Figures`.
    """

    def __init__(self, oracle: torch.Tensor, figures: Figures | None = None) -> None:
        self.raw = oracle.contiguous()  # what is measured of it is then no second copy
        self.shape = tuple(oracle.shape)
        self.is_rounded = oracle.is_floating_point() or oracle.is_complex()
        self.sizes = (*self.shape, 2) if oracle.is_complex() else self.shape
        count = math.prod(self.sizes)
        self.axes = tuple(axis for axis, size in enumerate(self.sizes) if count > size > 1)
        self.figures = figures or self._figures()
        self.all_finite, self.norm, self.rms = self.figures.all_finite, self.figures.norm, self.figures.rms
        self.slice_norms = self.figures.slice_norms

    @cached_property
    def reals(self) -> torch.Tensor:
        """Its numbers as float64 on the CPU; a complex tensor gets a last axis of size 2."""
        return flat_reals(self.raw)

    @cached_property
    def finite(self) -> torch.Tensor:
        """Boolean mask of the finite numbers of `reals`."""
        return self.reals.isfinite()

    @cached_property
    def values(self) -> torch.Tensor:
        """`reals` with 0 in place of infinities and NaN."""
        return self.reals if self.all_finite else self.reals.where(self.finite, 0.0)

    def _figures(self) -> Figures:
        finite = all_finite(self.reals)
        squares = (self.reals if finite else self.reals.where(self.finite, 0.0)).square()
        count = squares.numel() if finite else int(self.finite.sum())
        norm = math.sqrt(squares.sum())
        return Figures(finite, norm, norm / math.sqrt(count) if count else 0.0, self._slices(sums_by_axis(squares)))

    def distance(self, y: torch.Tensor) -> Distance:
        """The distance of a tensor of the same shape, with any dtype on any device."""
        numbers = real_numbers(y)
        if not numbers.numel():
            return Distance(0.0, (), 0.0, 0.0, 1.0)
        found = _measure(numbers, self.reals, self.rms)
        absolute, square = math.sqrt(found.square), self.norm * self.norm
        length = math.sqrt(max(0.0, square + 2.0 * found.along + absolute * absolute))
        has_direction = length > UNSEEN * self.norm > 0.0
        return Distance(
            absolute,
            self._slices(found.by_axis),
            found.point,
            abs(found.along) / square if square else 0.0,
            1.0 - (square + found.along) / (self.norm * length) if has_direction else 1.0,
            found.start + _worst(numbers, self.reals, self.rms, found),
        )

    def stays_finite(self, y: torch.Tensor) -> bool:
        """Whether a tensor has a finite number wherever the oracle has one."""
        numbers = real_numbers(y)
        return all_finite(numbers) or bool((numbers.isfinite() | ~self.finite).all())

    def without_bound(self) -> Distance:
        """An infinite distance."""
        slices = tuple(torch.full_like(norms, math.inf) for norms in self.slice_norms)
        return Distance(math.inf, slices, math.inf, math.inf, math.inf)

    def _slices(self, squares: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(squares[axis].sqrt() for axis in self.axes)

    def index(self, flat: int) -> tuple[int, ...]:
        """A flat index as a position in the tensor."""
        position: list[int] = []
        for size in reversed(self.sizes):
            flat, place = divmod(flat, size)
            position.insert(0, place)
        return tuple(position[: len(self.shape)])


@dataclass(frozen=True)
class _Part:
    """What a part of a tensor adds to its distance."""

    square: float  # sum of the squares of y − y*
    by_axis: tuple[torch.Tensor, ...]  # the same for every index of each axis of the part
    along: float  # ⟨y − y*, y*⟩
    point: float  # see `Distance`
    start: int  # first element, flat within the part, of the block that has `point`
    count: int  # elements of that block


def _measure(y: torch.Tensor, wanted: torch.Tensor, rms: float) -> _Part:
    """Measure a tensor of real numbers, block by block."""
    if y.numel() <= BLOCK:
        return _block(y, wanted, rms)
    if len(y) == 1:
        inner = _measure(y[0], wanted[0], rms)
        return replace(inner, by_axis=(torch.tensor([inner.square], dtype=torch.float64), *inner.by_axis))
    rows = max(1, BLOCK * len(y) // y.numel())
    parts = [_measure(*pair, rms) for pair in zip(y.split(rows), wanted.split(rows), strict=True)]
    first, *others = zip(*(part.by_axis for part in parts), strict=True)
    worst = max(range(len(parts)), key=lambda number: parts[number].point)
    return _Part(
        sum(part.square for part in parts),
        (torch.cat(first), *(torch.stack(sums).sum(0) for sums in others)),
        sum(part.along for part in parts),
        parts[worst].point,
        worst * rows * (y.numel() // len(y)) + parts[worst].start,
        parts[worst].count,
    )


def _block(y: torch.Tensor, wanted: torch.Tensor, rms: float) -> _Part:
    gap, values = _gap(y, wanted)
    squares = gap.square()
    along = float(torch.dot(gap.reshape(-1), values.reshape(-1)))
    point = float(_relative_gap(gap, values, rms).amax())
    return _Part(float(squares.sum()), sums_by_axis(squares), along, point, 0, y.numel())


def _gap(y: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The gap y − y* where both are finite, elsewhere 0; and y*, with 0 in place of infinities and NaN."""
    gap = y.double() - wanted
    if all_finite(gap):
        return gap, wanted
    finite = wanted.isfinite()
    return gap.where(finite & y.isfinite(), 0.0), wanted.where(finite, 0.0)


def _relative_gap(gap: torch.Tensor, values: torch.Tensor, rms: float) -> torch.Tensor:
    """|y − y*| / (|y*| + rms)."""
    scaled = gap.abs().div_(values.abs().add_(rms))
    return scaled if 0.0 < rms < math.inf else scaled.nan_to_num_(0.0, posinf=math.inf)  # 0/0: no number, no error


def _worst(y: torch.Tensor, wanted: torch.Tensor, rms: float, found: _Part) -> int:
    """The place, within its block, of the element that gives `point`."""
    block = slice(found.start, found.start + found.count)
    return int(_relative_gap(*_gap(y.reshape(-1)[block], wanted.reshape(-1)[block]), rms).argmax())


def sums_by_axis(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """For each axis, the sum for every index, as a vector. It costs little more than one sum of the tensor."""
    sums = []
    while tensor.dim() > 1:
        sums.append(tensor.flatten(1).sum(1))
        tensor = tensor.sum(0)
    return (*sums, tensor)


def all_finite(numbers: torch.Tensor) -> bool:
    """Whether no number of a tensor is infinite or NaN."""
    if numbers.dtype in (torch.float32, torch.float64) and math.isfinite(numbers.sum()):
        return True  # to add them up is much faster than to look at each
    return bool(numbers.isfinite().all())


def real_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's numbers on the CPU, contiguous; complex numbers become pairs along a new last axis."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.detach().cpu().contiguous()


def flat_reals(tensor: torch.Tensor) -> torch.Tensor:
    """As `real_numbers`, in float64."""
    return real_numbers(tensor).to(torch.float64)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits, NaNs and the sign of zero included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    left, right = (_words(t.detach().contiguous()) for t in (a, b))
    return torch.equal(left, right)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor; one element may have any stride, of which `view` would complain."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(WORDS.get(tensor.element_size(), torch.int64))


# Adds up the errors of one tensor over several draws of a case.
# Roundings average out over draws; a wrong factor or constant does not.

SAMPLE = 2**14  # elements; of a larger tensor, only about so many are kept of every draw
NEAR_LIMIT = 0.25  # of the dtype's largest number: above it, a low precision may overflow


@dataclass(frozen=True)
class Sums:
    """Sums of the error e = y − y* over draws: first of the whole tensor, then of every index of every axis.

    Attributes:
        gain: the sums of e · y*, which see a wrong factor: float64 of shape (sums,).
        shift: the sums of e, which see a wrong constant: the same shape.
    """

    gain: torch.Tensor
    shift: torch.Tensor


@dataclass(frozen=True)
class Rounded:
    """What the rounded runs of one tensor add up to at one precision. All tensors have the layout of `Sums`.

    Attributes:
        draws: number of draws, each with a rounded run.
        squares: the sums of y*².
        crowding: the root of the sum over draws of the squared sums of y*²; it is large if few draws make up `squares`.
        bias: the part of the sums over rounded runs that does not average out, as far as it stands out of their noise,
            and at least what rounded constants change; of a slice, at least the relative gain of its tensor.
        noise: how far these sums would scatter, one standard deviation, if all draws were drawn again.
        strays: the relative error of each rounded run, of shape (draws,): some draws are worse conditioned than others.
    """

    draws: int
    squares: torch.Tensor
    crowding: torch.Tensor
    bias: Sums
    noise: Sums
    strays: torch.Tensor

    def over(self, draws: int) -> "Rounded":
        """What rounded runs of more draws would add up to, if these are as large.

        Bias grows like the number of draws, and noise as if each draw had its own.
        """
        more = draws / self.draws
        root = math.sqrt(more)
        bias, noise = (Sums(sums.gain * by, sums.shift * by) for sums, by in ((self.bias, more), (self.noise, root)))
        return Rounded(draws, more * self.squares, root * self.crowding, bias, noise, self.strays)


@dataclass(frozen=True)
class Redraws:
    """One tensor of the oracle in further draws of a case.

    Attributes:
        truths: the oracle's tensor in each draw, as `sample` gives it, float32.
        rounded: what the rounded runs add up to, by precision name.
    """

    truths: tuple[torch.Tensor, ...]
    rounded: dict[str, Rounded]


def sample(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the real numbers of a tensor; if they are more than `SAMPLE`, of evenly spaced ones in one axis."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.numel() <= SAMPLE:
        return tensor.detach().clone()
    return tensor.detach().reshape(-1)[:: -(-tensor.numel() // SAMPLE)].clone()


def parts(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor, then its sums for every index of every axis, in one vector."""
    by_axis = sums_by_axis(tensor)
    return torch.cat([tensor.sum().reshape(1), *(by_axis[axis] for axis in _axes(tensor))])


def sizes_of_axes(tensor: torch.Tensor) -> list[int]:
    """How many sums `parts` has for each axis."""
    return [tensor.shape[axis] for axis in _axes(tensor)]


def _axes(tensor: torch.Tensor) -> list[int]:
    return [axis for axis, size in enumerate(tensor.shape) if 1 < size < tensor.numel()]


def sums_of(found: Sequence[torch.Tensor], truths: Sequence[torch.Tensor]) -> Sums:
    """Add up the errors of a candidate, sampled in each draw; there may be more of the oracle's tensors."""
    gains, shifts = torch.zeros(()), torch.zeros(())
    for product, gap in _errors(found, truths):
        gains, shifts = gains + product, shifts + gap
    return Sums(parts(gains), parts(shifts))


def squares_of(truths: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sums of y*² in each draw: float64 of shape (draws, sums)."""
    return torch.stack([parts(_finite(truth).square()) for truth in truths])


def farthest_sums(many: Sequence[Sums]) -> Sums:
    """The largest absolute sums of several."""
    gains, shifts = (torch.stack(sums).abs().amax(0) for sums in zip(*((s.gain, s.shift) for s in many), strict=True))
    return Sums(gains, shifts)


def rounded_sums(found: Sequence[torch.Tensor], truths: Sequence[torch.Tensor], constant: float = 0.0) -> Rounded:
    """Add up the errors of the rounded runs, and estimate from them how far the sums scatter.

    The relative error of constants that multiply tensors is the same in each draw. These runs round them everywhere, so
    that a norm may divide it out; a mode rounds them only where it computes in low precision.
    """
    products, gaps = map(torch.stack, zip(*_errors(found, truths), strict=True))
    noise = Sums(_scatter(products), _scatter(gaps))
    squares, crowding = _squares(truths)
    totals = parts(torch.stack([_finite(truth) for truth in truths]).sum(0)).abs()
    gains = _beyond(noise.gain, products)
    of_tensor = (gains[0] / squares[0]).nan_to_num(0.0)  # its slices have it too, though their own noise may hide it
    shifts = _beyond(noise.shift, gaps).maximum(constant * totals)
    bias = Sums(gains.maximum(max(constant, float(of_tensor)) * squares), shifts)
    strays = gaps.reshape(len(gaps), -1).norm(dim=1) / squares_of(truths)[:, 0].sqrt()
    return Rounded(len(gaps), squares, crowding, bias, noise, strays.nan_to_num(0.0, 0.0, 0.0))


def _beyond(noise: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
    return (parts(terms.sum(0)).abs() - noise).clamp(min=0.0)


def _squares(truths: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """`Rounded.squares` and `Rounded.crowding`."""
    by_draw = squares_of(truths)
    return by_draw.sum(0), by_draw.square().sum(0).sqrt()


def _errors(
    found: Sequence[torch.Tensor], truths: Sequence[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The products of e and y*, and e itself, of one draw after the other: one fits into a processor's cache."""
    for y, truth in zip(found, truths, strict=False):
        wanted, limit = flat_reals(truth), NEAR_LIMIT * torch.finfo(y.dtype).max
        gap = flat_reals(y) - wanted
        if wanted.numel() and not float(wanted.abs().amax()) < limit:
            gap = gap.where(wanted.abs() < limit, 0.0)
            wanted = wanted.nan_to_num(0.0, 0.0, 0.0)
        yield gap * wanted, gap


def _finite(truth: torch.Tensor) -> torch.Tensor:
    return flat_reals(truth).nan_to_num(0.0, 0.0, 0.0)


def _scatter(terms: torch.Tensor) -> torch.Tensor:
    """The standard deviation of their sum, as the draws differ or as the elements do, whichever is more."""
    by_draw = torch.stack([parts(term) for term in terms]).square().sum(0)
    return torch.maximum(by_draw, parts(terms.square().sum(0))).sqrt()
