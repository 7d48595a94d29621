"""Computes what a model must return under `torch.vmap` and in forward mode, by a loop and by reverse mode.

A spec claims these with `vmappable` and `forward_mode`. The oracle does not use the rules that a cell is asked about.
It calls the model once for each sample, and it transposes the backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch

from conformance.errors import SelfCheckError
from conformance.evaluate import containers, evaluation, inputs
from conformance.evaluate.evaluation import Evaluation, Leaves, Question, Tensors, named
from zoo import internals
from zoo.case import Call, Case, SpecError

OTHER_DRAWS = (101, 102)  # draws of a case that stand beside its own in the batch, as no case takes them itself
AGREEMENT = 1e-9  # largest difference of ⟨Jv, c⟩ and ⟨v, Jᵀc⟩ in float64, relative to the size of the tensors


def stack_inputs(case: Case, seed: int, picks: inputs.Picks) -> Call:
    """The inputs of a case and of two other draws, stacked along a new first axis.

    Raises:
        SpecError: there is no tensor to stack, or the draws differ in anything but the numbers of their tensors.
    """
    calls = [inputs.draw(case, seed, which) for which in (picks, *OTHER_DRAWS)]
    flat = [internals.tree_flatten((call.args, dict(call.kwargs))) for call in calls]
    (first, structure), others = flat[0], flat[1:]
    if not any(isinstance(leaf, torch.Tensor) for leaf in first):
        raise SpecError(f"case {case.name}: vmappable, but no argument is a tensor that could hold a batch")
    if any(spec != structure or not all(map(_alike, first, leaves)) for leaves, spec in others):
        raise SpecError(f"case {case.name}: vmappable, but its draws differ in structure, shape, dtype or constants")
    columns = zip(first, *(leaves for leaves, _ in others), strict=True)
    together = [torch.stack(column) if isinstance(column[0], torch.Tensor) else column[0] for column in columns]
    args, kwargs = internals.tree_unflatten(together, structure)
    return Call(args, kwargs)


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype
    return type(one) is type(other) and bool(one == other)


def of_oracle(model: Any, question: Question, reset: Callable[[], None]) -> Tensors:
    """What a cell must get under the transforms that the question asks for, from a loop and from reverse mode.

    Args:
        model: the model in float64.
        question: what to evaluate.
        reset: restores the model's parameters and buffers; called before each call of the model.

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
    returned: list[dict[str, Any]] = []
    for sample in range(1 + len(OTHER_DRAWS)):
        reset()

        def one(leaf: Any, sample: int = sample) -> Any:
            return leaf[sample].clone() if isinstance(leaf, torch.Tensor) else leaf

        args, kwargs = internals.tree_map(one, (batch.args, dict(batch.kwargs)))
        with torch.no_grad():
            returned.append(containers.tensors_of(model(*args, **kwargs)))
    reset()
    return named("vmapped", {leaf: torch.stack([sample[leaf] for sample in returned]) for leaf in returned[0]})


def _transpose(model: Any, question: Question) -> Tensors:
    """Jv as the gradient of ⟨Jᵀw, v⟩ with respect to w, in which Jᵀw is linear."""
    inputs.restore(question.call, question.pristine)
    leaves = {name: t for name, t in evaluation.leaves_of(model, question).items() if t.requires_grad}
    outputs = rounded_outputs(inputs.called(model, question.call))
    found: Leaves = {name: torch.zeros_like(t) for name, t in outputs.items()}
    roots = {name: t for name, t in outputs.items() if t.requires_grad}
    if roots and leaves:
        weights = [inputs.cotangent(name, t, question.seed).requires_grad_() for name, t in roots.items()]
        pulled = torch.autograd.grad(
            list(roots.values()), list(leaves.values()), weights, create_graph=True, allow_unused=True
        )
        slopes = [_inner(g, direction(n, g, question)) for n, g in zip(leaves, pulled, strict=True) if g is not None]
        pushed = torch.autograd.grad(reduce(torch.add, slopes), weights, allow_unused=True) if slopes else ()
        found |= {name: t for name, t in zip(roots, pushed, strict=False) if t is not None}
    return named("tangent", {leaf: t if t is None else t.detach() for leaf, t in found.items()})


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
