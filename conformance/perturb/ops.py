"""Holds the table of ops: what the perturbed runs and the watch of kinks know about each ATen op.

To add an op, add its name to the row of its like, or a row to `ROWS`. An op that writes in place has the row of the one
that does not.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch

from conformance.evaluate import custom_ops, inputs
from zoo import internals

Shapes = list[tuple[int, ...]]  # of the tensors among the arguments of an op, at least one
Arguments = tuple[Any, ...]
Rows = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
EXTREMES = frozenset({"amax", "amin", "max", "min"})  # values of the argument `reduce` of scatter_reduce and its kin
LARGEST = 256  # bfloat16 represents every whole number up to here
PASSES = 16  # over a matrix, of iterations such as those of an SVD
EDGE = 3.0  # where hardswish and hardsigmoid bend
BILINEAR = 0  # the interpolation mode of grid_sampler that has kinks


def always(*_: Any) -> bool:
    """Tell of an op that it moves, selects or compares numbers, whatever its arguments are."""
    return True


def adds_single_terms(func: Any, args: Arguments, _: dict[str, Any]) -> bool:
    """Whether a reduction is over axes of size one: every sum has one term, so nothing rounds."""
    if not args or not isinstance(args[0], torch.Tensor):
        return False
    shape, axes = args[0].shape, args[1] if len(args) > 1 else None
    if axes is None or internals.overload_of(func) == "default":
        return args[0].numel() <= 1
    axes = [axes] if isinstance(axes, int) else axes
    return all(shape[axis] == 1 for axis in axes) if axes else args[0].numel() <= 1


def keeps_extremes(_: Any, args: Arguments, kwargs: dict[str, Any]) -> bool:
    """Whether an op keeps the largest or smallest of groups of numbers. Its backward looks for that number."""
    return any(word in EXTREMES for word in custom_ops.leaves_of((args, kwargs)) if isinstance(word, str))


def product_terms(shapes: Shapes, _: Arguments) -> int:
    """The terms of a matrix product: the columns of its first factor."""
    return shapes[-2][-1] if len(shapes) > 1 else 1


def row_terms(shapes: Shapes, _: Arguments) -> int:
    """The terms of a norm over the last axes, and those of the gradients of its weight and bias."""
    return max(shapes[0][-1], math.prod(shapes[0][:-1]))


def summed_terms(shapes: Shapes, args: Arguments) -> int:
    """The terms of a reduction, or of an op that accumulates many elements into one."""
    axes = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else None
    return math.prod([shapes[0][a] for a in axes if isinstance(a, int)] if axes else shapes[0])


@dataclass(frozen=True)
class Rule:
    """What is known about an op. As it stands here: it rounds its operands and its result, and has no kink.

    The functions of kinks take the op's arguments, the first detached, and give float64 tensors or boolean masks.
    """

    moves: Callable[[Any, Arguments, dict[str, Any]], bool] = lambda *_: False  # it rounds nothing
    tabulates: bool = False  # it computes numbers from no tensor, in float32 under autocast too
    terms: Callable[[Shapes, Arguments], int] = lambda *_: 1  # that it sums for each result
    whole_from: int | None = None  # of whole numbers from here to 256 it gives whole numbers, so it rounds none of them
    products: tuple[int, ...] = ()  # arguments that tensor cores multiply: cuBLAS and cuDNN may round these to TF32
    probabilities: tuple[int, ...] = ()  # arguments in which it refuses numbers below zero and above one
    keeps_masks: bool = False  # forward hands a mask of zeros and ones to backward, as a floating tensor
    divides: bool = False  # numbers by a number, such as a dropout's mask by 1 - p
    grid: int = 0  # the argument that says at which places it samples an image
    kernel: str = ""  # of an interpolation; see resampling.py
    picks: bool = False  # an interpolation that takes elements as they are
    places: int | None = None  # the argument whose numbers it adds into places of a tensor, one by one
    rows: Rows | None = None  # sums, over its rows and like a result, the squares of its first argument

    gaps: Callable[..., list[torch.Tensor]] | None = None  # each element's signed distances to kinks
    jump: Callable[..., torch.Tensor] | None = None  # the same, where the whole result jumps
    rivals: Callable[..., torch.Tensor | None] | None = None  # where it may select either of two equal elements
    lead: Callable[..., torch.Tensor | None] | None = None  # how far what it selects is ahead of the second
    border: Callable[..., torch.Tensor | None] | None = None  # how far from where what is no fraction in it jumps
    compares: bool = False  # its result is a mask
    masks: tuple[int, ...] = ()  # arguments that may be such a mask, and split the result in two
    indexes: bool = False  # its result has no gradient
    casts: bool = False  # a mask stays one in another dtype
    draws: bool = False  # if called by the overload `default`: by probabilities or rates, its first argument
    groups: bool = False  # its arguments 1, 2 and 3 are the axis, the index and the terms of groups
    shapes: bool = False  # it takes from a tensor nothing but its shape
    detaches: bool = False  # from the graph, but rounding moves its result as it does its operand

    @property
    def adds_up(self) -> bool:
        """Whether its kernel rounds partial sums, whose size the operands tell."""
        return self.rows is not None or self.places is not None


# How far the operands of an op are from its kinks, and from being equal where the op selects one of them.
#
# These functions take the arguments of the op that `ROWS` lists them for, in its order and with its names.


def limit_gaps(x: torch.Tensor, *limits: Any, **named: Any) -> list[torch.Tensor]:
    """Signed distance of every element to each limit; the sign changes at the kink."""
    given = [*limits, *named.values()] or [-1.0, 1.0]
    return [x - limit for limit in given if isinstance(limit, (int, float)) or inputs.is_rounded(limit)]


def both_ends(x: torch.Tensor, lambd: float = 0.5, **_: Any) -> list[torch.Tensor]:
    """The same to a limit on both sides of zero."""
    return [x + lambd, x - lambd]


def pixel_gaps(image: torch.Tensor, grid: torch.Tensor, mode: int, _: int, align: bool) -> list[torch.Tensor]:  # noqa: FBT001
    """How far each sampled coordinate is from a pixel's centre, where bilinear interpolation bends."""
    if mode != BILINEAR:
        return []
    size = torch.tensor(image.shape[:1:-1], dtype=grid.dtype, device=grid.device)  # the grid names the width first
    place = (grid + 1.0) / 2.0 * (size - 1.0) if align else ((grid + 1.0) * size - 1.0) / 2.0
    return [gap_to_whole(place)]


def gap_to_whole(x: torch.Tensor, **_: Any) -> torch.Tensor:
    """The distance of every number to the nearest whole number; its sign changes at whole numbers alone."""
    near = x.round()
    return (x - near) * (1.0 - 2.0 * near.remainder(2.0))


def gap_to_half(x: torch.Tensor, *, decimals: int = 0, **_: Any) -> torch.Tensor:
    """The distance of every number to where it is rounded to another, with its sign."""
    steps = 10.0**decimals
    return gap_to_whole(x * steps - 0.5) / steps


def gap_to_edges(x: torch.Tensor, edges: torch.Tensor, **_: Any) -> torch.Tensor | None:
    """The distance of every number to the nearest edge of buckets; None if there is none."""
    return (x.unsqueeze(-1) - edges).abs().amin(-1) if edges.numel() else None


def lead(x: torch.Tensor, dim: Any = None, *_: Any, largest: bool, **__: Any) -> torch.Tensor | None:
    """How far the best of each line is ahead of the second; None if there is no second, or more than one axis."""
    axes = dim if isinstance(dim, (list, tuple)) else [dim]
    axis = axes[0] if len(axes) == 1 else None
    if not isinstance(axis, int) or not x.dim() or x.shape[axis] < 2:  # noqa: PLR2004 -- no rival, no tie
        return None
    return x.topk(2, dim=axis, largest=largest).values.diff(dim=axis)


def lead_in_topk(x: torch.Tensor, k: int, dim: int = -1, *rest: Any, **_: Any) -> torch.Tensor | None:
    """How far the last element that topk takes is ahead of the next; None if it takes none or all."""
    if not x.dim() or not 0 < k < x.shape[dim]:
        return None
    return _best(x, k, dim, *rest).narrow(dim, k - 1, 2).diff(dim=dim)


def group_gaps(
    best: torch.Tensor, axis: int, index: torch.Tensor, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """How far each element is behind the best of its group, and which groups have two of the best.

    `index` is the group of each element, or of each slice along the axis.
    """
    if index.dim() != x.dim():
        index = index.view([-1 if k == axis % x.dim() else 1 for k in range(x.dim())]).expand_as(x)
    behind = best.gather(axis, index) - x[tuple(slice(n) for n in index.shape)]
    count = torch.zeros_like(best, dtype=torch.int64).scatter_add(axis, index, (behind == 0).long())
    return behind[behind != 0], count > 1


def tied(x: torch.Tensor, dim: Any = None, *_: Any, largest: bool, **__: Any) -> torch.Tensor:
    """Where two elements are the best of their line: a boolean mask."""
    axis: Any = (tuple(dim) or None) if isinstance(dim, (list, tuple)) else dim
    best = x.amax(axis, keepdim=True) if largest else x.amin(axis, keepdim=True)
    return (x == best).sum(axis if axis is not None else tuple(range(x.dim()))) > 1


def tied_in_topk(x: torch.Tensor, k: int, dim: int = -1, *rest: Any, **_: Any) -> torch.Tensor:
    """Where two of the elements that topk takes are equal, or the last of them and the next."""
    return _best(x, k, dim, *rest).diff(dim=dim) == 0


def tied_in_order(x: torch.Tensor, dim: int | None = -1, *_: Any, **__: Any) -> torch.Tensor:
    """Where two neighbours of a sorted line are equal; all elements are one line if there is no axis."""
    line, axis = (x.flatten(), -1) if dim is None else (x, dim)
    return line.sort(dim=axis).values.diff(dim=axis) == 0


def _best(x: torch.Tensor, k: int, dim: int, largest: bool = True, *_: Any) -> torch.Tensor:  # noqa: FBT001, FBT002
    """The elements of each line that topk selects, and the next one if there is one."""
    return x.topk(min(k + 1, x.shape[dim] if x.dim() else 1), dim=dim, largest=largest).values


def tied_in_bins(x: torch.Tensor, sizes: Sequence[int], *, spatial: int, **_: Any) -> torch.Tensor | None:
    """Whether the largest element of a bin occurs twice in it; None if the bins overlap."""
    lengths, counts = x.shape[-spatial:], _for_axes(sizes, spatial)
    bins = [divmod(length, count) for length, count in zip(lengths, counts, strict=True)]
    return None if any(rest for _, rest in bins) else tied_in_windows(x, [size for size, _ in bins], spatial=spatial)


def tied_in_windows(
    x: torch.Tensor, sizes: Sequence[int], steps: Sequence[int] = (), *_: Any, spatial: int, **__: Any
) -> torch.Tensor | None:
    """Whether the largest element of a window occurs twice in it. Windows that overlap the border are left out."""
    sizes, steps = _for_axes(sizes, spatial), _for_axes(steps or sizes, spatial)
    windows = x
    for k, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        axis = x.dim() - spatial + k
        if x.shape[axis] < size:
            return None
        windows = windows.unfold(axis, size, step)
    windows = windows.flatten(-spatial)
    return (windows == windows.amax(-1, keepdim=True)).sum(-1) > 1


def _for_axes(sizes: Sequence[int], spatial: int) -> Sequence[int]:
    return sizes if len(sizes) > 1 else list(sizes) * spatial


_largest, _smallest = partial(lead, largest=True), partial(lead, largest=False)
_two_largest, _two_smallest = partial(tied, largest=True), partial(tied, largest=False)


def _zero(x: torch.Tensor, *_: Any, **__: Any) -> list[torch.Tensor]:
    return [x]


ROWS: tuple[tuple[str, Rule], ...] = (
    # move, select or compare
    (
        """
        _chunk_cat _conj_physical _local_scalar_dense _reshape_alias _unique2 _unsafe_masked_index _unsafe_view alias
        all any as_strided_scatter block_diag cat channel_shuffle clone complex conj_physical constant_pad_nd copy
        copysign count_nonzero diag_embed diagonal_backward diagonal_scatter embedding empty empty_strided eq equal fill
        flip fractional_max_pool2d fractional_max_pool3d frexp full gather hardshrink_backward hardtanh_backward
        heaviside histc im2col index index_copy index_fill index_select is_same_size isin isinf isnan isneginf isposinf
        lift_fresh logical_and logical_not logical_or logical_xor lu_unpack masked_scatter masked_scatter_backward
        masked_select max_unpool2d max_unpool3d nan_to_num narrow_copy ne neg nonzero ones pixel_shuffle pixel_unshuffle
        reflection_pad1d reflection_pad2d reflection_pad3d repeat replication_pad1d replication_pad2d replication_pad3d
        resize resize_as roll rot90 scalar_tensor select_backward select_scatter set sgn signbit slice_backward
        slice_scatter softshrink_backward split_with_sizes_copy stack take threshold_backward tril triu unbind_copy
        unique_consecutive unique_dim unique_dim_consecutive unsafe_split zero zeros
        """,
        Rule(moves=always),
    ),
    (
        "empty_like full_like new_empty new_empty_strided new_full new_ones new_zeros ones_like rand_like randn_like",
        Rule(moves=always, shapes=True),
    ),
    ("randint_like zeros_like", Rule(moves=always, shapes=True)),
    ("detach", Rule(moves=always, detaches=True)),
    ("arange", Rule(moves=always, tabulates=True)),
    (
        "bartlett_window blackman_window hamming_window hann_window kaiser_window linspace logspace",
        Rule(tabulates=True),
    ),
    ("where", Rule(moves=always, masks=(0,))),
    ("masked_fill", Rule(moves=always, masks=(1,))),
    # bend or jump at fixed values
    ("abs relu", Rule(moves=always, gaps=_zero)),
    ("_prelu_kernel leaky_relu rrelu_with_noise special_i0e", Rule(gaps=_zero)),
    ("clamp clamp_max clamp_min hardtanh", Rule(moves=always, gaps=limit_gaps)),
    ("fmax fmin maximum minimum threshold", Rule(moves=always, gaps=lambda x, limit, *_, **__: [x - limit])),
    ("hardshrink", Rule(moves=always, gaps=both_ends)),
    ("softshrink", Rule(gaps=both_ends)),
    ("hardsigmoid hardswish", Rule(gaps=partial(both_ends, lambd=EDGE))),
    ("elu", Rule(gaps=lambda x, a=1.0, _=1.0, b=1.0, **__: [] if a * b == 1.0 else [x])),
    ("grid_sampler_2d grid_sampler_3d", Rule(grid=1, gaps=pixel_gaps)),
    ("grid_sampler_2d_backward grid_sampler_3d_backward", Rule(grid=2)),
    ("ceil floor trunc", Rule(moves=always, jump=gap_to_whole)),
    ("frac", Rule(jump=gap_to_whole)),
    ("round", Rule(moves=lambda _, __, kwargs: not kwargs.get("decimals"), jump=gap_to_half)),
    ("angle", Rule(jump=lambda x, **_: x)),
    ("sign", Rule(moves=always, jump=lambda x, **_: x)),
    # decide
    ("ge gt le lt", Rule(moves=always, compares=True, border=lambda x, other, **_: x - other)),
    ("_to_copy", Rule(moves=always, casts=True, border=gap_to_whole)),
    ("bucketize", Rule(moves=always, border=gap_to_edges)),
    ("searchsorted", Rule(moves=always, border=lambda *_, **__: None)),
    ("bernoulli", Rule(moves=always, draws=True)),
    ("multinomial poisson", Rule(draws=True)),
    # select among elements
    ("amax max", Rule(moves=always, rivals=_two_largest, lead=_largest)),
    ("amin min", Rule(moves=always, rivals=_two_smallest, lead=_smallest)),
    ("argmax", Rule(moves=always, rivals=_two_largest, border=_largest, indexes=True)),
    ("argmin", Rule(moves=always, rivals=_two_smallest, border=_smallest, indexes=True)),
    ("aminmax", Rule(moves=always, rivals=lambda x, **given: _two_largest(x, **given) | _two_smallest(x, **given))),
    ("topk", Rule(moves=always, rivals=tied_in_topk, border=lead_in_topk)),
    ("cummax cummin mode sort", Rule(moves=always, rivals=tied_in_order)),
    ("kthvalue", Rule(moves=always, rivals=lambda x, _, *rest, **given: tied_in_order(x, *rest, **given))),
    ("median nanmedian", Rule(moves=always, rivals=lambda x, dim=None, *_, **__: tied_in_order(x, dim))),
    ("max_pool2d_with_indices", Rule(moves=always, rivals=partial(tied_in_windows, spatial=2))),
    ("max_pool3d_with_indices", Rule(moves=always, rivals=partial(tied_in_windows, spatial=3))),
    ("adaptive_max_pool2d", Rule(moves=always, rivals=partial(tied_in_bins, spatial=2))),
    ("adaptive_max_pool3d", Rule(moves=always, rivals=partial(tied_in_bins, spatial=3))),
    ("scatter_reduce", Rule(moves=keeps_extremes, groups=True, terms=summed_terms)),
    ("index_reduce", Rule(moves=keeps_extremes, groups=True)),
    # compute element by element
    ("add floor_divide fmod remainder rsub sub", Rule(whole_from=-LARGEST)),
    ("mul", Rule(whole_from=-LARGEST, masks=(0, 1))),
    ("div", Rule(divides=True)),
    ("binary_cross_entropy", Rule(probabilities=(0, 1))),
    ("binary_cross_entropy_backward", Rule(probabilities=(1, 2))),
    ("multilabel_margin_loss_forward multilabel_margin_loss_backward", Rule(keeps_masks=True)),
    # multiply
    ("bmm mm", Rule(terms=product_terms, whole_from=0, products=(0, 1))),
    ("addmm baddbmm", Rule(terms=product_terms, whole_from=0, products=(1, 2))),
    ("addmv dot mv", Rule(terms=product_terms, whole_from=0)),
    ("linear", Rule(terms=product_terms, products=(0, 1))),
    (
        "_convolution convolution cudnn_convolution mkldnn_convolution",
        Rule(terms=lambda shapes, _: math.prod(shapes[1][1:]), products=(0, 1)),
    ),
    (
        "convolution_backward",
        Rule(
            terms=lambda shapes, _: max(math.prod((s[0], *s[2:])) for s in (shapes[0], shapes[2])), products=(0, 1, 2)
        ),
    ),
    # add up
    ("cumsum nansum sum", Rule(moves=adds_single_terms, terms=summed_terms, whole_from=0)),
    ("cumprod mean prod trace", Rule(moves=adds_single_terms, terms=summed_terms)),
    ("scatter", Rule(moves=lambda _, __, kwargs: "reduce" not in kwargs)),
    ("index_add scatter_add", Rule(terms=summed_terms, whole_from=0, places=3)),
    ("index_put", Rule(terms=summed_terms, whole_from=0, places=2)),
    ("_index_put_impl", Rule(terms=summed_terms, places=2)),
    ("embedding_dense_backward", Rule(terms=summed_terms, places=0)),
    (
        "_log_softmax _log_softmax_backward_data _softmax _softmax_backward_data",
        Rule(terms=lambda shapes, _: max(shapes[0], default=1)),
    ),
    (
        "_native_batch_norm_legit native_batch_norm native_batch_norm_backward",
        Rule(terms=lambda shapes, _: shapes[0][0] * math.prod(shapes[0][2:])),
    ),
    ("native_group_norm native_layer_norm", Rule(terms=row_terms)),
    ("native_layer_norm_backward", Rule(terms=row_terms, rows=lambda squares, sums: squares.sum_to_size(sums.shape))),
    (
        "native_group_norm_backward",  # the channels are the second axis
        Rule(terms=row_terms, rows=lambda squares, _: squares.transpose(0, 1).flatten(1).sum(1)),
    ),
    # compute each result from a whole matrix, step after step
    (
        """
        _cholesky_solve_helper _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd
        cholesky cholesky_inverse geqrf linalg_cholesky_ex linalg_eig linalg_eigvals linalg_householder_product
        linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor_ex linalg_lu_solve
        linalg_matrix_exp linalg_pinv linalg_qr linalg_solve_triangular ormqr triangular_solve
        """,
        Rule(terms=lambda shapes, _: PASSES * max(shapes[0][-2:], default=1)),
    ),
    # interpolate
    ("upsample_linear1d upsample_bilinear2d upsample_trilinear3d", Rule(kernel="linear")),
    ("upsample_nearest1d upsample_nearest2d upsample_nearest3d", Rule(kernel="nearest", picks=True)),
    ("_upsample_nearest_exact1d _upsample_nearest_exact2d", Rule(kernel="nearest-exact", picks=True)),
    ("_upsample_nearest_exact3d", Rule(kernel="nearest-exact", picks=True)),
    ("upsample_bicubic2d", Rule(kernel="cubic")),
    ("_upsample_bilinear2d_aa", Rule(kernel="linear-aa")),
    ("_upsample_bicubic2d_aa", Rule(kernel="cubic-aa")),
    ("_upsample_lanczos2d_aa", Rule(kernel="lanczos-aa")),
)
OPS: dict[str, Rule] = {name: rule for names, rule in ROWS for name in names.split()}
OPS.update({f"{name}_backward": replace(rule, picks=False) for name, rule in OPS.items() if rule.kernel})
# Parts of the names of reductions, and of ops that accumulate many elements into one.
SUMMING = ("sum", "mean", "var", "std", "norm", "scatter", "index_put", "index_add", "embedding")


def rule_of(func: Any, kwargs: dict[str, Any]) -> Rule:
    """What is known about an op. A quotient that is rounded to whole numbers is another op."""
    return OPS["floor_divide"] if kwargs.get("rounding_mode") else _rule_of(func)


@cache
def _rule_of(func: Any) -> Rule:
    """The row of an op, whether it writes in place or not. Of one without a row, its schema and its name tell."""
    name = func.overloadpacket.__name__.rstrip("_")
    if name in OPS:
        return OPS[name]
    if func.is_view or torch.Tag.view_copy in func.tags:
        return Rule(moves=always)
    rule = Rule(terms=summed_terms) if any(part in name for part in SUMMING) else Rule()
    return replace(rule, moves=keeps_extremes) if "reduce" in name else rule
