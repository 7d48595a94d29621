"""Adds up the errors of one tensor over several draws of a case.

Roundings average out over draws; a wrong factor or constant does not.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from conformance.gates.distance import flat_reals, sums_by_axis

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
        draws: number of draws.
        runs: number of rounded runs; they are of the first draws.
        squares: the sums of y*².
        crowding: the root of the sum over draws of the squared sums of y*²; it is large if few draws make up `squares`.
        bias: the part of the sums over rounded runs that does not average out, as far as it stands out of their noise,
            and at least what rounded constants change; of a slice, at least the relative gain of its tensor.
        noise: how far these sums would scatter, one standard deviation, if all draws were drawn again.
    """

    draws: int
    runs: int
    squares: torch.Tensor
    crowding: torch.Tensor
    bias: Sums
    noise: Sums

    def over(self, draws: int, truths: Sequence[torch.Tensor] = ()) -> "Rounded":
        """What rounded runs of more draws would add up to; without the oracle's tensors, as if these were as large.

        Bias grows like the number of draws, and noise as if each draw had its own.
        """
        more = draws / self.draws
        root = math.sqrt(more)
        squares, crowding = more * self.squares, root * self.crowding
        if truths:
            squares, crowding = _squares(truths)
        grown = (squares / self.squares).nan_to_num(more, posinf=more)
        return Rounded(
            draws,
            self.runs,
            squares,
            crowding,
            Sums(self.bias.gain * grown, self.bias.shift * more),
            Sums(self.noise.gain * (crowding / self.crowding).nan_to_num(root, posinf=root), self.noise.shift * root),
        )


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
    return Rounded(len(gaps), len(gaps), squares, crowding, bias, noise)


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
