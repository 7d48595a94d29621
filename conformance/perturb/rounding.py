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
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from conformance.axes import PRECISIONS, Precision
from conformance.evaluate import backward
from conformance.evaluate.custom_ops import (
    BATCH_NORMS,
    OpMode,
    Unwatched,
    by_name,
    leaves_of,
    map_leaves,
    written_names,
)
from conformance.evaluate.inputs import has_fractions, is_rounded
from conformance.gates.budget import NOISE
from conformance.perturb.kink_gaps import selects_in_groups
from conformance.perturb.resampling import RESAMPLERS, resample, selects
from conformance.perturb.terms import (
    IN_PLACES,
    OF_ROWS,
    adds_single_terms,
    counts,
    may_count,
    over_places,
    over_rows,
    terms,
)

if TYPE_CHECKING:
    from typing_extensions import Self  # torch brings it


from functools import cache, lru_cache

RUNS = 8
KINKED_RUNS = 20  # for a low precision behind a kink: one perturbed run misses a flipped unit 3 times in 5


# Ops that move, select or compare numbers without rounding any; views are recognised by their schema.
MOVES = frozenset(
    """
    _chunk_cat _local_scalar_dense _reshape_alias _to_copy _unique2 _unsafe_masked_index _unsafe_view abs
    adaptive_max_pool2d adaptive_max_pool3d alias alias_copy all amax amin aminmax any arange argmax argmin argsort
    as_strided_copy as_strided_scatter bernoulli block_diag broadcast_tensors bucketize cat ceil channel_shuffle
    clamp clamp_max clamp_min clone complex conj_physical constant_pad_nd contiguous copy copysign count_nonzero
    cummax cummin detach diag_embed diagonal_backward diagonal_copy diagonal_scatter embedding empty empty_like
    empty_strided eq equal expand_copy fill flip floor fmax fmin fractional_max_pool2d fractional_max_pool3d full
    full_like gather ge gt hardshrink hardshrink_backward hardtanh hardtanh_backward heaviside histc im2col index
    index_copy index_fill index_select is_same_size isfinite isin isinf isnan isneginf isposinf kthvalue le
    lift_fresh lift_fresh_copy logical_and logical_not logical_or logical_xor lt lu_unpack masked_fill
    masked_scatter masked_scatter_backward masked_select max max_pool2d_with_indices max_pool3d_with_indices
    max_unpool2d max_unpool3d maximum median min minimum mode msort nan_to_num nanmedian narrow_copy
    native_channel_shuffle ne neg new_empty new_empty_strided new_full new_ones new_zeros nonzero ones ones_like
    permute_copy pixel_shuffle pixel_unshuffle rand_like randn_like reflection_pad1d reflection_pad2d
    reflection_pad3d relu repeat replication_pad1d replication_pad2d replication_pad3d resize resize_as roll rot90
    round scalar_tensor scatter searchsorted select_backward select_scatter set set_data sgn sign signbit
    slice_backward slice_scatter sort split_with_sizes_copy squeeze_copy stack take threshold threshold_backward
    topk transpose_copy tril triu trunc unbind_copy unfold_copy unique unsafe_split unsqueeze_copy
    value_selecting_reduction_backward view_as_complex_copy view_copy where zero zeros zeros_like
    """.split()
)


# Ops that compute numbers from no tensor, in float32 under autocast too.
FACTORIES = frozenset(
    "arange bartlett_window blackman_window hamming_window hann_window kaiser_window linspace logspace".split()
)


# Ops that tensor cores compute, with the positions of the arguments that are multiplied. cuBLAS and cuDNN may round
# these to TF32, and no others.
PRODUCTS = {
    **dict.fromkeys(("mm", "bmm", "linear", "convolution", "_convolution", "cudnn_convolution"), (0, 1)),
    **dict.fromkeys(("addmm", "baddbmm"), (1, 2)),
    "convolution_backward": (0, 1, 2),
}


# Ops that sample an image at the places of a grid, with the position of the grid among their arguments.
GRIDS = {"grid_sampler_2d": 1, "grid_sampler_3d": 1, "grid_sampler_2d_backward": 2, "grid_sampler_3d_backward": 2}


# Ops that refuse numbers below zero and above one, with the positions of the arguments.
PROBABILITIES = {"binary_cross_entropy": (0, 1), "binary_cross_entropy_backward": (1, 2)}


# Ops whose forward hands a mask of zeros and ones to their backward, as a floating tensor.
MASKED = frozenset({"multilabel_margin_loss_forward", "multilabel_margin_loss_backward"})
RANGE = 1e-30  # formats whose smallest number is below it hold whatever a model computes
NEAR = 8.0  # times the size at which underflow counts as much as rounding; what is larger is left out of large tensors
FEW = 4  # times less numbers than all are picked out; more are perturbed where they are
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
        self._limited = precision.low_dtype and precision.quantum >= RANGE
        self._cast, self._step = bool(precision.cast), precision.unit
        self._quantum, self._scale = precision.quantum, scale if precision.is_scaled else 1.0
        self._low = self._unit = noise * precision.unit
        self._product = noise * precision.product_unit
        self._cut = 2.0 * precision.product_unit
        self._generator = generator
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
        """Run one ATen op; if it rounds, perturb its operands and results."""
        name = "floor_divide" if kwargs.get("rounding_mode") else func.overloadpacket.__name__.rstrip("_")
        moves = func.is_view or name in MOVES or selects_in_groups(name, (args, kwargs))
        if moves or not _has_rounded((args, kwargs)) or adds_single_terms(name, func, args):
            result = func(*args, **kwargs)
            return self._made(result) if name in FACTORIES else result
        eta = max(self._unit, NOISE * PRECISIONS["fp32"].unit * math.sqrt(terms(name, args)))
        written = _written_tensors(name, func, args, kwargs)
        whole = may_count(name) and counts((args, kwargs), name)

        # in forward, autocast gives operands and results of products its dtype, and those of most other ops float32
        stored = self._limited and (self._cast or name in PRODUCTS or backward.is_running())

        def perturb(leaf: Any) -> Any:
            if not is_rounded(leaf) or any(leaf is tensor for tensor in written) or (name in MASKED and _is_mask(leaf)):
                return leaf
            leaf = self._perturbed(leaf, eta, eta)
            return leaf if leaf.is_complex() or not stored else self._underflown(leaf)

        if name in RESAMPLERS and bool(args[0].isfinite().all()):
            return self._resampled(func, args, kwargs, eta)
        if not whole:
            args, kwargs = self._operands(name, args, eta, perturb), map_leaves(perturb, kwargs)
        result = func(*args, **kwargs)
        if whole and counts(result, name):
            return result
        for tensor in written:
            tensor.copy_(self._perturbed(tensor, eta, eta))
        result = map_leaves(perturb, result)
        if self._cast and name in IN_PLACES:
            with Unwatched():
                added, squares = over_places(name, func, args, kwargs)
                result.copy_(self._strayed(result, squares, self._step * added.sqrt()))
        if name in OF_ROWS:
            return result[:1] + tuple(t if t is None else self._added_up(name, args[0], t, eta) for t in result[1:])
        return result

    def _made(self, table: torch.Tensor) -> torch.Tensor:
        """A perturbed table of numbers. What float32 holds, as a range of whole numbers, stays as it is."""
        if not is_rounded(table):
            return table
        eta = self._unit if self._cast else NOISE * PRECISIONS["fp32"].unit
        with Unwatched():
            held = table == table.float()
            if bool(held.all()):
                return table
            return torch.where(held, table, table + eta * table.abs().max() * uniform(table.shape, self._generator))

    def _added_up(self, name: str, gradient: torch.Tensor, sums: torch.Tensor, eta: float) -> torch.Tensor:
        """The perturbed gradient of a norm's weight or bias."""
        with Unwatched():
            rows, squares = over_rows(name, gradient, sums)
            return self._strayed(sums, squares, eta * math.sqrt(rows))

    def _strayed(self, sums: torch.Tensor, squares: torch.Tensor, eta: torch.Tensor | float) -> torch.Tensor:
        """Sums whose partial sums are perturbed; see `over_rows`."""
        return sums + eta * torch.maximum(sums.abs(), squares.abs().sqrt()) * uniform(sums.shape, self._generator)

    def _operands(self, name: str, args: tuple[Any, ...], eta: float, perturb: Callable[[Any], Any]) -> tuple[Any, ...]:
        """The perturbed operands of an op."""
        multiplied = PRODUCTS[name] if self._product and name in PRODUCTS else ()
        grid, between = GRIDS.get(name), PROBABILITIES.get(name, ())
        return tuple(
            self._multiplied(arg, eta)
            if i in multiplied
            else self._placed(arg, eta)
            if i == grid
            else perturb(arg).clamp(0.0, 1.0)
            if i in between
            else map_leaves(perturb, arg)
            for i, arg in enumerate(args)
        )

    def _resampled(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], eta: float) -> torch.Tensor:
        """The result of an interpolation, whose kernel computes places in float32 in every precision."""
        exact = selects(func.overloadpacket.__name__)
        place = NOISE * PRECISIONS["fp32"].unit

        def perturb(tensor: torch.Tensor) -> torch.Tensor:
            return tensor if exact else self._perturbed(tensor, eta, eta)

        result = func(*args, **kwargs)
        with Unwatched():
            found = resample(
                func, (perturb(args[0]), *args[1:]), kwargs, lambda t: self._perturbed(t, place, place), perturb
            )
            return torch.empty_like(result).copy_(perturb(found))

    def _underflown(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as a format of limited range might hold it; its numbers keep their signs, or become zero."""
        quantum = self._quantum / self._scale if backward.is_scaled() else self._quantum
        with Unwatched():
            size, most = tensor.abs(), quantum / self._low
            if tensor.numel() >= LARGE:
                near = (size < NEAR * most).nonzero(as_tuple=True)
                if FEW * len(near[0]) < tensor.numel():
                    few = size[near]
                    if not _any_between(few, most):
                        return tensor
                    return tensor.clone().index_put_(near, self._near_underflow(tensor[near], few, quantum))
            return self._near_underflow(tensor, size, quantum) if _any_between(size, most) else tensor

    def _near_underflow(self, tensor: torch.Tensor, size: torch.Tensor, quantum: float) -> torch.Tensor:
        """Numbers of which the smallest are perturbed. `size` is that of the numbers, and is used up."""
        share = size.reciprocal_().mul_(NOISE / 2 * quantum).clamp_(max=1.0)
        return share.mul_(uniform(tensor.shape, self._generator)).add_(1.0).mul_(tensor)

    def _placed(self, grid: torch.Tensor, eta: float) -> torch.Tensor:
        """A perturbed grid of grid_sampler, which adds one to every coordinate before it rounds."""
        with Unwatched():
            return self._perturbed(self._perturbed(grid, eta, eta) + 1.0, eta, eta) - 1.0

    def _multiplied(self, operand: torch.Tensor, eta: float) -> torch.Tensor:
        """A perturbed operand of a product. A device may round or truncate it, and truncation only makes it smaller."""
        coarse = self._perturbed(operand, max(eta, self._product + self._cut), max(eta, self._product))
        if operand.is_complex():
            return coarse
        with Unwatched():
            held = operand.view(torch.int64) & BELOW_TF32 == 0
            return torch.where(held, self._perturbed(operand, eta, eta), coarse)

    def _perturbed(self, tensor: torch.Tensor, down: float, up: float) -> torch.Tensor:
        with Unwatched():
            tensor = tensor.resolve_conj().resolve_neg()  # below autograd, a product forgets both
            return perturb(tensor, down, up, self._generator)


def _any_between(sizes: torch.Tensor, most: float) -> bool:
    """Whether a number is below a limit and not zero."""
    small = sizes < most
    return bool(small.any()) and bool(small.logical_and_(sizes > 0).any())


def _is_mask(tensor: torch.Tensor) -> bool:
    with Unwatched():
        return bool(((tensor == 0) | (tensor == 1)).all())


def _has_rounded(tree: Any) -> bool:
    return any(has_fractions(leaf) for leaf in leaves_of(tree))  # a sparse gradient becomes dense in an op that adds


def _written_tensors(name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Floating tensors that the op writes in place. The schema of batch norms does not name theirs."""
    if name in BATCH_NORMS:
        return [t for t in args[3:5] if is_rounded(t)]
    names = written_names(func)
    if not names:
        return []
    given = by_name(func, args, kwargs)
    return [leaf for name in names for leaf in leaves_of(given.get(name)) if is_rounded(leaf)]


# Draws the noise of perturbed runs: numbers that are uniform from -1 to 1.
#
# Each element of a small tensor gets a number of its own. Those of a large one are read from a pool of two million
# numbers, which is the same in every process, from a random place on. So a number comes back in other ops, at other
# elements, and in one tensor after a million elements at the earliest: one sum hardly has a number twice.

LARGE = 2**16  # elements; below, a tensor is drawn as fast as the pool is read
POOL = 2**21
WINDOW = POOL // 2  # that are read at once
KEPT = 16  # sizes of perturbations for which the factors of the whole pool are kept, 16 MiB each
STEP = 2.0**-31  # uniform numbers of all of int32 are drawn twice as fast as numbers of float64


def uniform(shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """Uniform numbers from -1 to 1, as float64.

    Args:
        shape: the shape of the result.
        generator: draws the numbers, or the places at which the pool is read.
    """
    count = shape.numel()
    if count < LARGE:
        return _draw(count, generator).view(shape)
    return torch.cat(_windows(_pool(), count, generator)).view(shape)


def perturb(tensor: torch.Tensor, down: float, up: float, generator: torch.Generator) -> torch.Tensor:
    """A tensor times random factors, as float64 or complex128, with the strides of the tensor if it is dense.

    Args:
        tensor: floating or complex numbers.
        down: the factors are uniform from 1 - down on,
        up: to 1 + up.
        generator: draws the noise.
    """
    flat = None if tensor.is_complex() or tensor.numel() < LARGE else _in_memory_order(tensor)
    factors = torch.empty_like(tensor, dtype=torch.float64)
    if flat is None:
        centre = torch.tensor(1.0 + (up - down) / 2, dtype=torch.float64)
        torch.add(centre, uniform(tensor.shape, generator), alpha=(up + down) / 2, out=factors)
        return tensor * factors if tensor.is_complex() else factors.mul_(tensor)
    windows = _windows(_factors(down, up), len(flat), generator)
    results = factors.permute(_order(factors)).view(-1).split(WINDOW)
    for numbers, window, result in zip(flat.split(WINDOW), windows, results, strict=True):
        torch.mul(numbers, window, out=result)
    return factors


def _draw(count: int, generator: torch.Generator) -> torch.Tensor:
    numbers = torch.empty((count + 1) // 2, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    return numbers.view(torch.int32)[:count].to(torch.float64).mul_(STEP)


def _windows(pool: torch.Tensor, count: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Parts of a pool that have so many numbers together, each from a random place on."""
    sizes = [min(count - start, WINDOW) for start in range(0, count, WINDOW)]
    starts = torch.randint(POOL - WINDOW + 1, (len(sizes),), generator=generator).tolist()
    return [pool[start : start + size] for start, size in zip(starts, sizes, strict=True)]


@cache
def _pool() -> torch.Tensor:
    return _draw(POOL, torch.Generator().manual_seed(0))


@lru_cache(KEPT)
def _factors(down: float, up: float) -> torch.Tensor:
    return _pool().mul((up + down) / 2).add_(1.0 + (up - down) / 2)


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor | None:
    """The elements of a tensor as they lie in memory; None if there are gaps between them, or some lie on others."""
    lying = tensor.permute(_order(tensor))
    return lying.view(-1) if lying.is_contiguous() else None


def _order(tensor: torch.Tensor) -> list[int]:
    """The axes of a tensor, that of the largest stride first."""
    return sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
