"""Evaluates a callable of some mode under `torch.vmap` and in forward mode, where the spec claims that they work."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.func import functional_call

from conformance.axes import Prepared
from conformance.evaluate import containers, evaluation, inputs
from conformance.evaluate.error_text import is_out_of_memory, one_line
from conformance.evaluate.evaluation import Evaluation, Leaves, Question, Tensors, named
from conformance.evaluate.transforms import direction, rounded_outputs
from conformance.oracle.reference import CaseReference
from zoo import internals

WORDS = {"vmapped": "vmap", "tangent": "forward mode"}  # by kind of the results


def transforms_of(question: Question) -> tuple[str, ...]:
    """The kinds of the results of the transforms that the question asks for."""
    return ("vmapped",) * (question.stacked is not None) + ("tangent",) * question.forward_mode


def left_out_kinds(question: Question) -> tuple[str, ...]:
    """The kinds of the results that the question does not ask for."""
    derivatives = () if question.differentiate else ("gradient", "second")
    return (*derivatives, *(kind for kind in WORDS if kind not in transforms_of(question)))


def of(made: Prepared, question: Question) -> Tensors:
    """The results of the transforms that the question asks for, by name.

    Raises:
        Whatever the mode or the model raises.
    """
    return {name: t for kind in transforms_of(question) for name, t in _evaluate(kind, made, question, None).items()}


def add(found: Evaluation, made: Prepared, question: Question, known: CaseReference, *, eager: bool) -> dict[str, str]:
    """Add the results of the transforms to the evaluation of a cell. Outside eager, the mode may raise an error.

    Args:
        found: the evaluation.
        made: the callable of the cell's mode.
        question: what to evaluate.
        known: the reference of the case.
        eager: the mode is eager.

    Returns:
        The errors that the mode raised, as facts for the record.
    """
    refused: dict[str, str] = {}
    for kind in transforms_of(question):
        try:
            found.tensors |= _evaluate(kind, made, question, known)
        except RuntimeError as problem:
            if eager or is_out_of_memory(problem):
                raise
            found.left_out += (kind,)
            refused[f"{WORDS[kind]} refused"] = one_line(problem)
    return refused


def _evaluate(kind: str, made: Prepared, question: Question, known: CaseReference | None) -> Tensors:
    if kind == "vmapped":
        return under_vmap(made, question)
    tensors = known.tensors.items() if known is not None else ()
    zero = {n.leaf for n, t in tensors if n.kind == "tangent" and t is not None and t.oracle.norm == 0.0}
    return in_forward_mode(made, question, zero)


def under_vmap(made: Prepared, question: Question) -> Tensors:
    """The outputs of `torch.vmap` on the question's stacked inputs, by name.

    Args:
        made: the callable of some mode. A mode that has `around` compiles the vmap of the model.
        question: what to evaluate; it has stacked inputs.

    Raises:
        Whatever torch.vmap or the mode raises.
    """
    assert question.stacked is not None
    args, kwargs = question.stacked.args, dict(question.stacked.kwargs)
    axes = internals.tree_map(lambda leaf: 0 if isinstance(leaf, torch.Tensor) else None, (args, kwargs))
    model = made.call if made.around is None else made.parameters_of

    def sample(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return model(*args, **kwargs)

    def batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return torch.vmap(sample, in_dims=axes)(args, kwargs)

    function = batch if made.around is None else made.around(batch)
    with torch.no_grad(), evaluation.autocast(question):
        returned = function(args, kwargs)
    outputs = containers.tensors_of(returned)
    return named("vmapped", {leaf: t.detach().clone() for leaf, t in outputs.items() if t is not None})


def in_forward_mode(made: Prepared, question: Question, zero: Collection[str] = ()) -> Tensors:
    """The tangents of the outputs by name, for random tangents of all floating inputs and parameters.

    Args:
        made: the callable of some mode. A mode that has `around` compiles the derivative of the model.
        question: what to evaluate.
        zero: the outputs whose tangents are zero. torch may leave these out; any other that is left out is lost, and
            becomes None.

    Raises:
        Whatever the mode or the model raises, such as a Function without jvp.
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
        if tangent is None and leaf in zero:
            tangent = torch.zeros_like(primal)
        found[leaf] = tangent if tangent is None else tangent.detach().clone()
    return named("tangent", found)


def _push_in_place(made: Prepared, arguments: Any, tangents: dict[int, torch.Tensor]) -> tuple[Any, Any]:
    """Outputs and tangents. The parameters get their tangents in place, so that a callable of any mode sees them."""
    with forward_ad.dual_level():
        with torch.no_grad():
            for parameter in _parameters(made).values():
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
    owned = {name: p for name, p in _parameters(made).items() if id(p) in tangents}
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
            return _unpack(functional_call(model, duals, args, kwargs))

    theirs = {name: tangents[id(p)] for name, p in owned.items()}
    pushed: tuple[Any, Any] = made.around(push)(flat, [tangents[id(flat[i])] for i in moving], owned, theirs)
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
    extent = 1 + sum((size - 1) * stride for size, stride in zip(leaf.shape, leaf.stride(), strict=True))
    return leaf.clone() if leaf.numel() > extent else leaf


def _parameters(made: Prepared) -> dict[str, torch.Tensor]:
    owner = made.parameters_of
    return dict(owner.named_parameters()) if isinstance(owner, torch.nn.Module) else {}
