"""Compares one tensor of a candidate with the oracle's: the measure of every gate, and which canaries they reject.

Canaries are wrong tensors, made from the oracle's. Gates that accept one have no power. Of most canaries it is known
how far they are from the oracle before they are made.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch

from conformance.gates import distance
from conformance.gates.budget import NOISE, Budget, TensorCriteria, TensorReference, measures
from conformance.gates.distance import BLOCK, Distance, OracleTensor
from conformance.gates.dropped_bits import precision_measure, tested_bits
from conformance.records.cell import FP32, FP32_REDRAWN, Discrepancy, Measure
from conformance.seeds import seed_of
from conformance.verdict import failed_gate

OTHER = {torch.float32: torch.float64, torch.complex64: torch.complex128, torch.complex128: torch.complex64}
SMALLEST = "smallest"
NOISY = 0.5
LARGE_ELEMENT = 0.5  # times the rms: zeroing an element this large must be noticed
SURE = 1.0 + 1e-9  # more than sums in another order differ
FAR = 2.0  # times the budget of the norm: a permutation that is farther is rejected whatever its dtype rounds


@dataclass(frozen=True)
class Least:
    """The least distance of a canary from the oracle, apart from roundings to its dtype. Without a figure, it is 0.

    Attributes:
        absolute, point, gain: see `Distance`; a NaN is infinitely far.
        axis, index: position in the oracle's axes, and index, of a slice that is zero.
    """

    absolute: float = 0.0
    point: float = 0.0
    gain: float = 0.0
    axis: int = -1
    index: int = 0


@dataclass(frozen=True)
class Canary:
    """A wrong tensor that can be made.

    Attributes:
        name: its name in a report. If it starts with `SMALLEST`, the smallest slice of an axis is zero.
        make: makes it from the oracle's tensor in the dtype of the candidate; None if it would not be wrong.
        least: how far it is from the oracle at least.
        most: how far it is at most; None if that is not known. Roundings to its dtype are left out of both.
        misshapen: its shape or dtype is wrong, so no budget matters.
    """

    name: str
    make: Callable[[torch.Tensor], torch.Tensor | None]
    least: Least = Least()
    most: Callable[[], Distance] | None = None
    misshapen: bool = False


def global_canaries(dtype: torch.dtype, reference: TensorReference, *, held_to_float32: bool) -> Iterator[Canary]:
    """Tensors that are wrong as a whole, which all budgets must reject; float32's also noise of half the size."""
    norm = reference.oracle.norm
    yield Canary("an extra axis", lambda truth: truth.unsqueeze(0), misshapen=True)
    if not dtype.is_floating_point and not dtype.is_complex:
        yield Canary("every element changed", lambda truth: ~truth if truth.dtype == torch.bool else truth + 1)
        return
    yield Canary("one NaN", _with_nan, Least(math.inf))
    yield Canary("the wrong dtype", lambda truth: truth.to(OTHER.get(truth.dtype, torch.float32)), misshapen=True)
    if reference.is_null:
        if not reference.exact:
            yield _in_place_of_zeros(reference)
        return
    yield Canary("zeros", torch.zeros_like, Least(norm, 1 / 2, 1.0))
    yield Canary("the negative", torch.neg, Least(2.0 * norm, 1.0, 2.0))
    quarter = partial(_distance_of_scaled, reference.oracle, 1 / 4)
    yield Canary("1.25 times", lambda truth: 1.25 * truth, Least(norm / 4, 1 / 8, 1 / 4), quarter)
    if held_to_float32:
        yield Canary("noise of half its size", partial(_noisy, norm), Least(NOISY * norm))


def _distance_of_scaled(oracle: OracleTensor, share: float) -> Distance:
    """The most that a tensor can be away that is so much larger than the oracle's in every element."""
    return Distance(share * oracle.norm, tuple(share * norms for norms in oracle.slice_norms), share, share)


def _with_nan(truth: torch.Tensor) -> torch.Tensor | None:
    finite = truth.isfinite().flatten()
    if not bool(finite.any()):
        return None
    broken = truth.flatten().clone()
    broken[int(finite.to(torch.uint8).argmax())] = math.nan
    return broken.reshape(truth.shape)


def _noisy(norm: float, truth: torch.Tensor) -> torch.Tensor:
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(seed_of("noise")), dtype=torch.float64)
    wrong: torch.Tensor = truth + (NOISY * norm / noise.norm() * noise).to(truth.dtype)
    return wrong


def _in_place_of_zeros(reference: TensorReference) -> Canary:
    """Numbers where there should be next to none."""
    name = "a spread as wide as the terms that cancelled"
    size = reference.spread["fp32"].absolute / (NOISE * 2.0**-24) / 8
    if size == 0.0:  # float32 never moves it; a low precision may, as the gradient of an expert that no token chose
        name = "numbers in place of zeros"
        size = max(strayed.absolute for strayed in reference.spread.values()) or 1.0
    return Canary(name, lambda truth: truth + _signs(truth, size), Least(size))


def _signs(truth: torch.Tensor, size: float) -> torch.Tensor:
    """Plus and minus the same number, as far from zero as asked."""
    generator = torch.Generator().manual_seed(seed_of("cancelled"))
    signs = torch.randint(0, 2, truth.shape, generator=generator).to(truth.dtype) * 2 - 1
    return size * signs / math.sqrt(truth.numel())


def local_canaries(reference: TensorReference, budget: Budget) -> Iterator[Canary]:
    """Tensors that are wrong in one part, or in the order of their elements by more than the budget of the norm."""
    oracle = reference.oracle
    if reference.is_null or oracle.raw.numel() < 2:  # noqa: PLR2004 -- nothing to permute
        return
    rolled = Least(_least_of_a_roll(oracle, FAR * budget.norm))
    yield Canary("elements in another order", partial(_reorder, budget.norm), rolled)
    if not oracle.is_rounded:
        return
    if len(oracle.shape) < 2:  # noqa: PLR2004 -- no slices, so one element is damaged
        yield Canary("one element zeroed", _without_median_element, Least(LARGE_ELEMENT * oracle.rms, 1 / 3))
        return
    for k, axis in enumerate(oracle.axes):
        if axis == len(oracle.shape):
            continue  # real and imaginary parts
        order = oracle.slice_norms[k].argsort()
        live = order[~reference.null_slices(k)[order]].tolist()
        for index in dict.fromkeys((live[len(live) // 2], live[0]) if live else ()):
            which = "median" if index == live[len(live) // 2] else SMALLEST
            name = f"{which} slice {index} of axis {axis} zeroed"
            least, most = _least_of_a_slice(oracle, k, index), partial(_most_of_a_slice, oracle, k, index)
            yield Canary(name, partial(_without_slice, axis, index), least, most)


def _reorder(most: float, truth: torch.Tensor) -> torch.Tensor | None:
    """The elements in the first order that moves them by more than that: rolled, reversed, or sorted."""
    flat = truth.reshape(-1)
    orders = () if flat.is_complex() else _orders(flat, most)
    return next((order.reshape(truth.shape) for order in orders if _gap(order, flat) > most), None)


def _orders(flat: torch.Tensor, most: float) -> Iterator[torch.Tensor]:
    yield flat.roll(1)
    yield flat.flip(0)
    if _most_of_a_sort(flat) > most:
        yield flat.sort().values


def _gap(order: torch.Tensor, flat: torch.Tensor) -> float:
    pairs = zip(order.split(BLOCK), flat.split(BLOCK), strict=True)
    return math.sqrt(sum(float((one.double() - other.double()).square().sum()) for one, other in pairs))


def _most_of_a_sort(flat: torch.Tensor) -> float:
    """The most that sorting moves a tensor, without sorting it; infinite if a number is not finite.

    Summation by parts: the product of the sorted numbers with d, the numbers less their mean, is at least their range
    times the largest sum of d up to a place, with the other sign.
    """
    mean, span = float(flat.sum(dtype=torch.float64)) / len(flat), float(flat.max()) - float(flat.min())
    square, total, largest = 0.0, 0.0, 0.0
    for block in flat.split(BLOCK):
        apart = block.double() - mean
        sums = apart.cumsum(0) + total
        square += float(torch.dot(apart, apart))
        total, largest = float(sums[-1]), max(largest, float(sums.max()))
    most = SURE * math.sqrt(2.0 * (square + span * largest))
    return most if math.isfinite(most) else math.inf


def _least_of_a_roll(oracle: OracleTensor, enough: float) -> float:
    """The least distance of the first of these orders, or as much of it as is enough."""
    if not oracle.is_rounded or oracle.raw.is_complex():
        return 0.0
    flat, square = oracle.reals.reshape(-1), 0.0
    for one, other in zip(flat[1:].split(BLOCK), flat[:-1].split(BLOCK), strict=True):
        square += float((one - other).square().sum())
        if square > enough * enough:
            break
    return math.sqrt(square)


def _without_median_element(truth: torch.Tensor) -> torch.Tensor:
    sizes = truth.abs().double().nan_to_num(0.0, posinf=0.0)
    loud = (sizes >= LARGE_ELEMENT * sizes.square().mean().sqrt()).nonzero().flatten()
    damaged = truth.clone()
    damaged[loud[sizes[loud].argsort()[len(loud) // 2]]] = 0
    return damaged


def _without_slice(axis: int, index: int, truth: torch.Tensor) -> torch.Tensor:
    damaged = truth.clone()
    damaged.select(axis, index).zero_()
    return damaged


def _least_of_a_slice(oracle: OracleTensor, k: int, index: int) -> Least:
    norm = float(oracle.slice_norms[k][index])
    rms = norm / math.sqrt(math.prod(oracle.sizes) / len(oracle.slice_norms[k]))
    return Least(norm, rms / (rms + oracle.rms), (norm / oracle.norm) ** 2, k, index)


def _most_of_a_slice(oracle: OracleTensor, k: int, index: int) -> Distance:
    """Every other slice loses at most all of itself, or all of the slice that is zero."""
    lost = oracle.slice_norms[k][index]
    slices = [norms.minimum(lost) for norms in oracle.slice_norms]
    slices[k] = torch.zeros_like(slices[k])
    slices[k][index] = lost
    share = min(1.0, (float(lost) / oracle.norm) ** 2)
    return Distance(float(lost), tuple(slices), 1.0, share, 1.0 - math.sqrt(1.0 - share))


# Foresees whether the gates accept a canary, if its least and its most distance from the oracle leave no doubt.

ROUNDINGS = 8.0  # more than the roundings of a canary to its dtype can move it, in roundings of each element
LOST = 0.5  # of the oracle's square: a canary that loses more is too small for its direction to be certain


def foreseen(canary: Canary, dtype: torch.dtype, criteria: TensorCriteria) -> bool | None:
    """Whether all gates accept a canary in a dtype, whatever rounding does to it; None if only they can tell."""
    oracle = criteria.reference.oracle
    if canary.misshapen:
        return False
    rounds = (dtype.is_floating_point or dtype.is_complex) and oracle.is_rounded
    if not (rounds and oracle.all_finite) or math.isinf(criteria.budget.norm):
        return None
    limits = torch.finfo(dtype)
    if not oracle.norm < limits.max / ROUNDINGS:
        return None  # it may overflow
    if _too_far(canary, criteria, limits):
        return False
    return True if _near_enough(canary, dtype, criteria, limits) else None


def _rounding(criteria: TensorCriteria, limits: torch.finfo) -> tuple[float, float]:
    """What roundings add to a norm, of numbers as large as the oracle's, and to a number, in units of its size."""
    oracle, unit = criteria.reference.oracle, ROUNDINGS * limits.eps / 2.0
    return unit * oracle.norm + ROUNDINGS * limits.tiny * math.sqrt(oracle.raw.numel()), unit


def _too_far(canary: Canary, criteria: TensorCriteria, limits: torch.finfo) -> bool:
    """Whether a gate surely rejects it."""
    oracle, budget, least = criteria.reference.oracle, criteria.budget, canary.least
    error, unit = _rounding(criteria, limits)
    if least.absolute * (1.0 - unit) - error > SURE * budget.norm:
        return True
    if criteria.kind == "exact" or criteria.is_judged_by_size:
        return False
    k, index = least.axis, least.index
    return (
        (k >= 0 and bool(oracle.slice_norms[k][index] > SURE * budget.slices[k][index]))  # zeros are not rounded
        or least.gain - error / oracle.norm > SURE * budget.gain
        or least.point - unit - ROUNDINGS * limits.tiny / oracle.rms > SURE * budget.point
    )


def _near_enough(canary: Canary, dtype: torch.dtype, criteria: TensorCriteria, limits: torch.finfo) -> bool:
    """Whether all gates surely accept it. Its numbers are finite, and its low bits must not matter."""
    if canary.most is None or criteria.kind == "exact" or criteria.is_judged_by_size or tested_bits(dtype, criteria):
        return False
    oracle, most = criteria.reference.oracle, canary.most()
    if most.gain > LOST:
        return False
    error, unit = _rounding(criteria, limits)
    share = error / oracle.norm
    farther = Distance(
        SURE * most.absolute + error,
        tuple(SURE * far + error for far in most.slices),
        SURE * most.point + unit + ROUNDINGS * limits.tiny / oracle.rms,
        SURE * most.gain + share,
        most.cosine_gap + 4.0 * share,
    )
    return all(measure.met for measure in measures(farther, oracle, criteria.budget))


Accepts = Callable[[torch.Tensor, TensorCriteria], bool]
Foresees = Callable[[Canary, torch.dtype, TensorCriteria], bool | None]


@dataclass(frozen=True)
class Power:
    """What the canaries showed of the gates.

    Attributes:
        accepted: names of canaries that the gates accept and should reject.
        weak: names of local canaries that the gates accept for a reason that excuses them; see `_Trial.is_weak`.
        left_to: see `Discrepancy.left_to`.
        rejected: number of canaries with wrong values, in the right shape and dtype, that the gates reject; at those of
            float32, if these are more.
    """

    accepted: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    left_to: str = ""
    rejected: int = 0


def power_of(
    dtype: torch.dtype, criteria: TensorCriteria, every_gate_accepts: Accepts, foresees: Foresees = foreseen
) -> Power:
    """Try all canaries on the gates, in the dtype of the candidate.

    Whether all gates accept a canary under some criteria is asked of `every_gate_accepts`, unless that is certain
    before the canary is made; then `foresees` does not return None.
    """
    if criteria.kind == "empty":
        return Power()
    trial = _Trial(dtype, criteria, every_gate_accepts, foresees)
    reference, held_to_float32 = criteria.reference, criteria.uses_float32_budget
    whole = trial.of(global_canaries(dtype, reference, held_to_float32=held_to_float32))
    local = trial.of(local_canaries(reference, criteria.budget))
    passing = [c for c, accepted in (whole | local).items() if accepted]
    rejected = _rejected_over_draws(passing, local, criteria)
    passing = [c for c in passing if c not in rejected]
    caught = sum(not c.misshapen for c in whole | local) - sum(not c.misshapen for c in passing)
    seen = {c.least.axis for c in local if c not in passing}
    weak = [c.name for c in passing if c in local and trial.is_weak(c, seen)]
    accepted = [c.name for c in passing if c in whole]
    accepted += [c.name for c in passing if c in local and c.name not in weak]
    if accepted and criteria.may_be_left_to_float32:
        finely = trial.of(global_canaries(dtype, reference, held_to_float32=True), trial.at_float32)
        if not any(finely.values()):
            caught = max(caught, sum(not c.misshapen for c in finely))
            return Power(weak=tuple(weak), left_to=FP32, rejected=caught)
    if accepted and criteria.reference.kinked and any(map(trial.has_power, criteria.with_other_weights)):
        return Power(weak=tuple(weak), left_to=FP32_REDRAWN, rejected=caught)
    return Power(tuple(accepted), tuple(weak), rejected=caught)


class _Trial:
    """The gates of one tensor, and the canaries that are tried on them; for the arguments see `power_of`."""

    def __init__(
        self, dtype: torch.dtype, criteria: TensorCriteria, every_gate_accepts: Accepts, foresees: Foresees
    ) -> None:
        self._dtype, self._criteria = dtype, criteria
        self._accepts, self._foresees = every_gate_accepts, foresees

    @cached_property
    def at_float32(self) -> TensorCriteria:
        """The criteria with float32's budgets."""
        return self._criteria.at_float32()

    @cached_property
    def _truth(self) -> torch.Tensor:
        """The oracle's tensor in the dtype of the candidate."""
        oracle = self._criteria.reference.oracle
        numbers = torch.view_as_complex(oracle.reals.contiguous()) if self._dtype.is_complex else oracle.reals
        return numbers.to(self._dtype)

    def of(self, canaries: Iterable[Canary], criteria: TensorCriteria | None = None) -> dict[Canary, bool]:
        """Those of the canaries that can be made, and whether all gates accept them; at other criteria, if given."""
        held = criteria or self._criteria
        found = {}
        for canary in canaries:
            known = self._foresees(canary, self._dtype, held)
            if known is not None:
                found[canary] = known
            elif (wrong := canary.make(self._truth)) is not None:
                found[canary] = self._accepts(wrong, held)
        return found

    def has_power(self, criteria: TensorCriteria) -> bool:
        """Whether the gates reject every wrong tensor at other criteria, in float32."""
        if self._dtype not in (torch.float32, torch.complex64):
            return False
        other = _Trial(self._dtype, criteria, self._accepts, self._foresees)
        tried = other.of(global_canaries(self._dtype, criteria.reference, held_to_float32=True))
        return bool(tried) and not any(tried.values())

    def is_weak(self, canary: Canary, seen: Collection[int]) -> bool:
        """Whether the gates are excused for accepting a local canary.

        There are three excuses. The damaged part is below the noise of a low precision, and float32's budgets reject
        the canary. It lies behind a kink, where one flipped unit may change it as much in any precision. Or it is the
        smallest slice of an axis, below the noise of its precision, and one of median size is `seen` to be rejected.
        """
        if self._criteria.kind == "exact":
            return False
        if self._criteria.reference.kinked or (canary.name.startswith(SMALLEST) and canary.least.axis in seen):
            return True
        return not self._criteria.uses_float32_budget and not any(self.of([canary], self.at_float32).values())


def _rejected_over_draws(canaries: Sequence[Canary], local: Iterable[Canary], criteria: TensorCriteria) -> set[Canary]:
    """Those of the canaries that one draw accepts and all draws together reject."""
    reference, redraws, gate = criteria.reference, criteria.reference.redraws, criteria.over_draws
    if not canaries or gate is None or redraws is None:
        return set()
    truths = redraws.truths[: gate.draws]
    sampled = truths[0].shape != reference.oracle.reals.shape  # in a sample, no slice has its place
    rejected = set()
    for canary in canaries if not sampled else set(canaries) - set(local):
        drawn = [wrong for truth in truths if (wrong := canary.make(truth)) is not None]
        if len(drawn) == len(truths) and not all(m.met for m in gate.measures(drawn)):
            rejected.add(canary)
    return rejected


# Compares one tensor of a candidate with the oracle's, by the measure of every gate.

ABSENT = "None"


def compare(
    y: torch.Tensor | None,
    criteria: TensorCriteria,
    again: torch.Tensor | None,
    fault: str,
    drawn: Sequence[torch.Tensor | None] = (),
) -> Discrepancy:
    """Measure a candidate by every gate, try the canaries, and compare it with a second call.

    Args:
        y: the candidate's tensor; None if the model returned none.
        criteria: the kind and the budgets of the tensor.
        again: the same tensor of an identical second call, if there is one.
        fault: what is wrong with the tensor apart from its values, such as its device; "" for nothing.
        drawn: the tensor in further draws of the case, as `distance.sample` gives it; empty if it is not judged so.
    """
    found = compare_values(y, criteria, fault, drawn)
    if y is None or fault:
        return found
    measures = found.measures
    if again is not None and measures[0].met:
        measures = (*measures, _stability(y, again, criteria))
    power = power_of(y.dtype, criteria, partial(accepts, dtype=name_of(y.dtype))) if measures[0].met else Power()
    if power.left_to == FP32 and all(m.met for m in measures_of(y, criteria.at_float32())):
        power = replace(power, left_to="")  # it has passed gates that reject every canary
    return replace(found, measures=measures, **vars(power), closer=_closer(found.measures, criteria))


def _closer(measures: Sequence[Measure], criteria: TensorCriteria) -> bool | None:
    """See `Discrepancy.closer`."""
    norm = next((m for m in measures if m.gate == "norm"), None)
    if norm is None or criteria.beside is None or criteria.is_judged_by_size:
        return None
    return norm.value < criteria.beside.absolute / criteria.reference.oracle.norm


def compare_values(
    y: torch.Tensor | None, criteria: TensorCriteria, fault: str, drawn: Sequence[torch.Tensor | None] = ()
) -> Discrepancy:
    """As `compare`, without canaries and without a second call."""
    if y is None or fault:
        missing = Measure("structure", math.inf, 0.0, fault or "None, where the oracle has a tensor")
        dtype = ABSENT if y is None else name_of(y.dtype)
        return Discrepancy(criteria.case, criteria.tensor, "absent", dtype, criteria.dtype, (missing,))
    measures = measures_of(y, criteria, drawn)
    return Discrepancy(criteria.case, criteria.tensor, criteria.kind, name_of(y.dtype), criteria.dtype, measures)


def name_of(dtype: torch.dtype) -> str:
    """The name of a dtype without "torch."."""
    return str(dtype).removeprefix("torch.")


def measures_of(
    y: torch.Tensor, criteria: TensorCriteria, drawn: Sequence[torch.Tensor | None] = ()
) -> tuple[Measure, ...]:
    """The measure of every gate, the structure first. If the shape is wrong, there are no others."""
    oracle = criteria.reference.oracle
    if tuple(y.shape) != oracle.shape:
        return (Measure("structure", math.inf, 0.0, f"shape {tuple(y.shape)}, the oracle's is {oracle.shape}"),)
    if y.is_complex() != oracle.raw.is_complex():
        other = f"{name_of(y.dtype)}, the oracle's is {name_of(oracle.raw.dtype)}"
        return (Measure("structure", math.inf, 0.0, other),)
    structure = Measure("structure", 0.0, 0.0)
    if criteria.kind == "empty":
        return (structure,)
    if criteria.kind == "exact":
        return (structure, _exact(y, criteria))
    values = measures(oracle.distance(y), oracle, criteria.budget)
    over_draws = criteria.over_draws.measures(drawn) if criteria.over_draws and drawn else ()
    return (structure, _classes(y, criteria), *values, *over_draws, *precision_measure(y, criteria))


def accepts(y: torch.Tensor, criteria: TensorCriteria, dtype: str) -> bool:
    """Whether every gate accepts a tensor that should have a dtype of that name."""
    return failed_gate(replace(compare_values(y, criteria, ""), dtype_asked=dtype)) is None


def _exact(y: torch.Tensor, criteria: TensorCriteria) -> Measure:
    """Whether all elements are equal; for integers, those whose value no perturbed run changes."""
    oracle = criteria.reference.oracle
    y = y.detach().cpu()
    wanted = oracle.raw.to(y.dtype)
    differs = (y != wanted) & ~(y.isnan() & wanted.isnan())
    settled = criteria.reference.settled.get(criteria.cell_precision.name)
    if settled is not None:
        differs &= settled
    count = int(differs.sum())
    if not count:
        return Measure("exact", 0.0, 0.0)
    first = oracle.index(int(differs.flatten().to(torch.uint8).argmax()))
    return Measure("exact", count, 0.0, f"{count} of {differs.numel()} elements differ, the first at {first}")


def _classes(y: torch.Tensor, criteria: TensorCriteria) -> Measure:
    """Whether every element is finite, +inf, −inf or NaN like the oracle's.

    An infinity is accepted if the oracle's element is near the largest number of the dtype.
    """
    oracle = criteria.reference.oracle
    if oracle.all_finite and distance.all_finite(distance.real_numbers(y)):
        return Measure("class", 0.0, 0.0)
    reals, wanted = distance.flat_reals(y), oracle.reals
    same = (reals.isfinite() & wanted.isfinite()) | (reals.isnan() & wanted.isnan()) | (reals == wanted)
    if y.dtype.is_floating_point or y.dtype.is_complex:
        edge = (1.0 - 8.0 * criteria.precision.unit) * torch.finfo(y.dtype).max
        beyond = (wanted.abs() >= edge) & ~wanted.isnan()
        same |= beyond & (reals.sign() == wanted.sign()) & ~reals.isnan()
    count = int((~same).sum())
    if not count:
        return Measure("class", 0.0, 0.0)
    at = int((~same).flatten().to(torch.uint8).argmax())
    got, want = float(reals.flatten()[at]), float(wanted.flatten()[at])
    return Measure("class", math.inf, 0.0, f"element {oracle.index(at)} is {got:.4g}, the oracle's {want:.4g}")


def _stability(y: torch.Tensor, again: torch.Tensor, criteria: TensorCriteria) -> Measure:
    if y.shape != again.shape or y.dtype != again.dtype:
        return Measure("stable", math.inf, 0.0, f"{name_of(again.dtype)} of shape {tuple(again.shape)}")
    if distance.same_bytes(y, again):
        return Measure("stable", 0.0, 0.0)
    one, other = distance.flat_reals(y), distance.flat_reals(again)
    alike = (one == other) | (one.isnan() & other.isnan())
    gap = float((one - other).where(~alike, 0.0).norm())
    most = 0.0 if criteria.bitwise else criteria.budget.norm
    return Measure("stable", math.inf if math.isnan(gap) else gap, most)
