"""Calls a model without a spec once in eager, and takes what it does as its contract."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import nn

from conformance import axes, errors
from conformance.errors import describe_error, one_line, some
from conformance.evaluate import error_text, evaluation, inputs, weights
from conformance.float64 import graphs, wide
from conformance.own.forms import Forms
from conformance.own.spec import spec_of
from conformance.records.plan import OwnModel
from zoo import Call, Spec, SpecError, internals
from zoo.states import STATES

NARROW = ("bfloat16", "float16")  # the coarsest first
STATE_IN_WORDS = {"random generator": "it draws random numbers, as dropout does; a seed is set before each call"}

STEPS = (-1e-4, 1e-4)  # by which an input is moved, in units of its numbers; of zeros, absolute
NOT_WRITTEN = ("no autograd formula was registered", "is not implemented")  # of a backward that does not exist


def try_model(own: OwnModel, module: ModuleType | None, seed: int) -> tuple[OwnModel, tuple[str, ...]]:
    """The model with the contracts that its first call shows, and these contracts in words.

    The module or file holds it; None if it is saved. Raises UsageError if it cannot be built, or does not take its
    inputs.
    """
    spec, forms = spec_of(own, module)
    try:
        model = wide.prepared_model(spec, seed)
    except errors.UsageError:
        raise
    except Exception as problem:  # the model's own code may raise anything
        raise errors.UsageError(f"{own.name} cannot be built: {describe_error(problem)}") from problem
    found = _call(spec, model, seed)
    constants = _constants(spec, model, seed, found)
    if constants:
        without = _call(replace(spec, constants=tuple(constants)), model, seed)
        if without.refused or not any(without.requires_grad.values()):
            constants = {}  # they are not what is wrong, or nothing else has a gradient
        else:
            found = without
    names = {change.subject for change in found.changes}
    states = tuple(state for state in STATES if state in names)
    tried_on = replace(
        own,
        without=forms.without,
        dtype=_dtype(spec, model, seed),
        differentiable=_has_gradients(found),
        constants=tuple(constants),
        mutates=tuple(sorted(names & {*_inputs(spec, model, seed), *weights.parameters_of(model)})),
        changes_state=states,
    )
    without_gradients = (f"{name} gets no gradient: {why}" for name, why in constants.items())
    return tried_on, (*_in_words(tried_on, forms, model, found.refused), *without_gradients)


def _constants(spec: Spec, model: Any, seed: int, found: evaluation.Evaluation) -> dict[str, str]:
    """Why an input gets no gradient, by its name: forward refuses it if it is moved, or backward has none for it.

    The targets of a loss are often such inputs: binary cross entropy takes none below zero.
    """
    names = _inputs(spec, model, seed)
    floating = [name for name, leaf in names.items() if inputs.is_rounded(leaf)]
    some_refuse_moves = bool(_refusal_of_moves(spec, model, seed, floating))
    constants: dict[str, str] = {}
    for name in floating:
        refusal = _refusal_of_moves(spec, model, seed, [name]) if some_refuse_moves else ""
        if refusal:
            constants[name] = f"moved a little, it raises {refusal}"
        elif found.refused:
            alone = replace(spec, constants=tuple(other for other in names if other != name))
            refusal = _refusal(model, _question(alone, model, seed))
            constants |= {name: f"it raises {refusal}"} if refusal else {}
    return constants


def _refusal_of_moves(spec: Spec, model: Any, seed: int, names: list[str]) -> str:
    """The error that forward raises if these inputs are moved by a little; "" if it raises none."""
    moved = (_question(spec, model, seed, partial(_move, model, names, step)) for step in STEPS)
    return next(filter(None, (_refusal(model, replace(question, differentiate=False)) for question in moved)), "")


def _refusal(model: Any, question: evaluation.Question) -> str:
    """The error that a call raises; "" if it raises none. Raises whatever says that memory is full."""
    try:
        evaluation.evaluate(model, model, question)
    except Exception as problem:  # the model's own code may raise anything
        if error_text.is_out_of_memory(problem):
            raise
        return describe_error(problem)
    return ""


def _move(model: Any, names: list[str], step: float, call: Call) -> Call:
    """The call with some inputs moved by a little."""
    named_leaves = inputs.named_inputs(model, call)
    chosen = {id(named_leaves[name]) for name in names}

    def move(leaf: Any) -> Any:
        return leaf + step * leaf.abs().clamp_min(1.0) if id(leaf) in chosen else leaf

    args, kwargs = internals.tree_map(move, (call.args, dict(call.kwargs)))
    return Call(args, kwargs)


def _dtype(spec: Spec, model: Any, seed: int) -> str:
    """The narrowest dtype of the model's floating parameters; of its inputs, if it has none."""
    parameters = [p for p in weights.parameters_of(model).values() if p.is_floating_point()]
    tensors = parameters or [t for t in _inputs(spec, model, seed).values() if inputs.is_rounded(t)]
    return next((dtype for dtype in NARROW if any(t.dtype == getattr(torch, dtype) for t in tensors)), "float32")


def _has_gradients(found: evaluation.Evaluation) -> bool:
    """Whether gradients are judged. A backward that raises an error is judged too, unless nobody has written it."""
    if found.refused:
        return not any(words in found.refused for words in NOT_WRITTEN)
    return any(found.requires_grad.values())


def _call(spec: Spec, model: Any, seed: int) -> evaluation.Evaluation:
    """What the call gives; `refused` if its gradients raise an error, which the judge then names."""

    def call_once() -> evaluation.Evaluation:
        return evaluation.evaluate(model, model, _question(spec, model, seed), noted=True)

    try:
        with graphs.note_scripts() as scripts:
            calls = [call_once()]
        later = axes.MODES["scripted"].warm_calls if scripts else 0  # a script may do otherwise then
        calls += [call_once() for _ in range(later)]
        return replace(calls[-1], changes=[change for call in calls for change in call.changes])
    except Exception as problem:  # noqa: BLE001 -- the model's own code may raise anything
        try:
            forward = replace(_question(spec, model, seed), differentiate=False)
            found = evaluation.evaluate(model, model, forward, noted=True)
        except SpecError as other:
            raise errors.UsageError(f"{spec.name}: {one_line(other)}") from other
        except Exception as first:
            raise errors.UsageError(f"{spec.name} does not take these inputs: {describe_error(first)}") from first
        found.refused = describe_error(problem)
        return found


def _question(spec: Spec, model: Any, seed: int, convert: Callable[[Call], Call] | None = None) -> evaluation.Question:
    return evaluation.question_of(spec, spec.cases[0], seed, 0, convert or (lambda call: call), model)


def _inputs(spec: Spec, model: Any, seed: int) -> dict[str, Any]:
    return _question(spec, model, seed).names


def _in_words(own: OwnModel, forms: Forms, model: Any, refused: str) -> list[str]:
    """The assumed contracts, a line each."""
    words = ["the dtypes of its outputs are those of eager", *filter(None, [forms.taken])]
    if own.dtype != "float32":
        words.append(f"it is in {own.dtype}, so it is judged without autocast")
    if isinstance(model, nn.Module) and not isinstance(model, torch.fx.GraphModule) and (mode := _training(model)):
        words.append(f"{mode}, as {'asked' if own.training else 'it is'}")
    if not own.differentiable:
        why = f"backward raises {refused}" if refused else "no output of eager requires any"
        words.append(f"it has no gradients, because {why}")
    words += [f"it changes {some(own.mutates, 2)}, as eager does"] * bool(own.mutates)
    for state in own.changes_state:
        words.append(STATE_IN_WORDS.get(state, f"it changes the state {state!r} of the process, as eager does"))
    if without := [mode for mode in forms.without if mode in axes.MODES]:
        words.append(f"it is {forms.kind}, which cannot be {', '.join(without)}")
    return words


def _training(model: nn.Module) -> str:
    """Whether it is in train or eval mode, in words; "" for a frozen ScriptModule, which is in neither."""
    flags = [module.training for module in model.modules() if hasattr(module, "training")]
    words = f"the model is in {'train' if flags[0] else 'eval'} mode" if flags else ""
    return f"{words}, and parts of it are not" if len(set(flags)) > 1 else words
