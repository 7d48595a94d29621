"""Perturbs every rounding of a run of the oracle, to see how far a correct implementation may stray.

This is Monte Carlo arithmetic. In forward and backward, the operands and results of every ATen op that rounds are
multiplied by 1 + η·ξ. ξ is uniform in [−1, 1], for each element its own. η is four unit roundoffs (two for a low
precision without kinks), or 4·2⁻²⁴·√L if an op sums L terms in an order of its choice, whichever is more. TF32 affects
the operands of products, and only the numbers that it does not represent. For these η is larger, and the range of the
factor reaches two roundoffs further down, because a device may truncate.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from conformance.axes import PRECISIONS, Precision
from conformance.gates.budget import NOISE
from conformance.oracle.blocks import BLOCK, any_by_blocks, by_blocks
from conformance.oracle.counting import counts
from conformance.oracle.custom_ops import OpMode, unwatched
from conformance.oracle.inputs import is_rounded, widest
from conformance.oracle.nested import leaves_of, map_leaves
from conformance.oracle.noise import Noise
from conformance.oracle.op_kinds import OpKind, kind_of
from conformance.oracle.resampling import resampled, selects

if TYPE_CHECKING:
    from typing_extensions import Self  # torch brings it

RUNS = 8
KINKED_RUNS = 20  # for a low precision behind a kink: one perturbed run misses a flipped unit 3 times in 5
FLOAT32_NOISE = NOISE * PRECISIONS["fp32"].unit
RANGE = 1e-30  # formats whose smallest number is below it hold whatever a model computes
BELOW_TF32 = 2**42 - 1  # the mantissa bits of a float64 that TF32 lacks


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
        self._limited = precision.autocast and precision.quantum >= RANGE
        self._quantum, self._scale = precision.quantum, scale
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
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *problem: object) -> None:
        super().__exit__(*problem)  # type: ignore[no-untyped-call]
        for hook in self._hooks.pop():
            hook.remove()

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op; if it rounds, perturb its operands and results."""
        kind = kind_of(func)
        if kind.moves or not _has_rounded((args, kwargs)) or kind.selects((args, kwargs)):
            return func(*args, **kwargs)
        if kind.adds_single_terms(func, args):
            return func(*args, **kwargs)
        eta = max(self._unit, FLOAT32_NOISE * math.sqrt(kind.terms(args)))
        if kind.resamples and bool(args[0].isfinite().all()):
            return self._resampled(func, args, kwargs, eta)
        written = kind.writes(args, kwargs)
        whole = kind.may_count and counts((args, kwargs), kind.name)
        given = (args, kwargs) if whole else self._operands(kind, args, kwargs, eta, written)
        result = func(*given[0], **given[1])
        if whole and counts(result, kind.name):
            return result
        return self._results(kind, result, (args, kwargs), eta, written)

    def _operands(
        self, kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any], eta: float, written: list[torch.Tensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The perturbed operands of an op."""

        def perturb(leaf: Any) -> Any:
            return self._stored(kind, leaf, eta) if is_rounded(leaf) and not _among(leaf, written) else leaf

        multiplied = kind.multiplied if self._product else ()
        with unwatched():
            args = tuple(
                self._multiplied(arg, eta)
                if i in multiplied
                else self._placed(arg, eta)
                if i == kind.grid
                else map_leaves(perturb, arg)
                for i, arg in enumerate(args)
            )
            return args, map_leaves(perturb, kwargs)

    def _results(
        self, kind: OpKind, result: Any, arguments: tuple[Any, Any], eta: float, written: list[torch.Tensor]
    ) -> Any:
        """The perturbed results of an op, those that it has written among them."""

        def perturb(leaf: Any) -> Any:
            if not is_rounded(leaf) or _among(leaf, written):
                return leaf
            return self._stored(kind, leaf, eta, owned=not _shares_memory(leaf, arguments))

        with unwatched():
            for tensor in written:
                tensor.copy_(self._perturbed(tensor, eta, eta))
            result = map_leaves(perturb, result)
            return self._added_up_low(result, arguments[0][0], eta) if kind.sums_rows else result

    def _stored(self, kind: OpKind, leaf: torch.Tensor, eta: float, *, owned: bool = False) -> torch.Tensor:
        """A perturbed operand or result. Autocast gives those of products its dtype, and most others float32."""
        moved = self._perturbed(leaf, eta, eta, owned=owned)
        if not kind.multiplied or not self._limited:
            return moved
        return self._underflown(moved, owned=owned or moved is not leaf)

    def _added_up_low(self, result: tuple[Any, ...], cotangent: torch.Tensor, eta: float) -> tuple[Any, ...]:
        """The results of a norm's backward, whose kernels may add up the rows in the low precision itself."""
        rows = max(1.0, cotangent.numel() / max((t.numel() for t in result[1:] if t is not None), default=1))
        of_rows = eta * math.sqrt(rows)
        return result[:1] + tuple(t if t is None else self._perturbed(t, of_rows, of_rows) for t in result[1:])

    def _resampled(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], eta: float) -> torch.Tensor:
        """The result of an interpolation, whose kernel computes places in float32 in every precision."""
        exact = selects(func.overloadpacket.__name__)

        def perturb(tensor: torch.Tensor) -> torch.Tensor:
            return tensor if exact else self._perturbed(tensor, eta, eta)

        def place(tensor: torch.Tensor) -> torch.Tensor:
            return self._perturbed(tensor, FLOAT32_NOISE, FLOAT32_NOISE)

        result = func(*args, **kwargs)
        with unwatched():
            found = resampled(func, (perturb(args[0]), *args[1:]), kwargs, place, perturb)
            return torch.empty_like(result).copy_(perturb(found))

    def _underflown(self, tensor: torch.Tensor, *, owned: bool) -> torch.Tensor:
        """The tensor as a format of limited range might hold it."""
        if tensor.is_complex():
            return torch.view_as_complex(self._underflown(torch.view_as_real(tensor), owned=owned))
        quantum = self._quantum / self._scale if in_backward() else self._quantum
        limit = quantum / self._low
        if not any_by_blocks(lambda part: (part.abs() < limit) & (part != 0.0), tensor):
            return tensor
        return by_blocks(lambda part: self._near_underflow(part, quantum), tensor, owned=owned)

    def _near_underflow(self, numbers: torch.Tensor, quantum: float) -> torch.Tensor:
        """Numbers perturbed by some quanta, but by no more than their size: they keep their signs, or become zero."""
        noise, sign = self._noise.window(len(numbers))
        most = NOISE / 2.0 * quantum
        return torch.addcmul(numbers, numbers.clamp(-most, most), noise, value=sign)

    def _placed(self, grid: torch.Tensor, eta: float) -> torch.Tensor:
        """A perturbed grid of grid_sampler, which adds one to every coordinate before it rounds."""
        return self._perturbed(self._perturbed(grid, eta, eta) + 1.0, eta, eta) - 1.0

    def _multiplied(self, operand: torch.Tensor, eta: float) -> torch.Tensor:
        """A perturbed operand of a product. A device may round or truncate it, and truncation only makes it smaller."""
        coarse = self._perturbed(operand, max(eta, self._product + self._cut), max(eta, self._product))
        if operand.is_complex():
            return coarse
        held = operand.view(torch.int64) & BELOW_TF32 == 0
        return torch.where(held, self._perturbed(operand, eta, eta), coarse)

    def _perturbed(self, tensor: torch.Tensor, down: float, up: float, *, owned: bool = False) -> torch.Tensor:
        """The tensor times 1 + ξ with ξ in [−down, up]; in its own memory if that is `owned` and large."""
        if tensor.is_conj() or tensor.is_neg():  # below autograd, a product forgets both
            tensor = tensor.resolve_conj().resolve_neg()
        tensor = tensor.to(widest(tensor.dtype))
        return by_blocks(lambda part: self._moved(part, down, up), tensor, owned=owned)

    def _moved(self, numbers: torch.Tensor, down: float, up: float) -> torch.Tensor:
        return numbers * self._noise.factors(len(numbers), down, up)


def in_backward() -> bool:
    """Whether autograd is running a backward pass."""
    return torch._C._current_autograd_node() is not None  # noqa: SLF001 -- no public name


def _has_rounded(tree: Any) -> bool:
    return any(is_rounded(leaf) for leaf in leaves_of(tree))


def _among(leaf: torch.Tensor, tensors: list[torch.Tensor]) -> bool:
    return any(leaf is tensor for tensor in tensors)


def _shares_memory(leaf: torch.Tensor, arguments: Any) -> bool:
    """Whether a large tensor may lie in the memory of an argument. Memory of a small one is not written again."""
    if leaf.numel() <= BLOCK:
        return False
    place = leaf.untyped_storage().data_ptr()
    return any(place == t.untyped_storage().data_ptr() for t in leaves_of(arguments) if isinstance(t, torch.Tensor))
