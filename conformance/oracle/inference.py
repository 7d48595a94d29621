"""Finds what a model returns without gradients, where that is another formula than with them.

`nn.TransformerEncoder` takes a path of its own without gradients, which leaves zeros where the usual one does not. The
oracle runs under a torch-function mode, where torch never takes that path. So the float64 model is called once more,
plainly. Where the model itself asks whether gradients are on, the formula with gradients stays the truth.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from conformance.evaluate import containers, inputs, process_state
from conformance.evaluate.error_text import is_out_of_memory
from conformance.evaluate.evaluation import Evaluation, Question
from conformance.float64.wide import Oracle
from conformance.gates import distance
from conformance.gates.budget import TensorReference
from conformance.records.cell import TensorName

FAST = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)
ANOTHER_FORMULA = 2.0**-12  # of the size of an output; what a model rounds to float32 inside changes it by less

References = Mapping[TensorName, TensorReference | None]


def inferred(
    oracle: Oracle, question: Question, found: Evaluation, known: References, autocast: str
) -> dict[TensorName, TensorReference]:
    """The references of the outputs that torch's fast path changes; empty if the model does not run so in float64.

    Their budgets are those of the formula with gradients, whose roundings can be perturbed.

    Args:
        oracle: the oracle.
        question: the question of a case.
        found: what the oracle gave.
        known: the references of that.
        autocast: the dtype of the autocast under which the model is called, for a model may take another path there.
            It leaves float64 as it is. "": none.
    """
    if question.fit is not None or oracle.draws or not has_fast_path(oracle.model):
        return {}
    others = {}
    for leaf, y in _plain_outputs(oracle, question, autocast).items():
        name = TensorName("output", leaf)
        formula, reference = found.tensors.get(name), known.get(name)
        if y is not None and formula is not None and reference is not None and _differs(y, formula):
            others[name] = replace(reference, oracle=distance.OracleTensor(y), exact=False, redraws=None)
    if others:
        enabled = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            usual = _plain_outputs(oracle, question, autocast)
        finally:
            torch.backends.mha.set_fastpath_enabled(enabled)
        others = {n: r for n, r in others.items() if n.leaf in usual and not _differs(usual[n.leaf], found.tensors[n])}
    return others


def has_fast_path(model: Any) -> bool:
    """Whether a part of a model may take a path of its own without gradients."""
    return isinstance(model, nn.Module) and any(isinstance(part, FAST) for part in model.modules())


def _plain_outputs(oracle: Oracle, question: Question, autocast: str) -> dict[str, torch.Tensor | None]:
    """The outputs of the float64 model without gradients, and with no mode of ours; empty if it raises an error."""
    oracle.reset()
    inputs.restore(question.call, question.pristine)
    context = torch.autocast("cpu", getattr(torch, autocast)) if autocast else contextlib.nullcontext()
    try:
        with process_state.keep_switches(), torch.no_grad(), context:
            torch.set_default_dtype(torch.float64)
            found = containers.tensors_of(inputs.invoke(oracle.model, inputs.fresh(question.call)))
            return {leaf: t if t is None else t.clone() for leaf, t in found.items()}
    except Exception as problem:  # the model's own code may raise anything
        if is_out_of_memory(problem):
            raise
        return {}
    finally:
        oracle.reset()


def _differs(y: torch.Tensor | None, formula: torch.Tensor | None) -> bool:
    """Whether a tensor of the same kind has other finite numbers."""
    if y is None or formula is None or y.shape != formula.shape or y.dtype != formula.dtype or not inputs.is_rounded(y):
        return False
    if bool((formula.isfinite() & ~y.isfinite()).any()):
        return False  # nobody asks for these
    return bool((y - formula).norm() > ANOTHER_FORMULA * formula.norm())
