"""Perturbs every rounding of a run of the oracle, to see how far a correct implementation may stray.

This is Monte Carlo arithmetic. In forward and backward, the operands and results of every ATen op that rounds are
multiplied by 1 + η·ξ. ξ is uniform in [−1, 1] and new for each element. η is four unit roundoffs (two for a low
precision without kinks), or 4·2⁻²⁴·√L if an op sums L terms in an order of its choice, whichever is more. TF32 affects
the operands of products, and only the numbers that it does not represent. For these η is larger, and the range of the
factor reaches two roundoffs further down, because a device may truncate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from conformance.axes import Precision
from conformance.evaluate import backward, inputs
from conformance.evaluate.custom_ops import OpMode, Unwatched, leaves_of, map_leaves, written_tensors
from conformance.gates.budget import FLOAT32, NOISE
from conformance.gates.distance import all_finite
from conformance.perturb.ops import LARGEST, Rows, Rule, rule_of
from conformance.perturb.resampling import resample

if TYPE_CHECKING:
    from typing_extensions import Self  # torch brings it

FLOAT32_NOISE = NOISE * FLOAT32.unit
RUNS = 8
KINKED_RUNS = 20  # for a low precision behind a kink: one perturbed run misses a flipped unit 3 times in 5
RANGE = 1e-30  # formats whose smallest number is below it hold whatever a model computes
BELOW_TF32 = 2**42 - 1  # the mantissa bits of a float64 that TF32 lacks
FLOAT64_BITS = 53
TO_WHOLE = 1.5 * 2.0 ** (FLOAT64_BITS - 1)  # added and subtracted, it rounds a float64 to a whole number


class Rounding(OpMode):
    """Perturbs every rounding while active. An optimiser's step rounds to float32 in every precision.

    Args:
        precision: the precision whose unit roundoff scales the perturbations.
        generator: random generator of the perturbations.
        noise: size of the perturbations, in unit roundoffs.
        scale: the scale of the cotangents under float16.
    """

    def __init__(
        self, precision: Precision, generator: torch.Generator, noise: float = NOISE, scale: float = 1.0
    ) -> None:
        super().__init__()
        self._limited = precision.low_dtype and precision.quantum >= RANGE
        self._cast, self._step = bool(precision.cast), precision.unit
        self._quantum, self._scale = precision.quantum, scale if precision.is_scaled else 1.0
        self._low = self._unit = noise * precision.unit
        self._product = noise * precision.product_unit
        self._cut = 2.0 * precision.product_unit
        self._noise = Noise(generator)
        self._hooks: list[tuple[Any, ...]] = []  # one pair for each time that it was entered; `OpMode` enters it again

    def __enter__(self) -> Self:
        def narrow(*_: Any) -> None:
            self._unit = self._low

        def widen(*_: Any) -> None:
            self._unit = 0.0

        self._hooks.append((register_optimizer_step_pre_hook(widen), register_optimizer_step_post_hook(narrow)))
        super().__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        super().__exit__(*problem)
        for hook in self._hooks.pop():
            hook.remove()

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op; if it rounds, perturb its operands and results. Adding makes a sparse gradient dense."""
        rule = rule_of(func, kwargs)
        if rule.moves(func, args, kwargs) or not any(map(inputs.has_fractions, leaves_of((args, kwargs)))):
            result = func(*args, **kwargs)
            return self._make_table(result) if rule.tabulates else result
        eta = max(self._unit, FLOAT32_NOISE * math.sqrt(_count_terms(rule, args)))
        written = [tensor for tensor in written_tensors(func, args, kwargs) if inputs.is_rounded(tensor)]

        # in forward, autocast gives operands and results of products its dtype, and those of most other ops float32
        stored = self._limited and (self._cast or bool(rule.products) or backward.is_running())

        def perturb(leaf: Any) -> Any:
            if (
                not inputs.is_rounded(leaf)
                or (written and any(leaf is tensor for tensor in written))
                or (rule.keeps_masks and _is_mask(leaf))
            ):
                return leaf
            leaf = self._perturb(leaf, eta, eta)
            return leaf if leaf.is_complex() or not stored else self._underflown(leaf)

        if rule.kernel and bool(args[0].isfinite().all()):
            return self._resample(rule, func, args, kwargs, eta)
        with Unwatched():
            whole = are_whole((args, kwargs), rule.whole_from)
            if not whole:
                args, kwargs = self._operands(rule, args, eta, perturb), map_leaves(perturb, kwargs)
        result = func(*args, **kwargs)
        if not rule.adds_up:
            args, kwargs = (), {}  # the perturbed operands may be large
        with Unwatched():
            if whole and are_whole(result, rule.whole_from):
                return result
            for tensor in written:
                tensor.copy_(self._perturb(tensor, eta, eta))
            result = map_leaves(perturb, result)
            return self._with_strays(rule, func, args, kwargs, result, eta) if rule.adds_up else result

    def _with_strays(  # noqa: PLR0913 -- all that `run_op` knows
        self, rule: Rule, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, eta: float
    ) -> Any:
        """The result of an op whose kernel rounds partial sums."""
        if self._cast and rule.places is not None:
            added, squares = count_in_places(rule.places, func, args, kwargs)
            result.copy_(self._add_strays(result, squares, self._step * added.sqrt()))
        if rule.rows:
            sums = (t if t is None else self._added_up(rule.rows, args[0], t, eta) for t in result[1:])
            return (*result[:1], *sums)
        return result

    def _make_table(self, table: torch.Tensor) -> torch.Tensor:
        """A perturbed table of numbers. What float32 holds, as a range of whole numbers, stays as it is."""
        if not inputs.is_rounded(table):
            return table
        eta = self._unit if self._cast else FLOAT32_NOISE
        with Unwatched():
            held = table == table.float()
            if bool(held.all()):
                return table
            return torch.where(held, table, table + eta * table.abs().max() * self._noise.uniform(table.shape))

    def _added_up(self, add: Rows, gradient: torch.Tensor, sums: torch.Tensor, eta: float) -> torch.Tensor:
        """The perturbed gradient of a norm's weight or bias. What multiplies a term has the mean square 1."""
        rows = max(1.0, gradient.numel() / max(1, sums.numel()))
        return self._add_strays(sums, add(gradient.square(), sums), eta * math.sqrt(rows))

    def _add_strays(self, sums: torch.Tensor, squares: torch.Tensor, eta: torch.Tensor | float) -> torch.Tensor:
        """Sums whose partial sums are perturbed.

        These are as large as the root of the sum of the squares of their terms, also where the sum itself cancels.
        """
        return sums + eta * torch.maximum(sums.abs(), squares.abs().sqrt()) * self._noise.uniform(sums.shape)

    def _operands(
        self, rule: Rule, args: tuple[Any, ...], eta: float, perturb: Callable[[Any], Any]
    ) -> tuple[Any, ...]:
        """The perturbed operands of an op."""
        multiplied = rule.products if self._product else ()
        if not (multiplied or rule.grid or rule.probabilities):
            return tuple(map_leaves(perturb, args))
        return tuple(
            self._perturb_factor(arg, eta)
            if i in multiplied
            else self._perturb_grid(arg, eta)
            if rule.grid and i == rule.grid
            else perturb(arg).clamp(0.0, 1.0)
            if i in rule.probabilities
            else map_leaves(perturb, arg)
            for i, arg in enumerate(args)
        )

    def _resample(
        self, rule: Rule, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], eta: float
    ) -> torch.Tensor:
        """The result of an interpolation, whose kernel computes places in float32 in every precision."""

        def perturb(tensor: torch.Tensor) -> torch.Tensor:
            return tensor if rule.picks else self._perturb(tensor, eta, eta)

        result = func(*args, **kwargs)
        with Unwatched():
            found = resample(
                func,
                (perturb(args[0]), *args[1:]),
                kwargs,
                lambda t: self._perturb(t, FLOAT32_NOISE, FLOAT32_NOISE),
                perturb,
            )
            return torch.empty_like(result).copy_(perturb(found))

    def _underflown(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as a format of limited range might hold it; its numbers keep their signs, or become zero."""
        return self._near_underflow(tensor, self._quantum / self._scale if backward.is_scaled() else self._quantum)

    def _near_underflow(self, tensor: torch.Tensor, quantum: float) -> torch.Tensor:
        return self._noise.move(tensor, NOISE / 2 * quantum)

    def _perturb_grid(self, grid: torch.Tensor, eta: float) -> torch.Tensor:
        """A perturbed grid of grid_sampler, which adds one to every coordinate before it rounds."""
        return self._perturb(self._perturb(grid, eta, eta) + 1.0, eta, eta) - 1.0

    def _perturb_factor(self, operand: torch.Tensor, eta: float) -> torch.Tensor:
        """A perturbed operand of a product. A device may round or truncate it, and truncation only makes it smaller."""
        coarse = self._perturb(operand, max(eta, self._product + self._cut), max(eta, self._product))
        if operand.is_complex():
            return coarse
        held = operand.view(torch.int64) & BELOW_TF32 == 0
        return torch.where(held, self._perturb(operand, eta, eta), coarse)

    def _perturb(self, tensor: torch.Tensor, down: float, up: float) -> torch.Tensor:
        tensor = tensor.resolve_conj().resolve_neg()  # below autograd, a product forgets both
        return self._noise.perturb(tensor, down, up)


def _is_mask(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds zeros and ones alone."""
    return bool(((tensor == 0) | (tensor == 1)).all())


def _count_terms(rule: Rule, args: tuple[Any, ...]) -> int:
    """How many terms an op sums for each result."""
    shapes = [tuple(arg.shape) for arg in args if isinstance(arg, torch.Tensor)]
    return rule.terms(shapes, args) if shapes else 1


class Nearest(Rounding):
    """Rounds every operand and result of an op that rounds to the mantissa of a precision. Nothing overflows.

    Args:
        precision: the precision.
        scale: the scale of the cotangents under float16.

    Attributes:
        constant: the relative error of constants that multiply whole tensors, such as 1 / (1 - p) in the masks of
            dropouts. It is the root of the sum of their squares, because a mode may round one and keep the next.
    """

    constant = 0.0

    def __init__(self, precision: Precision, scale: float = 1.0) -> None:
        super().__init__(precision, torch.Generator(), scale=scale)  # which it does not use: nothing here is random
        self._splitter = 2.0**FLOAT64_BITS * precision.unit + 1.0  # Veltkamp's constant

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op, rounded. If it divides a mask by a number, note how the quotient rounds."""
        divides = rule_of(func, kwargs).divides and not backward.is_running()
        exact = _of_mask(*args[:2]) if divides else 0.0
        result = super().run_op(func, args, kwargs)
        if exact:
            self.constant = math.hypot(self.constant, float(result.abs().max()) / exact - 1.0)
        return result

    def _perturb(self, tensor: torch.Tensor, down: float, up: float) -> torch.Tensor:
        """The tensor, rounded to nearest; as it is if every precision keeps it in float32."""
        if max(down, up) < self._low:
            return tensor
        tensor = tensor.resolve_conj().resolve_neg()
        nearest = tensor * self._splitter
        nearest -= nearest - tensor
        return nearest if all_finite(nearest) else torch.where(nearest.isfinite(), nearest, tensor)

    def _add_strays(self, sums: torch.Tensor, squares: torch.Tensor, eta: torch.Tensor | float) -> torch.Tensor:  # noqa: ARG002
        """The sums as they are: how the partial sums round, one run cannot tell."""
        return sums

    def _near_underflow(self, tensor: torch.Tensor, quantum: float) -> torch.Tensor:
        """The tensor, rounded to multiples of the smallest number, as the larger ones are too."""
        shift = quantum * TO_WHOLE
        return (tensor + shift).sub_(shift)


def _of_mask(mask: Any, divisor: Any) -> float:
    """The largest number of a mask over a number; 0 for any other quotient."""
    number = divisor.item() if isinstance(divisor, torch.Tensor) and divisor.dim() == 0 else divisor
    if not isinstance(mask, torch.Tensor) or not isinstance(number, (int, float)) or not number:
        return 0.0
    with Unwatched():
        return abs(1.0 / number) if _is_mask(mask) and mask.any() else 0.0


def count_in_places(
    at: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """How many terms an op adds up in each place of its result, at least 1, and the sums of their squares.

    Its kernel may hold the partial sums in a low precision. The terms are argument number `at`; a factor of them is
    left out.
    """
    plain = {key: value for key, value in kwargs.items() if key != "alpha"}

    def added(terms: torch.Tensor) -> torch.Tensor:
        given = [torch.zeros_like(args[0]) if i == 0 else arg for i, arg in enumerate(args)]
        given[at] = terms
        result: torch.Tensor = func(*given, **plain)
        return result

    return added(torch.ones_like(args[at])).clamp(min=1.0), added(args[at].square())


# Tells whether an op computes with small whole numbers, which every precision represents: then it rounds nothing.


def are_whole(numbers: Any, least: int | None) -> bool:
    """Whether all floating numbers in a container are whole, and neither smaller nor larger than every precision holds.

    `least` is the smallest number: 0 for a sum, as partial sums of numbers of both signs may be larger than the sum;
    None for an op that gives no whole numbers for whole numbers.
    """
    if least is None:
        return False
    for leaf in leaves_of(numbers):
        if isinstance(leaf, float) and not leaf.is_integer():
            return False
        if inputs.is_rounded(leaf) and not _is_whole(leaf, least):
            return False
    return True


def _is_whole(tensor: torch.Tensor, least: int) -> bool:
    if tensor.is_complex():
        return False
    if not tensor.numel():
        return True
    first = tensor.as_strided((), ()).item()  # most tensors are told by one element
    if first != first // 1 or not abs(first) <= LARGEST:
        return False
    low, high = tensor.aminmax()
    return least <= float(low) and float(high) <= LARGEST and bool((tensor == tensor.trunc()).all())


# The noise of perturbed runs: numbers that are uniform from -1 to 1.
#
# They are read from a pool of two million numbers, which is the same in every process. Small tensors read on from where
# the last one ended, so no number comes twice among a million. A large one reads from a random place on. So its
# numbers come back in other ops, at other elements, and in one tensor after a million elements at the earliest: one sum
# hardly has a number twice.

LARGE = 2**16  # elements
POOL = 2**21
WINDOW = POOL // 2  # that are read at once
KEPT = 16  # sizes of perturbations for which the factors of the whole pool are kept, 16 MiB each
STEP = 2.0**-31  # uniform numbers of all of int32 are drawn twice as fast as numbers of float64


class Noise:
    """The noise of one run. The generator chooses the places of the pool from which it reads on."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator, self._place = generator, POOL

    def uniform(self, shape: torch.Size) -> torch.Tensor:
        """Uniform numbers from -1 to 1, as float64."""
        return torch.cat(self._windows(_pool(), shape.numel())).view(shape)

    def perturb(self, tensor: torch.Tensor, down: float, up: float) -> torch.Tensor:
        """A tensor times random factors, as float64 or complex128, with the strides of the tensor if it is dense.

        The factors are uniform from 1 - down to 1 + up.
        """
        middle, reach = 1.0 + (up - down) / 2, (up + down) / 2
        result = torch.empty_like(tensor, dtype=inputs.widest(tensor.dtype))
        if tensor.numel() < LARGE:  # one view, because here each call of torch counts
            numbers = _pool().as_strided(result.shape, result.stride(), self._next(tensor.numel()))
            return torch.mul(tensor, torch.rsub(numbers, middle, alpha=reach), out=result)
        flat = None if tensor.is_complex() else _in_memory_order(tensor)
        if flat is None:
            return torch.mul(tensor, self.uniform(tensor.shape).mul_(reach).add_(middle), out=result)
        windows = self._windows(_factors(middle, reach), len(flat))
        products = result.permute(_order(result)).view(-1).split(WINDOW)
        for numbers, window, product in zip(flat.split(WINDOW), windows, products, strict=True):
            torch.mul(numbers, window, out=product)
        return result

    def move(self, tensor: torch.Tensor, most: float) -> torch.Tensor:
        """Move each number of a dense tensor, in place: at most so far, and at most as far as zero or its double."""
        if tensor.numel() < LARGE:
            numbers = _pool().as_strided(tensor.shape, tensor.stride(), self._next(tensor.numel()))
            return tensor.addcmul_(tensor.clamp(-most, most), numbers)
        flat = tensor.permute(_order(tensor)).view(-1)
        for part, window in zip(flat.split(WINDOW), self._windows(_pool(), len(flat)), strict=True):
            for block, numbers in zip(part.split(LARGE), window.split(LARGE), strict=True):  # a cache holds one
                block.addcmul_(block.clamp(-most, most), numbers)
        return tensor

    def _windows(self, pool: torch.Tensor, count: int) -> list[torch.Tensor]:
        """Parts of a pool that have so many numbers together, but one part at least."""
        sizes = [min(count - start, WINDOW) for start in range(0, max(count, 1), WINDOW)]
        return [pool.narrow(0, self._next(size), size) for size in sizes]

    def _next(self, count: int) -> int:
        """The place of the next numbers, at most a window; for a large tensor, a random place."""
        if count >= LARGE or self._place + count > POOL:
            self._place = int(torch.randint(POOL - WINDOW + 1, (), generator=self._generator))
        place, self._place = self._place, self._place + count
        return place


@cache
def _pool() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.empty(POOL // 2, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    return numbers.view(torch.int32).to(torch.float64).mul_(STEP)


@lru_cache(KEPT)
def _factors(middle: float, reach: float) -> torch.Tensor:
    return _pool().mul(reach).add_(middle)


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor | None:
    """The elements of a tensor as they lie in memory; None if there are gaps between them, or some lie on others."""
    lying = tensor.permute(_order(tensor))
    return lying.view(-1) if lying.is_contiguous() else None


def _order(tensor: torch.Tensor) -> list[int]:
    """The axes of a tensor, that of the largest stride first."""
    return sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
