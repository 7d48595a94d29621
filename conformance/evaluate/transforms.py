"""Evaluates a model under `torch.vmap` and in forward mode, where its spec claims that they work.

The oracle does not use the rules that a cell is asked about. It calls the model once for each sample, and it transposes
the backward.
"""

import itertools
import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.autograd import forward_ad

from conformance.axes import Prepared
from conformance.errors import SelfCheckError, call_theirs
from conformance.evaluate import containers, error_text, evaluation, inputs, weights
from conformance.evaluate.evaluation import Evaluation, Leaves, Question, Tensors, copies, name_tensors
from zoo import Call, internals

AGREEMENT = 1e-9  # largest difference of ⟨Jv, c⟩ and ⟨v, Jᵀc⟩ in float64, relative to the size of the tensors


def of_oracle(model: Any, question: Question, reset: Callable[[], None]) -> Tensors:
    """What a cell must get under the transforms that the question asks for, from a loop and from reverse mode.

    `reset`, which restores parameters and buffers, is called before each call of the model.

    Raises:
        SelfCheckError: the model's backward cannot be differentiated, so it tells no tangents.
    """
    found: Tensors = {}
    if question.stacked is not None:
        found |= _loop(model, question.stacked, reset)
    if question.forward_mode:
        reset()
        try:
            found |= _transpose(model, question)
        except RuntimeError as problem:
            text = " ".join(str(problem).split())[:200]
            raise SelfCheckError(
                f"forward_mode needs a backward that can be differentiated itself: {text}"
            ) from problem
    return found


def _loop(model: Any, batch: Call, reset: Callable[[], None]) -> Tensors:
    def run(sample: int) -> dict[str, Any]:
        reset()
        call = inputs.map_call(batch, lambda leaf: leaf[sample].clone() if isinstance(leaf, torch.Tensor) else leaf)
        with torch.no_grad():
            return containers.tensors_of(model(*call.args, **call.kwargs))

    returned = [run(sample) for sample in range(1 + len(inputs.OTHER_DRAWS))]
    reset()
    return name_tensors("vmapped", {leaf: torch.stack([sample[leaf] for sample in returned]) for leaf in returned[0]})


def _transpose(model: Any, question: Question) -> Tensors:
    """Jv as the gradient of ⟨Jᵀw, v⟩ with respect to w, in which Jᵀw is linear."""
    inputs.restore(question.call, question.pristine)
    leaves = {name: t for name, t in evaluation.leaves_of(model, question).items() if t.requires_grad}
    outputs = rounded_outputs(inputs.invoke(model, question.call))
    found: Leaves = {name: torch.zeros_like(t) for name, t in outputs.items()}
    roots = {name: t for name, t in outputs.items() if t.requires_grad}
    if roots and leaves:
        cotangents = [inputs.cotangent(name, t, question.seed).requires_grad_() for name, t in roots.items()]
        pulled = torch.autograd.grad(
            list(roots.values()), list(leaves.values()), cotangents, create_graph=True, allow_unused=True
        )
        slopes = [_inner(g, direction(n, g, question)) for n, g in zip(leaves, pulled, strict=True) if g is not None]
        pushed = torch.autograd.grad(sum(slopes[1:], start=slopes[0]), cotangents, allow_unused=True) if slopes else ()
        found |= {name: t for name, t in zip(roots, pushed, strict=False) if t is not None}
    return copies("tangent", found)


def check_adjoint(question: Question, found: Evaluation) -> None:
    """Hold ⟨Jv, c⟩ = ⟨v, Jᵀc⟩: the tangents of the oracle must agree with its gradients.

    Tangents or gradients with an infinity or NaN are not compared.

    Raises:
        SelfCheckError: they differ, because the model's backward is not linear in its cotangent.
    """
    pushed = _pairs("tangent", found, lambda name, t: inputs.cotangent(name, t, question.seed))
    pulled = _pairs("gradient", found, lambda name, t: direction(name, t, question))
    sides = [sum(float(_inner(t, other)) for t, other in side) for side in (pushed, pulled)]
    size = max(sum(float(t.abs().norm() * other.abs().norm()) for t, other in side) for side in (pushed, pulled))
    if math.isfinite(size) and abs(sides[0] - sides[1]) > AGREEMENT * size:
        raise SelfCheckError(
            f"forward_mode: the backward, transposed, gives ⟨Jv, c⟩ = {sides[0]:.6g}, and the gradients give "
            f"⟨v, Jᵀc⟩ = {sides[1]:.6g}; can the backward be differentiated, and is it linear in its cotangent?"
        )


def direction(name: str, leaf: torch.Tensor, question: Question) -> torch.Tensor:
    """The random tangent of an input or parameter."""
    return inputs.cotangent(f"tangent of {name}", leaf, question.seed)


def _pairs(
    kind: str, found: Evaluation, other: Callable[[str, torch.Tensor], torch.Tensor]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(t, other(n.leaf, t)) for n, t in found.tensors.items() if n.kind == kind and t is not None]


def _inner(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The real inner product."""
    product = one.conj() * other if one.is_complex() else one * other
    return product.real.sum() if product.is_complex() else product.sum()


def rounded_outputs(returned: Any) -> dict[str, torch.Tensor]:
    """The floating and complex outputs by name."""
    return {n: t for n, t in containers.tensors_of(returned).items() if t is not None and inputs.is_rounded(t)}


# What a cell gets, in any mode.

WORDS = {"vmapped": "vmap", "tangent": "forward mode"}  # by kind of the results


def transform_kinds(question: Question) -> tuple[str, ...]:
    """The kinds of the results of the transforms that the question asks for."""
    return ("vmapped",) * (question.stacked is not None) + ("tangent",) * question.forward_mode


def left_out_kinds(question: Question) -> tuple[str, ...]:
    """The kinds of the results that the question does not ask for."""
    derivatives = () if question.differentiate else ("gradient", "second")
    return (*derivatives, *(kind for kind in WORDS if kind not in transform_kinds(question)))


def add(
    found: Evaluation, made: Prepared, question: Question, zero: Collection[str] = (), *, raises: bool
) -> dict[str, str]:
    """Add the results of the transforms that the question asks for to the evaluation of a cell.

    It raises the errors of the mode, or returns them as facts for the record. For `zero`, see `in_forward_mode`.
    """
    refused: dict[str, str] = {}
    for kind in transform_kinds(question):
        try:
            if kind == "vmapped":
                found.tensors |= under_vmap(made, question)
            else:
                found.tensors |= in_forward_mode(made, question, zero)
        except RuntimeError as problem:
            if raises or error_text.is_out_of_memory(problem):
                raise
            found.left_out += (kind,)
            refused[f"{WORDS[kind]} refused"] = error_text.one_line(problem)
    return refused


def under_vmap(made: Prepared, question: Question, *, last: bool = False, alone: int | None = None) -> Tensors:
    """The outputs of `torch.vmap` on the question's stacked inputs, by name.

    A mode that has `around` compiles the vmap of the model.

    Args:
        made: the callable.
        question: the question, with stacked inputs.
        last: the samples lie along the last axis of every input.
        alone: the position, among the tensors of the inputs, of the only one that has samples; the others are those of
            the first sample. None: all have them.
    """
    assert question.stacked is not None
    axis, count = (-1 if last else 0), itertools.count()

    def stacked(leaf: Any) -> tuple[Any, int | None]:
        if not isinstance(leaf, torch.Tensor):
            return leaf, None
        return (leaf.movedim(0, axis), axis) if alone in (None, next(count)) else (leaf[0], None)

    leaves, structure = internals.tree_flatten((question.stacked.args, dict(question.stacked.kwargs)))
    given, axes = (internals.tree_unflatten(list(part), structure) for part in zip(*map(stacked, leaves), strict=True))
    args, kwargs = given
    model = made.call if made.around is None else made.parameters_of

    def sample(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return model(*args, **kwargs)

    def batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return torch.vmap(sample, in_dims=axes)(args, kwargs)

    function = batch if made.around is None else call_theirs(made.around, batch)
    with torch.no_grad(), evaluation.autocast(question):
        returned = function(args, kwargs)
    return copies("vmapped", {leaf: t for leaf, t in containers.tensors_of(returned).items() if t is not None})


def in_forward_mode(made: Prepared, question: Question, zero: Collection[str]) -> Tensors:
    """The tangents of the outputs by name, for random tangents of all floating inputs and parameters.

    A mode that has `around` compiles the derivative of the model. torch may leave out the tangents of `zero`, which are
    zero; any other that is left out is lost, and becomes None.
    """
    inputs.restore(question.call, question.pristine)
    leaves = {name: t for name, t in evaluation.leaves_of(made.parameters_of, question).items() if t.requires_grad}
    tangents = {id(t): direction(name, t, question) for name, t in leaves.items()}
    push = _push_in_place if made.around is None else _push_compiled
    with evaluation.autocast(question):
        primals, pushed = push(made, question.call, tangents)
    found: Leaves = {}
    for leaf, primal in rounded_outputs(primals).items():
        tangent = containers.tensors_of(pushed)[leaf]
        found[leaf] = torch.zeros_like(primal) if tangent is None and leaf in zero else tangent
    return copies("tangent", found)


def _push_in_place(made: Prepared, arguments: Any, tangents: dict[int, torch.Tensor]) -> tuple[Any, Any]:
    """Outputs and tangents. The parameters get their tangents in place, so that a callable of any mode sees them."""
    with forward_ad.dual_level():
        with torch.no_grad():
            for parameter in weights.parameters_of(made.parameters_of).values():
                if id(parameter) in tangents:
                    parameter.copy_(forward_ad.make_dual(parameter.detach().clone(), tangents[id(parameter)]))
        dual: dict[int, torch.Tensor] = {}

        def raised(leaf: Any) -> Any:
            if id(leaf) not in tangents:
                return leaf
            return dual.setdefault(id(leaf), forward_ad.make_dual(_apart(leaf), tangents[id(leaf)]))

        args, kwargs = internals.tree_map(raised, (arguments.args, dict(arguments.kwargs)))
        return _unpack(made.call(*args, **kwargs))


def _push_compiled(made: Prepared, arguments: Any, tangents: dict[int, torch.Tensor]) -> tuple[Any, Any]:
    """Outputs and tangents of the mode's own version of the derivative."""
    assert made.around is not None
    flat, structure = internals.tree_flatten((arguments.args, dict(arguments.kwargs)))
    moving = [i for i, leaf in enumerate(flat) if id(leaf) in tangents]
    owned = {name: p for name, p in weights.parameters_of(made.parameters_of).items() if id(p) in tangents}
    model = made.parameters_of

    def push(leaves: list[Any], directions: list[Any], parameters: dict[str, Any], theirs: dict[str, Any]) -> Any:
        with forward_ad.dual_level():
            dual = list(leaves)
            for i, tangent in zip(moving, directions, strict=True):
                dual[i] = forward_ad.make_dual(_apart(leaves[i]), tangent)
            args, kwargs = internals.tree_unflatten(dual, structure)
            if not parameters:
                return _unpack(model(*args, **kwargs))
            duals = {name: forward_ad.make_dual(p, theirs[name]) for name, p in parameters.items()}
            return _unpack(torch.func.functional_call(model, duals, args, kwargs))

    theirs = {name: tangents[id(p)] for name, p in owned.items()}
    whole = call_theirs(made.around, push)
    pushed: tuple[Any, Any] = whole(flat, [tangents[id(flat[i])] for i in moving], owned, theirs)
    return pushed


def _unpack(returned: Any) -> tuple[Any, Any]:
    """The tree of values, and the tree of tangents, None where there is none."""

    def tangent(leaf: Any) -> Any:
        return forward_ad.unpack_dual(leaf).tangent if isinstance(leaf, torch.Tensor) else None

    def primal(leaf: Any) -> Any:
        return forward_ad.unpack_dual(leaf).primal if isinstance(leaf, torch.Tensor) else leaf

    return internals.tree_map(primal, returned), internals.tree_map(tangent, returned)


def _apart(leaf: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy if its elements share memory: torch gives such a tensor no tangent."""
    return leaf.clone() if leaf.numel() > inputs.extent(leaf) else leaf
