"""Knows the ATen ops: which of them round, what they multiply, what they write, and how many terms they sum."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from conformance.oracle.counting import may_count
from conformance.oracle.custom_ops import written_names
from conformance.oracle.inputs import is_rounded
from conformance.oracle.nested import leaves_of
from conformance.oracle.resampling import RESAMPLERS

# Ops that move, select or compare numbers without rounding any; views are recognised by their schema.
MOVES = frozenset(
    """
    _local_scalar_dense _reshape_alias _to_copy _unique2 _unsafe_view abs alias all amax amin any arange
    argmax argmin argsort bernoulli broadcast_tensors bucketize cat ceil clamp clamp_max clamp_min clone complex
    conj_physical constant_pad_nd contiguous copy count_nonzero cummax cummin detach diag_embed
    diagonal_backward diagonal_scatter embedding empty empty_like empty_strided eq equal fill flip floor full
    full_like gather ge gt hardtanh hardtanh_backward im2col index index_copy index_fill index_select
    is_same_size isfinite isin isinf isnan isneginf isposinf le lift_fresh lift_fresh_copy logical_and
    logical_not logical_or logical_xor lt masked_fill masked_scatter masked_select max max_pool2d_with_indices
    maximum median min minimum msort nan_to_num ne neg new_empty new_empty_strided new_full new_ones new_zeros
    nonzero ones ones_like pixel_shuffle rand_like randn_like relu repeat replication_pad1d replication_pad2d
    resize roll rot90 round scalar_tensor scatter searchsorted select_backward select_scatter set set_data sgn sign
    signbit slice_backward slice_scatter sort stack take threshold threshold_backward topk tril triu trunc
    unfold_copy unique value_selecting_reduction_backward view_as_complex_copy where zero zeros zeros_like
    """.split()
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
ROW_SUMS = frozenset({"native_layer_norm_backward", "native_group_norm_backward"})  # of weight and bias
SELECTED = frozenset({"amax", "amin", "max", "min"})  # values of the argument `reduce` of scatter_reduce and its kin
BATCH_NORMS = frozenset({"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"})
REDUCTIONS = frozenset({"sum", "mean", "nansum", "cumsum", "prod", "cumprod", "trace"})
ACCUMULATING = ("sum", "mean", "var", "std", "norm", "scatter", "index_put", "index_add", "embedding")  # parts of names

Shapes = list[tuple[int, ...]]


@dataclass(frozen=True)
class OpKind:
    """What is known of an ATen op whatever its arguments are.

    Attributes:
        name: its name, without the "_" of ops in place.
        moves: it rounds nothing.
        may_select: an argument may ask for the largest or smallest of some numbers.
        reduces: it is a plain sum, mean or product.
        may_count: it gives whole numbers for whole numbers.
        resamples: it is an interpolation.
        multiplied: positions of the arguments that tensor cores multiply; none if it is no such product.
        grid: position of the argument that says where to sample an image; None if there is none.
        sums_rows: the backward of a layer or group norm.
        written: the positions and names of the arguments that it writes.
        length: tells from the shapes of its tensors and from its arguments how many terms it sums; None: it sums none.
    """

    name: str
    moves: bool
    may_select: bool
    reduces: bool
    may_count: bool
    resamples: bool
    multiplied: tuple[int, ...]
    grid: int | None
    sums_rows: bool
    written: tuple[tuple[int, str], ...]
    length: Callable[[Shapes, tuple[Any, ...]], int] | None

    def selects(self, arguments: Any) -> bool:
        """Whether it keeps the largest or smallest of some numbers. Its backward looks for that number."""
        return self.may_select and any(word in SELECTED for word in leaves_of(arguments) if isinstance(word, str))

    def adds_single_terms(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether it is a reduction over axes of size one: every sum has one term, so nothing rounds."""
        if not self.reduces or not args or not isinstance(args[0], torch.Tensor):
            return False
        shape, axes = args[0].shape, args[1] if len(args) > 1 else None
        if axes is None or func._overloadname == "default":  # noqa: SLF001
            return args[0].numel() <= 1
        axes = [axes] if isinstance(axes, int) else axes
        return all(shape[axis] == 1 for axis in axes) if axes else args[0].numel() <= 1

    def terms(self, args: tuple[Any, ...]) -> int:
        """How many terms it sums for each result."""
        if self.length is None:
            return 1
        shapes = [tuple(a.shape) for a in args if isinstance(a, torch.Tensor)]
        return self.length(shapes, args) if shapes else 1

    def writes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The floating tensors that it writes in place."""
        given = [args[i] if i < len(args) else kwargs.get(name) for i, name in self.written]
        return [leaf for leaf in leaves_of(given) if is_rounded(leaf)]


@cache
def kind_of(func: Any) -> OpKind:
    """What is known of an ATen op, an overload such as `torch.ops.aten.mm.default`."""
    name = func.overloadpacket.__name__.rstrip("_")
    names = [argument.name for argument in func._schema.arguments]  # noqa: SLF001 -- the public handle on its schema
    written = tuple((names.index(word), word) for word in written_names(func))
    if name in BATCH_NORMS:  # whose schema does not name the statistics
        written = tuple((i, names[i]) for i in (3, 4))
    return OpKind(
        name=name,
        moves=func.is_view or name in MOVES,
        may_select="reduce" in name,
        reduces=name in REDUCTIONS,
        may_count=may_count(name),
        resamples=name in RESAMPLERS,
        multiplied=PRODUCTS.get(name, ()),
        grid=GRIDS.get(name),
        sums_rows=name in ROW_SUMS,
        written=written,
        length=LENGTHS.get(name, _reduced if _accumulates(name) else None),
    )


def _accumulates(name: str) -> bool:
    """Whether it is a reduction, or accumulates many elements into one."""
    return name in REDUCTIONS or any(part in name for part in ACCUMULATING)


def _inner(shapes: Shapes, _: tuple[Any, ...]) -> int:
    return shapes[-2][-1] if len(shapes) > 1 else 1


def _taps(shapes: Shapes, _: tuple[Any, ...]) -> int:
    return math.prod(shapes[1][1:])


def _taps_or_positions(shapes: Shapes, _: tuple[Any, ...]) -> int:
    gradient, _image, weight = shapes[:3]
    positions = gradient[0] * math.prod(gradient[2:])
    return max(positions, weight[0] * math.prod(weight[2:]))


def _of_one_channel(shapes: Shapes, _: tuple[Any, ...]) -> int:
    return shapes[0][0] * math.prod(shapes[0][2:])


def _row_or_rows(shapes: Shapes, _: tuple[Any, ...]) -> int:
    return max(shapes[0][-1], math.prod(shapes[0][:-1]))


def _longest_axis(shapes: Shapes, _: tuple[Any, ...]) -> int:
    return max(shapes[0], default=1)


def _reduced(shapes: Shapes, args: tuple[Any, ...]) -> int:
    axes = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else None
    return math.prod([shapes[0][a] for a in axes if isinstance(a, int)] if axes else shapes[0])


LENGTHS: dict[str, Callable[[Shapes, tuple[Any, ...]], int]] = {
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "addmv", "linear"), _inner),
    **dict.fromkeys(("convolution", "_convolution", "mkldnn_convolution"), _taps),
    "convolution_backward": _taps_or_positions,
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit", "native_batch_norm_backward"), _of_one_channel),
    **dict.fromkeys(
        ("native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward"),
        _row_or_rows,
    ),
    **dict.fromkeys(
        ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"), _longest_axis
    ),
}
