"""Asks the trusted implementation of a model which dtypes its outputs have in a cell."""

from __future__ import annotations

from dataclasses import replace

import torch

from conformance.evaluate import casting, evaluation
from conformance.evaluate.evaluation import Question
from conformance.float64 import wide
from zoo.spec import Spec


def output_dtypes(spec: Spec, seed: int, question: Question) -> dict[str, torch.dtype]:
    """The dtypes of a trusted implementation's outputs, eager at the precision of a question, by output name.

    Args:
        spec: the spec; without a trusted implementation there are no dtypes.
        seed: seed of the weights.
        question: the question of a case, on the device of the cell. Its inputs are restored before the run.

    Raises:
        Whatever the trusted implementation raises.
    """
    if not spec.trusts_model:
        return {}
    trusted = wide.prepared_reference(spec, seed, wide.prepared_model(spec, seed))
    trusted = casting.model_in(trusted, casting.dtype_of(spec, question.precision), question.device)
    found = evaluation.evaluate(trusted, trusted, replace(question, differentiate=False))
    return {name: t.dtype for name, t in found.tensors.items() if t is not None and name in found.requires_grad}
