"""Makes inputs, weights and cotangents that every precision represents exactly."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from conformance.errors import of_model
from conformance.seeds import seed_of
from zoo import Call, Case, SpecError, internals

COMPRESSED = {  # names of the methods that give the indices of a sparse tensor, by its layout
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
SPARSE = (torch.sparse_coo, *COMPRESSED)
OTHER_DRAWS = (101, 102)  # of a case, which stand beside its own in a batch, as no case takes them itself
FAR_DRAW = 1000  # a draw of a case that is far from those of which its first inputs are chosen
BELOW_ONE = 1.0 - 2.0**-8  # the largest number below one that bfloat16 represents


def call_leaves(call: Call) -> list[Any]:
    """Every leaf of the arguments of a call, in order."""
    return list(internals.tree_leaves((call.args, dict(call.kwargs))))


def map_call(call: Call, function: Callable[[Any], Any]) -> Call:
    """The call with every leaf replaced, in order."""
    return Call(*internals.tree_map(function, (call.args, dict(call.kwargs))))


def seed_generator(*parts: object) -> torch.Generator:
    """A generator whose seed depends on all the parts, the same in every process."""
    return torch.Generator().manual_seed(seed_of(*parts))


def representable(values: torch.Tensor) -> torch.Tensor:
    """Round to numbers that bfloat16 and, within its range, float16 represent; dtype and strides are kept.

    Numbers between −1 and 1 stay between them, because many functions have no finite gradient at their ends.
    """
    if values.is_complex():
        return torch.view_as_complex(representable(torch.view_as_real(values)))
    coarse = values.to(torch.bfloat16)
    both = coarse.to(torch.float16)
    within = both.gt(-math.inf) & both.lt(math.inf)  # isfinite calls abs, which `KinkWatch` would note as a kink
    rounded = torch.where(within, both.to(values.dtype), coarse.to(values.dtype))
    for end in (-1.0, 1.0):
        rounded = torch.where(rounded.eq(end) & (values * end).lt(1.0), BELOW_ONE * end, rounded)
    return rounded


def round_weights(model: Any) -> None:
    """Round a module's floating parameters and buffers in place to representable values."""
    if isinstance(model, torch.nn.Module):
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                if is_rounded(tensor):
                    tensor.copy_(representable(tensor))


def is_rounded(value: Any) -> bool:
    """Whether a value is a strided tensor of floating or complex numbers."""
    return has_fractions(value) and value.layout == torch.strided


def has_fractions(value: Any) -> bool:
    """Whether a value is a tensor of floating or complex numbers, of any layout."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient as a strided tensor: that of an embedding may be sparse."""
    return gradient if gradient.layout == torch.strided else gradient.to_dense()


def widest(dtype: torch.dtype) -> torch.dtype:
    """float64 for floating dtypes, complex128 for complex ones; other dtypes as they are."""
    return torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype


# The number of a draw, or (draw, row) of each row of the batch. A multiple of `APART` may be added to a number.
Picks = int | list[tuple[int, int]]


def draw(case: Case, seed: int, picks: Picks, *, coarse: bool = True) -> Call:
    """The inputs of a case: one of its draws, or the picked rows of several.

    Strides and aliasing are as drawn, unless rows are picked. If `coarse`, floating inputs are made representable.
    """
    if isinstance(picks, int):
        return draw_batch(case, seed, picks, coarse=coarse)
    draws = {number: draw_batch(case, seed, number, coarse=coarse) for number in {number for number, _ in picks}}
    leaves = {number: call_leaves(call) for number, call in draws.items()}
    gathered = (
        torch.stack([leaves[number][i][row] for number, row in picks]) if _has_rows(first, len(picks)) else first
        for i, first in enumerate(leaves[picks[0][0]])
    )
    return map_call(draws[picks[0][0]], lambda _: next(gathered))


def draw_batch(case: Case, seed: int, number: int, *, coarse: bool = True) -> Call:
    """One draw of a case; if `coarse`, made representable. See `APART` for numbers from there on."""
    way, number = divmod(number, APART)
    drawn = _draw(case, seed, number)
    if way:
        drawn = move_apart(drawn, AXES[way - 1])
    return place(drawn, convert=lambda t: representable(t) if coarse and is_rounded(t) else t)


def raw_batch(case: Case, seed: int, number: int) -> Call:
    """One draw of a case as the spec draws it, not rounded."""
    return place(_draw(case, seed, number % APART), convert=lambda t: t)


def _draw(case: Case, seed: int, number: int) -> Call:
    return case.first if number == 0 and case.first is not None else case.draw(seed_generator(seed, case.name, number))


def stack(case: Case, seed: int, picks: Picks) -> Call:
    """The inputs of a case and of two other draws, stacked along a new first axis.

    Raises:
        SpecError: there is no tensor to stack, or the draws differ in anything but the numbers of their tensors.
    """
    calls = [draw(case, seed, which) for which in (picks, *OTHER_DRAWS)]
    leaves = [call_leaves(call) for call in calls]
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves[0]):
        raise SpecError(f"case {case.name}: vmappable, but no argument is a tensor that could hold a batch")
    if not all(alike(calls[0], other) for other in calls[1:]):
        raise SpecError(f"case {case.name}: vmappable, but its draws differ in structure, shape, dtype or constants")
    columns = zip(*leaves, strict=True)
    together = (torch.stack(column) if isinstance(column[0], torch.Tensor) else column[0] for column in columns)
    return map_call(calls[0], lambda _: next(together))


def alike(one: Call, other: Call) -> bool:
    """Whether two calls differ only in the content of their tensors, so that a compiled call fits both."""
    (mine, how), (theirs, as_well) = (internals.tree_flatten((c.args, dict(c.kwargs))) for c in (one, other))
    return how == as_well and all(map(_alike, mine, theirs))


def _alike(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b) and bool(a == b)
    if (a.shape, a.dtype, a.layout) != (b.shape, b.dtype, b.layout):
        return False
    return a.layout != torch.strided or a.stride() == b.stride()


def row_count(call: Call) -> int:
    """Length of the first axis of the first tensor among the arguments; 0 if there is none."""
    for leaf in call_leaves(call):
        if isinstance(leaf, torch.Tensor):
            return leaf.shape[0] if leaf.dim() else 0
    return 0


def fewer_rows(call: Call) -> Call:
    """The same inputs without the last row of every tensor that has as many rows as the first."""
    rows = row_count(call)
    return _map_tensors(call, lambda tensor: tensor[:-1] if _has_rows(tensor, rows) else tensor)


def more_rows(call: Call, other: Call) -> Call:
    """The same inputs with the first row of another draw at the end of every tensor that has rows."""
    rows, others = row_count(call), dict(zip(map(id, call_leaves(call)), call_leaves(other), strict=True))
    return _map_tensors(call, lambda t: torch.cat([t, others[id(t)][:1]]) if _has_rows(t, rows) else t)


def reorder(call: Call) -> Call:
    """The same inputs with the order of their axes in memory reversed, if a tensor is contiguous."""

    def reversed_axes(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided or not tensor.is_contiguous():
            return tensor
        axes = tuple(reversed(range(tensor.dim())))
        return tensor.permute(axes).contiguous().permute(axes)

    return _map_tensors(call, reversed_axes)


def _has_rows(leaf: Any, rows: int) -> bool:
    strided = isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided
    return strided and leaf.dim() > 0 and leaf.shape[0] == rows


def place(call: Call, convert: Callable[[torch.Tensor], torch.Tensor]) -> Call:
    """Copy every tensor through `convert`, keeping strides, overlap and identity of repeated tensors.

    Of a sparse tensor, the values are converted.

    Raises:
        ValueError: a tensor is neither strided nor sparse.
    """
    return _map_tensors(call, lambda tensor: _with_layout(tensor, convert))


def _map_tensors(call: Call, function: Callable[[torch.Tensor], torch.Tensor]) -> Call:
    """The call with every tensor replaced; what was one tensor stays one."""
    seen: dict[int, torch.Tensor] = {}

    def one(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and id(leaf) not in seen:
            seen[id(leaf)] = function(leaf)
        return seen.get(id(leaf), leaf)

    return map_call(call, one)


def _with_layout(tensor: torch.Tensor, convert: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        return _with_values(tensor, convert)
    if tensor.numel() == 0:
        return convert(tensor).clone()
    flat = convert(_flat(tensor))
    placed = torch.empty_strided(tensor.shape, tensor.stride(), dtype=flat.dtype, device=flat.device)
    _flat(placed).copy_(flat)  # no view is returned: of a leaf that is one, torch.compile loses second derivatives
    return placed


def _with_values(tensor: torch.Tensor, convert: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A sparse tensor like this one with converted values."""
    unchecked: dict[str, Any] = {"check_invariants": False}  # torch warns of the default
    if tensor.layout == torch.sparse_coo:
        values = convert(internals.read_values(tensor)).clone()  # the public names refuse repeated indices
        indices = internals.read_indices(tensor).to(values.device, copy=True)
        coalesced = tensor.is_coalesced()
        return torch.sparse_coo_tensor(indices, values, tensor.shape, is_coalesced=coalesced, **unchecked)
    if tensor.layout not in COMPRESSED:
        raise of_model(ValueError(f"a strided or sparse tensor is wanted, got layout {tensor.layout}"))
    values = convert(tensor.values()).clone()
    rows, columns = (getattr(tensor, name)().to(values.device, copy=True) for name in COMPRESSED[tensor.layout])
    return torch.sparse_compressed_tensor(rows, columns, values, tensor.shape, layout=tensor.layout, **unchecked)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory that a tensor covers, in one dimension; elements that share memory appear once."""
    if tensor.numel() == 0:
        return tensor
    return tensor.as_strided((extent(tensor),), (1,), tensor.storage_offset())


def extent(tensor: torch.Tensor) -> int:
    """How many elements of memory lie between the first and the last of a tensor, both of them included."""
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def invoke(function: Callable[..., Any], call: Call) -> Any:
    """What a function returns for some arguments; it gets containers of its own, which it may fill, empty or change."""
    given = fresh(call)
    return function(*given.args, **given.kwargs)


def fresh(call: Call) -> Call:
    """The same leaves in other containers; the same call if it has none."""
    return map_call(call, lambda leaf: leaf) if has_containers(call) else call


def new_leaves(model: Any, call: Call, before: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors that a model has put into the containers of its arguments, by name; `before` are the old leaves."""
    old = {id(leaf) for leaf in before.values()}
    found = named_inputs(model, call)
    return {name: leaf for name, leaf in found.items() if isinstance(leaf, torch.Tensor) and id(leaf) not in old}


def has_containers(call: Call) -> bool:
    """Whether an argument is a container, such as a list or a cache; also an empty one."""
    return not all(internals.tree_structure(value).is_leaf() for value in (*call.args, *call.kwargs.values()))


def restore(call: Call, pristine: Call) -> None:
    """Undo in-place changes of the arguments: copy `pristine` into `call`, which has the same structure."""
    for leaf, original in zip(call_leaves(call), call_leaves(pristine), strict=True):
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
            _flat(leaf.data).copy_(_flat(original))


def cotangent(name: str, like: torch.Tensor, seed: tuple[object, ...]) -> torch.Tensor:
    """Random representable values with the shape, dtype and device of `like`; name and seed determine them."""
    dtype = torch.complex64 if like.is_complex() else torch.float32
    with internals.DisableTorchFunction():  # `Widened` would draw other numbers
        values = torch.randn(like.shape, generator=seed_generator(*seed, name), dtype=dtype)
        return representable(values).to(device=like.device, dtype=like.dtype)


def named_leaves(tree: Any, name: str) -> dict[str, Any]:
    """The leaves of a nested container by path: {"x": …} or {"x[0]": …, "x['mean']": …}."""
    return {f"{name}{path}": leaf for path, leaf in leaves_by_path(tree)}


def leaves_by_path(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[tuple[str, Any]]:
    """The leaves of a nested container, each with its path as a text."""
    try:
        found, _ = internals.tree_flatten_with_path(tree, is_leaf=is_leaf)
        return [(internals.keystr(path), leaf) for path, leaf in found]
    except ValueError:  # a class that is registered without the names of its parts
        return [(f"[{i}]", leaf) for i, leaf in enumerate(internals.tree_flatten(tree, is_leaf=is_leaf)[0])]


def named_inputs(model: Any, call: Call) -> dict[str, Any]:
    """Every leaf of the arguments but sparse tensors, under the name of the parameter it is passed to."""
    target = model.forward if isinstance(model, torch.nn.Module) else model
    try:
        bound = _signature(target).bind(*call.args, **call.kwargs).arguments
    except (TypeError, ValueError):  # built-in functions have no signature; a wrong call raises an error later
        bound = {**{f"input{i}": value for i, value in enumerate(call.args)}, **call.kwargs}
    leaves = (pair for argument, value in bound.items() for pair in named_leaves(value, argument).items())
    return {name: leaf for name, leaf in leaves if getattr(leaf, "layout", None) not in SPARSE}


def _signature(target: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function, also of one in TorchScript, which has a schema instead."""
    if not isinstance(target, (torch.ScriptMethod, torch.jit.ScriptFunction)):
        return inspect.signature(target)
    schema: Any = target.schema
    first = 1 if isinstance(target, torch.ScriptMethod) else 0  # after the module itself
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(a.name, either, default=None) for a in schema.arguments[first:]])


# Rounds inputs to bfloat16 so that values which differ stay different, and none lands on a likely kink.

APART = 1 << 20  # draw number n · APART + d: draw d, moved apart along the n-th of these axes
AXES = (-1, 0)
LONGEST = 512  # elements of a line; of more normal numbers, bfloat16 cannot keep each from its neighbours
ROUND = 16  # a bfloat16 whose last four bits are zero is a round number, such as 0.5, 1 or 6: a kink may lie there


def move_apart(call: Call, axis: int) -> Call:
    """The arguments with floating tensors rounded to bfloat16, but kept apart.

    A number moves by the smallest steps that the format has. Numbers that were equal stay equal, and numbers that
    bfloat16 represents stay as they are, since the spec may mean them. Tensors that are not contiguous are left alone.
    Values differ along the axis; in a small tensor, they differ everywhere.
    """
    return _map_tensors(call, lambda tensor: _tensor_apart(tensor, axis))


def _tensor_apart(values: torch.Tensor, axis: int) -> torch.Tensor:
    if not values.is_floating_point() or values.layout != torch.strided:
        return values
    if not values.is_contiguous() or not values.numel():
        return values
    values = values.detach()
    if values.numel() <= LONGEST:
        return _line_apart(values.flatten()).view(values.shape)
    if values.shape[axis] > LONGEST:
        return values
    return _line_apart(values.movedim(axis, -1)).movedim(-1, axis).contiguous()


def _line_apart(values: torch.Tensor) -> torch.Tensor:
    """Distinct bfloat16 numbers for the distinct elements of each line along the last axis."""
    coarse = values.to(torch.bfloat16)
    kept = (coarse.to(values.dtype) == values) | ~coarse.isfinite()
    values, order = values.sort(stable=True, dim=-1)
    place = _place(coarse.gather(-1, order))
    rises = torch.zeros_like(place)
    rises[..., 1:] = (values.diff(dim=-1) > 0).cumsum(-1)
    apart = rises + (place - rises).cummax(-1).values  # at least one place more at each rise
    spread = torch.empty_like(values).scatter(-1, order, _number(apart).to(values.dtype))
    return torch.where(kept, coarse.to(values.dtype), spread)


def _place(numbers: torch.Tensor) -> torch.Tensor:
    """The rank of a bfloat16 number among those that are not round; a round one gets the rank of the next."""
    bits = numbers.view(torch.int16).to(torch.int64)
    size = bits & 0x7FFF
    rank = size - size // ROUND + (size % ROUND == 0)
    return torch.where(bits < 0, -rank, rank)


def _number(rank: torch.Tensor) -> torch.Tensor:
    """The bfloat16 number of a rank."""
    size = rank.abs()
    size = torch.where(size == 0, 0, size + (size - 1).div(ROUND - 1, rounding_mode="floor"))
    bits = torch.where(rank < 0, size | -0x8000, size)
    return bits.to(torch.int16).view(torch.bfloat16)
