"""Builds the callable of compiled cells, and the proof that every call ran compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.axes import SYMBOLIC, Prepared
from conformance.errors import NotProvenError
from conformance.evaluate.error_text import without_hints
from zoo import internals

MANY_RECOMPILES = 64  # each case may bring a new shape; past the limit torch would run eager without an error


def compile_model(
    model: Any, *, one_graph: bool, patches: dict[str, Any] | None = None, dynamic: bool = False
) -> Prepared:
    """The model under torch.compile with Inductor.

    Args:
        model: the model to compile.
        one_graph: the proof fails if there was a graph break.
        patches: options of Inductor's configuration to change.
        dynamic: sizes are symbols, so one graph serves all shapes but those that the code or torch (0 and 1) tells
            apart. Otherwise each shape has a graph of its own.

    Raises:
        TypeError: the model is a ScriptModule, which torch.compile runs as it is, or refuses.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"torch.compile captures no {type(model).__name__}; build the eager module, or declare this")
    _refuse_too_many_recompiles()
    calls = {"compiled": 0, SYMBOLIC: 0}

    def backend(graph: Any, examples: Any, **options: Any) -> Callable[..., Any]:
        calls[SYMBOLIC] += any(map(_is_symbolic, examples))
        kernel: Callable[..., Any] = internals.compile_fx(graph, examples, config_patches=patches, **options)

        def counted(*arguments: Any) -> Any:
            calls["compiled"] += 1
            return kernel(*arguments)

        return counted

    def checked(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before = calls["compiled"]
            returned = inner(*args, **kwargs)
            if calls["compiled"] == before:
                raise NotProvenError(f"a call ran no compiled graph, it fell back to eager: {_break_reasons()}")
            return returned

        return call

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        return _without_counting_breaks(checked(torch.compile(function, backend=backend, dynamic=dynamic)))

    def proof() -> dict[str, Any]:
        return _proof(one_graph=one_graph) | ({SYMBOLIC: calls[SYMBOLIC]} if dynamic else {})

    inner: Callable[..., Any] = torch.compile(model, backend=backend, dynamic=dynamic)
    return Prepared(checked(inner), proof, model, unchecked_call=inner, around=around)


def _is_symbolic(example: Any) -> bool:
    sizes = example.shape if isinstance(example, torch.Tensor) else (example,)
    return any(isinstance(size, torch.SymInt) for size in sizes)


def _without_counting_breaks(call: Callable[..., Any]) -> Callable[..., Any]:
    """The callable, whose graph breaks do not count: the claim `one_graph` is about the model's own calls."""
    counters = internals.dynamo_counters

    def uncounted(*args: Any, **kwargs: Any) -> Any:
        before = counters["graph_break"].copy()
        try:
            return call(*args, **kwargs)
        finally:
            counters["graph_break"].clear()
            counters["graph_break"].update(before)

    return uncounted


def _refuse_too_many_recompiles() -> None:
    """Raise an error at the recompile limit, where torch would run eager."""
    config = internals.dynamo_config
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    setattr(config, limit, MANY_RECOMPILES)
    for switch in ("fail_on_recompile_limit_hit", "fail_on_cache_limit_hit"):
        if hasattr(config, switch):
            setattr(config, switch, True)
            break


def _proof(*, one_graph: bool) -> dict[str, Any]:
    counters = internals.dynamo_counters
    breaks = sum(counters["graph_break"].values())
    if breaks and one_graph:
        raise NotProvenError(f"the spec claims one graph, found {breaks} graph breaks: {_break_reasons()}")
    hits, misses = (counters["inductor"][f"fxgraph_cache_{what}"] for what in ("hit", "miss"))
    return {
        "graphs": counters["stats"]["unique_graphs"],
        "graph breaks": breaks,
        "cache": "miss" if misses else "hit" if hits else "off",
    }


def _break_reasons() -> str:
    """Why Dynamo broke a graph or, if it captured none, why it skipped the call."""
    counters = internals.dynamo_counters
    said = [*(counters["graph_break"] or counters["unimplemented"])]
    return "; ".join(dict.fromkeys(without_hints(text) for text in said)) or "nothing was captured"
