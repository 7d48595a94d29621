"""Lowers the scale of the cotangents until no gradient inside a model overflows float16, as a GradScaler does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from conformance.axes import PRECISIONS
from conformance.oracle import backward, evaluation, inputs, weights
from conformance.oracle.custom_ops import OpMode, Unwatched
from conformance.oracle.evaluation import Evaluation
from conformance.oracle.float64 import Oracle, prepared_model
from conformance.oracle.nested import leaves_of
from conformance.oracle.questions import question_of
from conformance.oracle.scaling import INNER, LEAST, Scale, scale_for
from zoo.case import Case

AMP_FP16 = PRECISIONS["amp_fp16"]
STEP = 4.0  # by which the scale is lowered at a time


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
    overflows = scale * inner > INNER and oracle.spec.fit is None
    return Scale(_lowered(oracle, case, picks, found, scale) if overflows else scale, inner)


def _lowered(oracle: Oracle, case: Case, picks: inputs.Picks, found: Evaluation, scale: float) -> float:
    """The scale with which eager's gradients are finite; as it was if none does it, or if eager raises an error."""
    model = prepared_model(oracle.spec, oracle.seed)
    question = question_of(oracle.spec, case, oracle.seed, picks, lambda call: call, model)
    question = replace(question, second=False, stacked=None, forward_mode=False, precision=AMP_FP16)
    state, lower = weights.state_of(model), scale
    while lower >= LEAST:
        try:
            tried = evaluation.evaluate(model, model, replace(question, scale=lower))
        except Exception:  # noqa: BLE001 -- the cells will tell it
            return scale
        if all(_as_finite(tensor, tried.tensors.get(name)) for name, tensor in found.tensors.items()):
            return lower if lower == scale else max(LEAST, lower / STEP)  # room for further draws
        weights.reset(model, state)
        lower /= STEP
    return scale


def _as_finite(truth: torch.Tensor | None, tensor: torch.Tensor | None) -> bool:
    if truth is None or tensor is None or truth.shape != tensor.shape or not inputs.is_rounded(tensor):
        return True
    return bool(tensor.isfinite()[truth.isfinite()].all())
