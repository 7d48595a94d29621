"""Builds the callable of a mode, and the proof that the mode took effect."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from conformance.axes import NOT_PROVEN, Mode, Prepared
from conformance.cell.compiled import compile_model, prepare_graphed
from conformance.cell.exported import export, package
from conformance.errors import NotProvenError
from conformance.evaluate import process_state
from conformance.float64.copies import adopt_state
from zoo.candidate import Candidate
from zoo.case import SpecError
from zoo.spec import Spec

Build = Callable[..., Any]


def prepare(mode: Mode, spec: Spec, build: Build) -> Prepared:
    """Make the callable of a mode.

    Args:
        mode: a built-in mode, a registered one, or a candidate of the spec.
        spec: the spec of the model; the proof checks its claims.
        build: returns the model on representable weights, from the spec's builder or from the one that it is given.

    Raises:
        TypeError: a registered mode returns neither a `Prepared` nor a callable.
        Whatever the mode or the model raises.
    """
    if mode.prepare is not None:
        model = build()
        made = mode.prepare(model)
        if not isinstance(made, Prepared):
            made = _unproven(mode, made)
        owner = model if made.parameters_of is None else made.parameters_of
        return replace(made, parameters_of=owner, proof=lambda: _facts_of(mode, made) or {NOT_PROVEN: True})
    for candidate in spec.candidates:
        if candidate.name == mode.name:
            return replace_model(spec, candidate, build())
    return BUILDERS[mode.name](spec, build)


def _unproven(mode: Mode, made: Any) -> Prepared:
    """A plain callable as it is: nothing proves that it took effect."""
    if not callable(made):
        raise TypeError(f"mode {mode.name!r}: prepare must return a Prepared or a callable, got {type(made).__name__}")
    return Prepared(made, dict)


def _facts_of(mode: Mode, made: Prepared) -> dict[str, Any]:
    facts = made.proof()
    if not isinstance(facts, Mapping):
        raise TypeError(f"mode {mode.name!r}: proof must return a mapping of facts, got {type(facts).__name__}")
    return dict(facts)


def _eager(model: Any) -> Prepared:
    return Prepared(model, dict, model)


def _script(spec: Spec, build: Build) -> Prepared:
    model = build(spec.scripted) if spec.scripted is not None else torch.jit.script(build())

    def proof() -> dict[str, Any]:
        if not isinstance(model, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
            raise NotProvenError(f"scripting gave a {type(model).__name__}, no ScriptModule or ScriptFunction")
        return {}

    return Prepared(model, proof, model)


def _options(spec: Spec) -> dict[str, Any]:
    """How a model is compiled; one that draws random numbers, so that Inductor draws them as eager does."""
    patches = {"fallback_random": True} if process_state.DRAWS in spec.changes_state else {}
    return {"one_graph": spec.one_graph, "patches": patches}


BUILDERS: dict[str, Callable[[Spec, Build], Prepared]] = {
    "eager": lambda _, build: _eager(build()),
    "scripted": _script,
    "compiled": lambda spec, build: compile_model(build(), **_options(spec)),
    "compiled_dynamic": lambda spec, build: compile_model(build(), **_options(spec), dynamic=True),
    "exported": lambda _, build: export(build()),
    "graphed": lambda spec, build: prepare_graphed(build(), **_options(spec)),
    "packaged": lambda _, build: package(build()),
}


# Builds the callable of a candidate: the replacement of a model, on the weights of the model.


def replace_model(spec: Spec, candidate: Candidate, model: Any) -> Prepared:
    """The candidate with the weights, buffers, training modes and frozen parameters of the model.

    Args:
        spec: the spec of the model.
        candidate: one of its candidates.
        model: the model on representable weights.

    Raises:
        SpecError: parameters or buffers do not have the names, shapes and dtypes of the model's.
        Whatever the candidate raises.
    """
    made = candidate.build()
    where = f"candidate {candidate.name!r} of {spec.name}"
    if not callable(made):
        raise SpecError(f"{where}: build returned a {type(made).__name__}, which cannot be called")
    adopt_state(made, model, where)
    return Prepared(made, dict, made)
