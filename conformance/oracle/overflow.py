"""Lowers the scale of the cotangents until no gradient inside a model overflows float16, as a GradScaler does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.axes import PRECISIONS
from conformance.evaluate import backward, custom_ops, error_text, evaluation, inputs, weights
from conformance.float64.wide import Oracle, prepared_model
from conformance.records.cell import TensorName
from zoo.case import Case

AMP_FP16 = PRECISIONS["amp_fp16"]


class InnerGradients(custom_ops.OpMode):
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
            with custom_ops.Unwatched():
                for leaf in custom_ops.leaves_of(result):
                    if inputs.is_rounded(leaf) and leaf.numel():
                        self.largest = max(self.largest, float(leaf.abs().nan_to_num(0.0, posinf=0.0).amax()))
        return result


def choose_scale(
    oracle: Oracle, case: Case, picks: inputs.Picks, found: evaluation.Evaluation, inner: float | None
) -> Scale:
    """The scale of a case: that of its gradients, lowered if eager's overflow with it under float16 autocast.

    `inner` is the largest gradient inside the model; None if no precision scales it.
    """
    scale = scale_for(found.tensors)
    if inner is None:
        return Scale(scale, math.inf)
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

    def __init__(self, oracle: Oracle, case: Case, picks: inputs.Picks, found: evaluation.Evaluation) -> None:
        self._model, self._truths = prepared_model(oracle.spec, oracle.seed), found.tensors
        question = evaluation.question_of(oracle.spec, case, oracle.seed, picks, lambda call: call, self._model)
        self._question = replace(question, second=False, stacked=None, forward_mode=False, precision=AMP_FP16)
        self._state = weights.state_of(self._model)

    def has_finite_gradients(self, scale: float) -> bool:
        """Whether its results are finite where the oracle's are; True if it raises an error, which the cells tell."""
        try:
            found = evaluation.evaluate(self._model, self._model, replace(self._question, scale=scale)).tensors
        except Exception as problem:  # the model's own code may raise anything
            if error_text.is_out_of_memory(problem):
                raise
            return True
        weights.reset(self._model, self._state)
        return all(_as_finite(tensor, found.get(name)) for name, tensor in self._truths.items())


def _as_finite(truth: torch.Tensor | None, tensor: torch.Tensor | None) -> bool:
    if truth is None or tensor is None or truth.shape != tensor.shape or not inputs.is_rounded(tensor):
        return True
    return bool(tensor.isfinite()[truth.isfinite()].all())


# Chooses the scale of the cotangents under float16, as a GradScaler does: gradients neither vanish nor overflow.
#
# The scale of a case follows from its first draw, and a further draw may have larger gradients.

COTANGENT = 4.0  # random cotangents are hardly ever larger
HEADROOM = 2.0**12  # the largest scaled gradient, well inside float16's range of 2^16
LEAST = 2.0**-10
LARGEST = 2.0**16  # no number of float16 is larger
LARGER = 4.0  # how many times as large the gradients of a further draw may be


def scale_for(tensors: Mapping[TensorName, torch.Tensor | None]) -> float:
    """The largest power of two with which the scaled gradients stay within `HEADROOM`, but at least `LEAST`."""
    largest = COTANGENT
    for name, tensor in tensors.items():
        if name.is_gradient and tensor is not None and tensor.numel():
            largest = max(largest, float(tensor.abs().nan_to_num(0.0, posinf=0.0).amax()))
    return max(LEAST, float(2.0 ** math.floor(math.log2(HEADROOM / largest))))


@dataclass(frozen=True)
class Scale:
    """The scale of the cotangents, and the draws for which it will do.

    Attributes:
        factor: a power of two.
        inner: the largest gradient inside the model that float16 may have to hold.
    """

    factor: float
    inner: float

    def fits(self, tensors: Mapping[TensorName, torch.Tensor | None], inner: float) -> bool:
        """Whether the gradients of a further draw stay well inside float16's range, also those inside the model."""
        return inner <= self.inner and self.factor <= LARGER * scale_for(tensors)
