"""Calls a model without a spec once in eager, and takes what it does as its contract."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from conformance.axes import MODES
from conformance.errors import UsageError
from conformance.one_line import named
from conformance.oracle import evaluation, float64, inputs, weights
from conformance.oracle.evaluation import Evaluation
from conformance.oracle.graphs import specialises
from conformance.records.own_model import OwnModel
from conformance.target.forms import Forms
from conformance.target.spec import spec_of
from zoo.case import Call
from zoo.spec import Spec
from zoo.states import STATES

NARROW = ("bfloat16", "float16")  # the coarsest first
STATE_IN_WORDS = {"random generator": "it draws random numbers, as dropout does; a seed is set before each call"}

NOT_WRITTEN = ("no autograd formula was registered", "is not implemented")  # of a backward that does not exist


def tried(own: OwnModel, module: ModuleType | None, seed: int) -> tuple[OwnModel, tuple[str, ...]]:
    """The model with the contracts that its first call shows, and these contracts in words.

    Args:
        own: the model.
        module: the module or file that holds it; None if it is saved.
        seed: seed of its weights, if it is built anew.

    Raises:
        UsageError: it cannot be built, or does not take its inputs.
    """
    spec, forms = spec_of(own, module)
    try:
        model = float64.prepared_model(spec, seed)
    except UsageError:
        raise
    except Exception as problem:  # the model's own code may raise anything
        raise UsageError(f"{own.name} cannot be built: {named(problem)}") from problem
    found = _called(spec, model, seed)
    names = {change.subject for change in found.changes}
    states = tuple(state for state in STATES if state in names)
    tried_on = replace(
        own,
        without=forms.without,
        dtype=_dtype(spec, model, seed),
        differentiable=_has_gradients(found),
        mutates=tuple(sorted(names & set(_inputs(spec, model, seed)))),
        changes_state=states,
    )
    return tried_on, tuple(_in_words(tried_on, forms, model, found.refused))


def _dtype(spec: Spec, model: Any, seed: int) -> str:
    """The narrowest dtype of the model's floating parameters; of its inputs, if it has none."""
    parameters = [p for p in weights.parameters_of(model).values() if p.is_floating_point()]
    tensors = parameters or [t for t in _inputs(spec, model, seed).values() if inputs.is_rounded(t)]
    return next((dtype for dtype in NARROW if any(t.dtype == getattr(torch, dtype) for t in tensors)), "float32")


def _has_gradients(found: Evaluation) -> bool:
    """Whether gradients are judged. A backward that raises an error is judged too, unless nobody has written it."""
    if found.refused:
        return not any(words in found.refused for words in NOT_WRITTEN)
    return any(found.requires_grad.values())


def _called(spec: Spec, model: Any, seed: int) -> Evaluation:
    """What the call gives; `refused` if its gradients raise an error, which the judge then names."""
    warm = MODES["scripted"].warm_calls if specialises(model) else 0  # TorchScript may do otherwise later
    try:
        calls = [evaluation.evaluate(model, model, _question(spec, model, seed), noted=True) for _ in range(warm + 1)]
        return replace(calls[-1], changes=[change for call in calls for change in call.changes])
    except Exception as problem:  # noqa: BLE001 -- the model's own code may raise anything
        try:
            forward = replace(_question(spec, model, seed), differentiate=False)
            found = evaluation.evaluate(model, model, forward, noted=True)
        except Exception as first:
            raise UsageError(f"{spec.name} does not take these inputs: {named(first)}") from first
        found.refused = named(problem)
        return found


def _question(spec: Spec, model: Any, seed: int) -> evaluation.Question:
    return float64.question_of(spec, spec.cases[0], seed, 0, _same, model)


def _same(call: Call) -> Call:
    return call


def _inputs(spec: Spec, model: Any, seed: int) -> dict[str, Any]:
    return _question(spec, model, seed).names


def _in_words(own: OwnModel, forms: Forms, model: Any, refused: str) -> list[str]:
    """The assumed contracts, a line each."""
    words = ["the dtypes of its outputs are those of eager"]
    if own.dtype != "float32":
        words.append(f"it is in {own.dtype}, so it is judged without autocast")
    if isinstance(model, nn.Module) and not isinstance(model, GraphModule) and (mode := _training(model)):
        words.append(f"{mode}, as {'asked' if own.training else 'it is'}")
    if not own.differentiable:
        why = f"backward raises {refused}" if refused else "no output of eager requires any"
        words.append(f"it has no gradients, because {why}")
    words += [f"it changes {name} in place, as eager does" for name in own.mutates]
    for state in own.changes_state:
        words.append(STATE_IN_WORDS.get(state, f"it changes the state {state!r} of the process, as eager does"))
    if without := [mode for mode in forms.without if mode in MODES]:
        words.append(f"it is {forms.kind}, which cannot be {', '.join(without)}")
    return words


def _training(model: nn.Module) -> str:
    """Whether it is in train or eval mode, in words; "" for a frozen ScriptModule, which is in neither."""
    flags = [module.training for module in model.modules() if hasattr(module, "training")]
    words = f"the model is in {'train' if flags[0] else 'eval'} mode" if flags else ""
    return f"{words}, and parts of it are not" if len(set(flags)) > 1 else words
