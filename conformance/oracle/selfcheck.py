"""Checks the oracle itself: it must agree with a second run, with other formulas, and with finite differences.

A wrong backward is just as wrong in float64. Only finite differences find it.
"""

from functools import partial
from typing import Any

import torch

from conformance.derivatives.gradients import GradientCheck
from conformance.errors import RandomError, SelfCheckError
from conformance.evaluate import containers, evaluation, inputs, transforms
from conformance.evaluate.evaluation import Evaluation, Question, Tensors
from conformance.float64.wide import Oracle, prepared_model, wide_model
from conformance.gates.distance import same_bytes
from conformance.process.forks import Forks
from zoo.spec import Spec

LAST_BITS = 2.0**-48  # relative to the largest norm of all tensors, for those whose terms cancel; float64 has 53 bits
AGREEMENT = 1e-9  # largest difference of two float64 formulas, relative to the norm
ONE_IS_WRONG = "one of the two is wrong, so call both on this case in float64"


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
            SelfCheckError: outputs differ from the reference's or the twin's, or gradients from the surrogate's or
                from the tangents.
        """
        self._try_again(question, first)
        if question.forward_mode:
            transforms.check_adjoint(question, first)
        if self._spec.reference is not None and not self._spec.trusts_model:
            self._oracle.reset()
            inputs.restore(question.call, question.pristine)
            with self._oracle.widened(), torch.no_grad():
                wanted = inputs.invoke(partial(self._spec.reference, self._model), question.call)
            _agree("the spec's reference", evaluation.name_tensors("output", containers.tensors_of(wanted)), first)
        if self._spec.surrogate_gradient is not None:
            self._try_surrogate(question, first)
        if self._twin is not None:
            self._try_twin(self._twin, question, first)

    def _try_again(self, question: Question, first: Evaluation) -> None:
        with self._oracle.remembering():
            again = self._oracle.evaluate(question).tensors
        changed = [name for name, tensor in first.tensors.items() if not _same_bits(tensor, again.get(name))]
        if not changed:
            return
        largest = max((_norm(t) for t in first.tensors.values() if t is not None and inputs.is_rounded(t)), default=0.0)
        for name in changed:
            if not _nearly_the_same(first.tensors[name], again.get(name), LAST_BITS * largest):
                raise RandomError(f"{name}: two identical float64 runs differ; global random state, or hidden state?")

    def _try_surrogate(self, question: Question, first: Evaluation) -> None:
        declared = self._spec.surrogate_gradient

        def surrogate(*args: Any, **kwargs: Any) -> Any:
            return declared(self._model, *args, **kwargs)  # type: ignore[misc]

        self._oracle.reset()
        with self._oracle.widened():
            wanted = evaluation.evaluate(surrogate, self._model, question)
        gradients = {name: t for name, t in wanted.tensors.items() if name.kind == "gradient"}
        _agree("the declared surrogate_gradient", gradients, first)

    def _try_twin(self, spec: Spec, question: Question, first: Evaluation) -> None:
        twin = wide_model(prepared_model(spec, self._oracle.seed))
        if isinstance(twin, torch.nn.Module):
            try:
                twin.load_state_dict(self._oracle.state)
            except RuntimeError as problem:
                raise SelfCheckError(f"twin {spec.name}: {problem}") from problem
        inputs.restore(question.call, question.pristine)
        with self._oracle.widened(), torch.no_grad():
            outputs = inputs.invoke(twin, question.call)
        _agree(f"its twin {spec.name}", evaluation.name_tensors("output", containers.tensors_of(outputs)), first)

    def of_gradients(self, question: Question, first: Evaluation, forks: Forks) -> tuple[str, ...]:
        """Compare the gradients with finite differences.

        Args:
            question: the question of a case.
            first: what the oracle returned for it.
            forks: the forks that may do a part of the work.

        Returns:
            The facts without which they do not agree: see `GradientCheck`.

        Raises:
            SelfCheckError: a gradient is wrong or missing, or a second derivative that the spec claims.
        """
        check = GradientCheck(self._oracle, question, first, forks)
        check.run()
        return tuple(check.assumed)


def _same_bits(tensor: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return tensor is other if tensor is None or other is None else same_bytes(tensor, other)


def _nearly_the_same(tensor: torch.Tensor | None, other: torch.Tensor | None, least: float) -> bool:
    """Whether two runs gave the same but for last bits: those of a sum may depend on where its terms lie in memory."""
    if tensor is None or other is None or tensor.shape != other.shape or not inputs.is_rounded(tensor):
        return False
    gap = _norm(tensor - other)
    return torch.equal(tensor.isfinite(), other.isfinite()) and gap <= max(AGREEMENT * _norm(tensor), least)


def _agree(whose: str, wanted: Tensors, found: Evaluation) -> None:
    for name, theirs in wanted.items():
        ours = found.tensors.get(name)
        if theirs is None and ours is None:
            continue
        if not isinstance(theirs, torch.Tensor) or ours is None or theirs.shape != ours.shape:
            shapes = f"{name}: {whose} gives {_shape(theirs)}, the float64 oracle {_shape(ours)}"
            raise SelfCheckError(f"{shapes}; {ONE_IS_WRONG}")
        if not inputs.is_rounded(ours):
            same = torch.equal(theirs, ours)
        else:
            gap, size = _norm(theirs - ours), _norm(ours)
            same = gap <= AGREEMENT * max(size, 1e-3) and torch.equal(theirs.isfinite(), ours.isfinite())
        if not same:
            raise SelfCheckError(f"{name}: the float64 oracle differs from {whose}; {ONE_IS_WRONG}")


def _norm(tensor: torch.Tensor) -> float:
    """The 2-norm of the finite elements."""
    return float(tensor.abs().nan_to_num(0.0, 0.0, 0.0).square().sum().sqrt())


def _shape(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
