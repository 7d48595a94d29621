"""Checks the oracle itself: it must agree with a second run, with other formulas, and with finite differences.

A wrong backward is just as wrong in float64. Only finite differences find it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck
from torch.utils import _pytree as pytree

from conformance.errors import RandomError, SelfCheckError
from conformance.gates.distance import same_bytes
from conformance.oracle import containers, evaluation, inputs, process_state
from conformance.oracle.evaluation import Evaluation, Question
from conformance.oracle.float64 import Oracle, prepared_model, wide_model, widened
from zoo.case import Call
from zoo.spec import Spec

AGREEMENT = 1e-9  # largest difference of two float64 formulas, relative to the norm
SMALL = 400  # up to this many numbers in all inputs and parameters, gradcheck tests each


class SelfCheck:
    """Checks one oracle.

    Args:
        oracle: the oracle under test.
        twin: the spec of its twin, if it declares one.
    """

    def __init__(self, oracle: Oracle, twin: Spec | None) -> None:
        self._oracle, self._spec, self._model, self._twin = oracle, oracle.spec, oracle.model, twin

    def of_outputs(self, question: Question, first: Evaluation) -> None:
        """Make all checks except finite differences: a second run, the reference, the surrogate and the twin.

        Args:
            question: the question of a case.
            first: what the oracle returned for it.

        Raises:
            RandomError: two identical runs differ.
            SelfCheckError: outputs differ from the reference's or the twin's, or gradients from the surrogate's.
        """
        self._try_again(question, first)
        if self._spec.reference is not None:
            self._oracle.reset()
            inputs.restore(question.call, question.pristine)
            with widened(), torch.no_grad():
                wanted = self._spec.reference(self._model, *question.call.args, **question.call.kwargs)
            _agree("the spec's reference", containers.tensors_of(wanted), first)
        if self._spec.surrogate_gradient is not None:
            self._try_surrogate(question, first)
        if self._twin is not None:
            self._try_twin(self._twin, question, first)

    def _try_again(self, question: Question, first: Evaluation) -> None:
        again = self._oracle.evaluate(question).tensors
        for name, tensor in first.tensors.items():
            other = again.get(name)
            both = tensor is not None and other is not None
            if (tensor is None) != (other is None) or (both and not same_bytes(tensor, other)):  # type: ignore[arg-type]
                raise RandomError(f"{name}: two identical float64 runs differ; global random state, or hidden state?")

    def _try_surrogate(self, question: Question, first: Evaluation) -> None:
        declared = self._spec.surrogate_gradient

        def surrogate(*args: Any, **kwargs: Any) -> Any:
            return declared(self._model, *args, **kwargs)  # type: ignore[misc]

        self._oracle.reset()
        with widened():
            wanted = evaluation.evaluate(surrogate, self._model, question)
        gradients = {name: t for name, t in wanted.tensors.items() if name.startswith(evaluation.FIRST)}
        _agree("the declared surrogate_gradient", gradients, first)

    def _try_twin(self, spec: Spec, question: Question, first: Evaluation) -> None:
        twin = wide_model(prepared_model(spec, self._oracle.seed))
        if isinstance(twin, torch.nn.Module):
            try:
                twin.load_state_dict(self._oracle.state)
            except RuntimeError as problem:
                raise SelfCheckError(f"twin {spec.name}: {problem}") from problem
        inputs.restore(question.call, question.pristine)
        with widened(), torch.no_grad():
            outputs = twin(*question.call.args, **question.call.kwargs)
        _agree(f"its twin {spec.name}", containers.tensors_of(outputs), first)

    def of_gradients(self, question: Question, first: Evaluation) -> None:
        """Compare the gradients with finite differences, the only check that sees a wrong backward.

        Args:
            question: the question of a case.
            first: what the oracle returned for it.

        Raises:
            SelfCheckError: a gradient is wrong, or a second derivative that the spec claims.
        """
        question = self._on_plain_memory(question)
        prefix = f"{evaluation.FIRST} "
        named = {n.removeprefix(prefix) for n, t in first.tensors.items() if t is not None}
        owned = dict(self._model.named_parameters()) if isinstance(self._model, torch.nn.Module) else {}
        leaves = [t.requires_grad_() for name, t in {**question.names, **owned}.items() if name in named]
        if not leaves or any(t.numel() == 0 for t in leaves):
            return
        fast = sum(t.numel() for t in leaves) > SMALL
        checks: list[Callable[..., bool]] = [gradcheck, gradgradcheck]
        for check in checks if self._spec.twice_differentiable else checks[:1]:
            self._oracle.reset()
            try:
                with widened():
                    check(self._outputs(question, first), leaves, fast_mode=fast, nondet_tol=1e-12)
            except (GradcheckError, RuntimeError) as problem:
                advice = "; if that is by design, declare surrogate_gradient" if check is gradcheck else ""
                text = " ".join(str(problem).split())[:200]
                raise SelfCheckError(f"{check.__name__} in float64: {text}{advice}") from problem

    def _on_plain_memory(self, question: Question) -> Question:
        """The same question on contiguous copies: gradcheck refuses tensors that overlap themselves."""
        copied: dict[int, torch.Tensor] = {}

        def plain(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            return copied.setdefault(id(leaf), leaf.detach().clone(memory_format=torch.contiguous_format))

        args, kwargs = pytree.tree_map(plain, (question.pristine.args, dict(question.pristine.kwargs)))
        call = Call(args, kwargs)
        return replace(question, call=call, names=inputs.named_inputs(self._model, call))

    def _outputs(self, question: Question, first: Evaluation) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The model as a function for gradcheck, which returns its finite outputs.

        gradcheck changes the leaves in place, so the function uses these and ignores its arguments. The model gets
        copies of the inputs that it changes itself.
        """
        finite = {
            name: t.isfinite()
            for name, t in first.tensors.items()
            if name.startswith("output") and t is not None and inputs.is_rounded(t)
        }
        mutated = {id(leaf) for name, leaf in question.names.items() if name in question.mutates}

        def fresh(leaf: Any) -> Any:
            return leaf.clone() if id(leaf) in mutated else leaf

        def outputs(*_: torch.Tensor) -> tuple[torch.Tensor, ...]:
            evaluation.reset_buffers(self._model, self._oracle.state)
            args, kwargs = pytree.tree_map(fresh, (question.call.args, dict(question.call.kwargs)))
            with process_state.restored():
                returned = containers.tensors_of(self._model(*args, **kwargs))
            return tuple(
                t if bool(finite[name].all()) else t[finite[name]]
                for name, t in returned.items()
                if t is not None and inputs.is_rounded(t) and t.requires_grad and bool(finite[name].any())
            )

        return outputs


def _agree(whose: str, wanted: dict[str, Any], found: Evaluation) -> None:
    for name, theirs in wanted.items():
        ours = found.tensors.get(name)
        if theirs is None and ours is None:
            continue
        if not isinstance(theirs, torch.Tensor) or ours is None or theirs.shape != ours.shape:
            raise SelfCheckError(f"{name}: {whose} gives {_shape(theirs)}, the float64 oracle {_shape(ours)}")
        if not inputs.is_rounded(ours):
            same = torch.equal(theirs, ours)
        else:
            gap, size = _norm(theirs - ours), _norm(ours)
            same = gap <= AGREEMENT * max(size, 1e-3) and torch.equal(theirs.isfinite(), ours.isfinite())
        if not same:
            raise SelfCheckError(f"{name}: the float64 oracle differs from {whose}")


def _norm(tensor: torch.Tensor) -> float:
    """The 2-norm of the finite elements."""
    return float(tensor.abs().nan_to_num(0.0, 0.0, 0.0).square().sum().sqrt())


def _shape(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
