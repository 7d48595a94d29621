"""Holds what stands in torch's place in float64: attention op by op, `torch.cond`, grouped products, narrow draws.

Models that are graphs already (scripted, traced or exported) are widened, for no Python code can see their casts.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from conformance.evaluate import backward, custom_ops, inputs
from zoo import internals

# Runs `torch.cond` as a plain branch: torch's own compiles both branches, and cannot do so while modes are active.

BRANCH = getattr(torch.ops.higher_order, "cond", None)  # in the graph of an exported program


class _Linked(torch.autograd.Function):
    """A tensor, and zeros as the gradients of others."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        ctx.others = others
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return *gradients, *map(torch.zeros_like, ctx.others)


def plain_branches() -> contextlib.AbstractContextManager[Any]:
    """A context in which `torch.cond` is `branch`."""
    return mock.patch.object(torch, "cond", branch) if hasattr(torch, "cond") else contextlib.nullcontext()


def branch(
    condition: Any, if_true: Callable[..., Any], if_false: Callable[..., Any], operands: Sequence[Any] = ()
) -> Any:
    """What `torch.cond` returns. What only the other branch uses has a gradient of zeros, as torch's has."""
    taken, other = (if_true, if_false) if condition else (if_false, if_true)
    found, structure = internals.tree_flatten(taken(*operands))
    leaves = _leaves([leaf for leaf in internals.tree_leaves(other(*operands)) if isinstance(leaf, torch.Tensor)])
    for number, leaf in enumerate(found):
        if leaves and isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            found[number] = _Linked.apply(leaf, *leaves)  # type: ignore[no-untyped-call]
            break
    return internals.tree_unflatten(found, structure)


def _leaves(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The inputs and parameters on which some tensors depend, as autograd knows it."""
    leaves = [output for output in outputs if output.requires_grad and output.is_leaf]
    leaves += [node.variable for node in backward.nodes_of(outputs) if hasattr(node, "variable")]
    return list({id(leaf): leaf for leaf in leaves}.values())


# Turns off what torch.distributions asks of arguments: perturbed probabilities do not add up to one.


@contextlib.contextmanager
def without_validation() -> Iterator[None]:
    """A context in which a distribution checks its arguments only if it is told to, by `validate_args=True`."""
    before = internals.validates_arguments(torch.distributions.Distribution)  # there is a setter, and no getter
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


# Grouped matrix products in float64, as mixtures of experts use them: torch has no kernel for these numbers.

FUNCTIONS = tuple(
    getattr(owner, name)
    for owner, name in ((torch, "_grouped_mm"), (torch.nn.functional, "grouped_mm"))
    if hasattr(owner, name)
)


def grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,  # noqa: ARG001 -- of kernels that round
) -> torch.Tensor:
    """One matrix product for each group, as `torch.nn.functional.grouped_mm` computes them.

    Both have an axis of groups, (groups, m, k) and (groups, k, n). Or `offs` says where each group ends: in the rows of
    a matrix `a`, in the columns of a matrix `b`, or in the columns of `a` and the rows of `b` if both are matrices.

    Returns:
        (groups, m, n) if both or none have an axis of groups, otherwise (m, n).
    """
    if offs is None:
        found = torch.bmm(a, b)
    else:
        ends = offs.tolist()
        groups = [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        rest = slice(ends[-1], None)
        if a.dim() == b.dim():
            found = torch.stack([a[:, group] @ b[group] for group in groups])
        elif b.dim() > a.dim():
            parts = [a[group] @ b[i] for i, group in enumerate(groups)]
            found = torch.cat([*parts, a.new_zeros(len(a[rest]), b.shape[-1])])
        else:
            parts = [a[i] @ b[:, group] for i, group in enumerate(groups)]
            found = torch.cat([*parts, a.new_zeros(a.shape[-2], b[:, rest].shape[-1])], dim=-1)
    return found if bias is None else found + bias


# Attention of the oracle, op by op as torch's kernels compute it, where torch would call such a kernel.
#
# A kernel rounds inside too: under autocast it rounds the weights before they multiply the values, and what backward
# passes on. On the CPU it takes the queries block by block, and backward adds up the gradients of keys and values in
# the low precision itself. The perturbed runs perturb the operands and results of ops, and nothing inside an op.

FUNCTION = torch.nn.functional.scaled_dot_product_attention
MOST_SCORES = 2**25  # numbers of float64, 256 MiB; the scores of more tokens are not stored
BLOCKS = ((768, 256), (192, 64), (0, 32))  # from so many queries on, the kernel of the CPU takes so many at once


def attention(  # noqa: PLR0913 -- torch's own signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 -- the same
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    **others: Any,
) -> torch.Tensor:
    """What `scaled_dot_product_attention` returns, with its arguments."""
    scores = query.shape[:-1].numel() * key.size(-2)
    refused = is_causal and attn_mask is not None  # by torch itself
    if not 0 < scores <= MOST_SCORES or dropout_p or refused or others:
        others |= {"scale": scale} | ({"enable_gqa": True} if enable_gqa else {})  # older torch knows no such word
        with sdpa_kernel(SDPBackend.MATH) if scores <= MOST_SCORES else contextlib.nullcontext():
            return FUNCTION(query, key, value, attn_mask, dropout_p, is_causal, **others)
    tokens, keys = query.size(-2), key.size(-2)
    if enable_gqa:
        groups = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    if is_causal:
        attn_mask = query.new_ones(tokens, keys, dtype=torch.bool).tril()
    size = next(size for least, size in BLOCKS if tokens >= least)
    blocks = query.split(size, -2)
    masks: Sequence[torch.Tensor | None] = [attn_mask] * len(blocks)
    if attn_mask is not None and attn_mask.size(-2) > 1:
        masks = attn_mask.split(size, -2)
    scale = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    found = [_of_block(q, key, value, m, scale) for q, m in zip(blocks, masks, strict=True)]
    return found[0] if len(found) == 1 else torch.cat(found, -2)


def _of_block(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Attention as a kernel computes it: it divides by the sum of the weights at the end.

    So its gradient is the product of weights with what is left of two numbers, one of which it takes from the rounded
    output. The gradient of a softmax takes both from the same numbers, and their common error cancels.
    """
    scores = query @ key.transpose(-2, -1) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    with custom_ops.Unwatched():  # this keeps numbers small, and rounds nothing
        largest = scores.detach().amax(-1, keepdim=True)
        masked = largest == -math.inf
        shifted = scores - largest.masked_fill(masked, 0.0)
    weights = shifted.exp()
    total = weights.sum(-1, keepdim=True)
    with custom_ops.Unwatched():
        total = total + masked  # a query without a key gets zeros
    return (weights @ value) / total


# Draws random numbers as float32 does: from one seed, torch draws others in float64.

NARROW = {torch.float64: torch.float32, torch.complex128: torch.complex64}
WIDE = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64) | {
    torch.complex64: torch.complex128
}
# Ops that return what they draw, and ops that write it into their first argument.
RETURNED = frozenset({"rand", "randn", "rand_like", "randn_like", "bernoulli", "multinomial"})
WRITTEN = frozenset({"uniform_", "normal_", "bernoulli_", "exponential_"})
STANDARD: tuple[Any, ...] = (0.0, 1.0)  # the ends of the interval, or mean and standard deviation


def recast(tree: Any, dtypes: Mapping[torch.dtype, torch.dtype]) -> Any:
    """The arguments of an op with other dtypes, and other tensors for those that have one of them."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype):
            return dtypes.get(leaf, leaf)
        return leaf.to(dtypes[leaf.dtype]) if isinstance(leaf, torch.Tensor) and leaf.dtype in dtypes else leaf

    return custom_ops.map_leaves(one, tree)


class NarrowDraws(custom_ops.OpMode):
    """While active, what an op draws at random is drawn in float32 and widened.

    Means, standard deviations, rates and the ends of intervals are applied in float64. Dropout is the same in both
    dtypes, so it stays as it is.
    """

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op; if it draws floating numbers, draw narrower ones."""
        name = func.overloadpacket.__name__
        if "out" in kwargs:
            return func(*args, **kwargs)
        with custom_ops.Unwatched():  # a draw does not round; what is computed with it does
            drawn = _draw(name, func, args, kwargs)
        if drawn is None:
            return func(*args, **kwargs)
        return args[0].copy_(drawn) if name in WRITTEN else drawn


def _draw(name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """What an op draws; None if it draws nothing that depends on the dtype."""
    if name in WRITTEN and args[0].dtype in NARROW:
        return _write(name, *args, **kwargs)
    if name == "normal":
        return _normal(*args, **kwargs)
    if name not in RETURNED:
        return None
    if name in ("rand", "randn"):
        kwargs = {**kwargs, "dtype": kwargs.get("dtype") or torch.get_default_dtype()}
    drawn: torch.Tensor = func(*recast(args, NARROW), **recast(kwargs, NARROW))
    return drawn.to(inputs.widest(drawn.dtype))


def _write(name: str, target: torch.Tensor, *numbers: Any, generator: torch.Generator | None = None) -> torch.Tensor:
    """What an op that draws in place writes into a target. The order of the draws depends on its strides."""
    draw = torch.empty_strided(target.shape, target.stride(), dtype=NARROW[target.dtype], device=target.device)
    if name == "bernoulli_":
        return draw.bernoulli_(*recast(numbers, NARROW), generator=generator).to(target.dtype)
    getattr(draw, name)(generator=generator)
    if name == "exponential_":
        return draw.to(target.dtype) / (numbers[0] if numbers else 1.0)
    start, other = (*numbers, *STANDARD[len(numbers) :])
    scale = other - start if name == "uniform_" else other
    drawn: torch.Tensor = draw.to(target.dtype) * scale + start
    return drawn


def _normal(mean: Any, deviation: Any = 1.0, size: Any = None, **options: Any) -> torch.Tensor:
    """`torch.normal`, whose mean, standard deviation or both may be tensors."""
    tensors = [given for given in (mean, deviation) if isinstance(given, torch.Tensor)]
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors)) if tensors else size
    target = torch.empty(shape, dtype=torch.float64)
    return _write("normal_", target, mean, deviation, generator=options.get("generator"))


# Widens models that are graphs already: scripted, traced or exported ones, whose casts no Python code can see.


class WidenedOps(custom_ops.OpMode):
    """Gives every op float64 in place of narrower dtypes and tensors, below TorchScript and exported graphs."""

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op on widened arguments. Views, and tensors that the op writes, stay as they are.

        So do cotangents: they are drawn where `Widened` does not apply either.
        """
        if func.is_view or not internals.is_torch_function_enabled():
            return func(*args, **kwargs)
        written = custom_ops.written_names(func)
        names = [argument.name for argument in internals.schema_of(func).arguments]
        wide_args = [a if name in written else _wide(a) for name, a in zip(names, args, strict=False)]
        wide_kwargs = {name: value if name in written else _wide(value) for name, value in kwargs.items()}
        return func(*wide_args, **wide_kwargs)


class NarrowWatch(custom_ops.OpMode):
    """Notes whether any op gives a floating tensor that is narrower than float64, or draws from a given generator."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = self.draws = False

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op as it was called; `Widened` would widen a call that comes from here."""
        with internals.DisableTorchFunction():
            result = func(*args, **kwargs)
        self.draws |= kwargs.get("generator") is not None
        self.seen |= any(
            inputs.is_rounded(t) and t.dtype != inputs.widest(t.dtype) for t in custom_ops.leaves_of(result)
        )
        return result


def has_graph(model: Any) -> bool:
    """Whether a model, or a module inside it, is a graph of TorchScript or of `torch.export`."""
    kinds = (torch.jit.ScriptModule, torch.fx.GraphModule)
    if isinstance(model, torch.nn.Module):
        return any(isinstance(module, kinds) for module in model.modules())
    return isinstance(model, torch.jit.ScriptFunction)


def widen_constants(model: torch.nn.Module) -> None:
    """Give the constants of TorchScript's graphs float64, in place; freezing a model makes constants of its weights.

    Call it before the model has run: TorchScript keeps what it has made of a graph.
    """
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            for graph in internals.graphs_of(module):
                _widen_nodes(graph)


def _widen_nodes(block: Any) -> None:
    for node in block.nodes():
        if node.kind() == "prim::Constant" and node.hasAttribute("value") and node.kindOf("value") == "t":
            node.t_("value", _wide(node.t("value")))
        for inner in node.blocks():
            _widen_nodes(inner)


def _wide(tree: Any) -> Any:
    def wide(leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype):
            return inputs.widest(leaf)
        if inputs.is_rounded(leaf) and leaf.dtype != inputs.widest(leaf.dtype):
            return leaf.to(inputs.widest(leaf.dtype))
        return leaf

    return custom_ops.map_leaves(wide, tree)


# Tells whether Python code calls TorchScript, whose first calls may round differently from later ones.

SCRIPTS = (torch.jit.ScriptFunction, torch.ScriptMethod)


@contextlib.contextmanager
def note_scripts() -> Iterator[set[type]]:
    """A context that tells which kinds of scripts were called in it. What compiled code has taken in is not called."""
    called: set[type] = set()

    def watched(kind: type) -> Any:
        plain = kind.__call__

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            called.add(kind)
            return plain(self, *args, **kwargs)

        return call

    with contextlib.ExitStack() as stack:
        for kind in SCRIPTS:
            stack.enter_context(mock.patch.object(kind, "__call__", watched(kind)))
        yield called
