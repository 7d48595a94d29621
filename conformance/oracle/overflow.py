"""Lowers the scale of the cotangents until no gradient inside a model overflows float16, as a GradScaler does."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from conformance.axes import PRECISIONS
from conformance.evaluate import backward, evaluation, inputs, weights
from conformance.evaluate.custom_ops import OpMode, Unwatched
from conformance.evaluate.error_text import is_out_of_memory
from conformance.evaluate.evaluation import Evaluation
from conformance.evaluate.nested import leaves_of
from conformance.evaluate.questions import question_of
from conformance.float64.wide import Oracle, prepared_model
from conformance.oracle.scaling import LARGER, LARGEST, LEAST, Scale, scale_for
from zoo.case import Case

AMP_FP16 = PRECISIONS["amp_fp16"]


class InnerGradients(OpMode):
    """Notes the largest gradient that an op of the judge's backward gives.

    Attributes:
        largest: its absolute value.
    """

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0.0

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op, and note what it gives in backward."""
        result = func(*args, **kwargs)
        if not func.is_view and backward.is_scaled():
            with Unwatched():
                for leaf in leaves_of(result):
                    if inputs.is_rounded(leaf) and leaf.numel():
                        self.largest = max(self.largest, float(leaf.abs().nan_to_num(0.0, posinf=0.0).amax()))
        return result


def chosen(oracle: Oracle, case: Case, picks: inputs.Picks, found: Evaluation, inner: float) -> Scale:
    """The scale of a case: that of its gradients, lowered if eager's overflow with it under float16 autocast.

    Args:
        oracle: the oracle.
        case: the case.
        picks: the draw of its inputs.
        found: what the oracle returned.
        inner: the largest gradient inside the model.
    """
    scale = scale_for(found.tensors)
    if scale * inner <= LARGEST / LARGER or oracle.spec.fit is not None:
        return Scale(scale, LARGEST / scale)
    finite = _Eager(oracle, case, picks, found).has_finite_gradients
    if finite(max(scale, 2.0 ** math.ceil(math.log2(2.0 * LARGEST / inner)))):
        return Scale(scale, math.inf)  # float16 does not hold these
    lower = scale
    while lower >= LEAST and not finite(lower):
        lower /= LARGER
    if lower < LEAST:
        lower = scale  # they overflow with any
    elif lower < scale:
        lower = max(LEAST, lower / LARGER)  # room for further draws
    return Scale(lower, LARGEST / lower)


class _Eager:
    """The model under float16 autocast on the CPU."""

    def __init__(self, oracle: Oracle, case: Case, picks: inputs.Picks, found: Evaluation) -> None:
        self._model, self._truths = prepared_model(oracle.spec, oracle.seed), found.tensors
        question = question_of(oracle.spec, case, oracle.seed, picks, lambda call: call, self._model)
        self._question = replace(question, second=False, stacked=None, forward_mode=False, precision=AMP_FP16)
        self._state = weights.state_of(self._model)

    def has_finite_gradients(self, scale: float) -> bool:
        """Whether its results are finite where the oracle's are; True if it raises an error, which the cells tell."""
        try:
            found = evaluation.evaluate(self._model, self._model, replace(self._question, scale=scale)).tensors
        except Exception as problem:  # the model's own code may raise anything
            if is_out_of_memory(problem):
                raise
            return True
        weights.reset(self._model, self._state)
        return all(_as_finite(tensor, found.get(name)) for name, tensor in self._truths.items())


def _as_finite(truth: torch.Tensor | None, tensor: torch.Tensor | None) -> bool:
    if truth is None or tensor is None or truth.shape != tensor.shape or not inputs.is_rounded(tensor):
        return True
    return bool(tensor.isfinite()[truth.isfinite()].all())
