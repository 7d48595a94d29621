"""Builds the callable of a mode, and the proof that the mode took effect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from conformance.axes import Mode, Prepared
from conformance.errors import NotProvenError
from zoo.spec import Spec

MANY_RECOMPILES = 64  # a case may bring a new shape; past the limit torch would silently run eager


def prepare(mode: Mode, spec: Spec, build: Callable[..., Any]) -> Prepared:
    """Make the callable.

    Args:
        mode: built in or registered.
        spec: whose claims the proof checks.
        build: returns the model, on representable weights, from the spec's builder or the one given it.
    """
    if mode.prepare is not None:
        model = build()
        made = mode.prepare(model)
        if not isinstance(made, Prepared):
            raise TypeError(f"mode {mode.name!r}: prepare must return a Prepared, got {type(made).__name__}")
        return replace(made, parameters_of=model if made.parameters_of is None else made.parameters_of)
    return BUILDERS[mode.name](spec, build)


def _eager(spec: Spec, build: Callable[..., Any]) -> Prepared:  # noqa: ARG001
    model = build()
    return Prepared(model, dict, model)


def _scripted(spec: Spec, build: Callable[..., Any]) -> Prepared:
    model = build(spec.scripted) if spec.scripted is not None else torch.jit.script(build())

    def proof() -> dict[str, Any]:
        if not isinstance(model, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
            raise NotProvenError(f"scripting gave a {type(model).__name__}, no ScriptModule or ScriptFunction")
        return {}

    return Prepared(model, proof, model)


def _compiled(spec: Spec, build: Callable[..., Any], patches: dict[str, Any] | None = None) -> Prepared:
    import torch._dynamo  # noqa: PLC0415 -- eager and scripted cells must not pay for it
    from torch._dynamo.utils import counters  # noqa: PLC0415
    from torch._inductor.compile_fx import compile_fx  # noqa: PLC0415

    config = torch._dynamo.config  # noqa: SLF001 -- there is no public name for the switches below
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    setattr(config, limit, MANY_RECOMPILES)
    for switch in ("fail_on_recompile_limit_hit", "fail_on_cache_limit_hit"):
        if hasattr(config, switch):
            setattr(config, switch, True)
            break
    calls = {"compiled": 0}

    def backend(graph: Any, examples: Any, **options: Any) -> Callable[..., Any]:
        compiled: Callable[..., Any] = compile_fx(graph, examples, config_patches=patches, **options)  # type: ignore[assignment]

        def counted(*arguments: Any) -> Any:
            calls["compiled"] += 1
            return compiled(*arguments)

        return counted

    model = build()
    inner: Callable[..., Any] = torch.compile(model, backend=backend, dynamic=False)

    def call(*args: Any, **kwargs: Any) -> Any:
        served = calls["compiled"]
        returned = inner(*args, **kwargs)
        if calls["compiled"] == served:
            raise NotProvenError(f"a call ran no compiled graph, it fell back to eager: {_break_reasons()}")
        return returned

    def proof() -> dict[str, Any]:
        breaks = sum(counters["graph_break"].values())
        if breaks and spec.one_graph:
            raise NotProvenError(f"the spec claims one graph, found {breaks} graph breaks: {_break_reasons()}")
        hits, misses = (counters["inductor"][f"fxgraph_cache_{what}"] for what in ("hit", "miss"))
        return {
            "graphs": counters["stats"]["unique_graphs"],
            "graph breaks": breaks,
            "cache": "miss" if misses else "hit" if hits else "off",
        }

    return Prepared(call, proof, model, unchecked_call=inner)


def _graphed(spec: Spec, build: Callable[..., Any]) -> Prepared:
    """Compiled, with the kernels of each call recorded into CUDA graphs and replayed."""
    from torch._dynamo.utils import counters  # noqa: PLC0415

    made = _compiled(spec, build, {"triton.cudagraphs": True})

    def in_a_step(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            torch.compiler.cudagraph_mark_step_begin()  # what earlier calls returned may be overwritten from here on
            return inner(*args, **kwargs)

        return call

    def proof() -> dict[str, Any]:
        left_out, recorded = counters["inductor"]["cudagraph_skips"], _recorded_graphs()
        if left_out or not recorded:
            raise NotProvenError(f"{recorded} CUDA graphs were recorded, {left_out} compiled graphs were left without")
        return {**made.proof(), "CUDA graphs": recorded}

    return replace(made, call=in_a_step(made.call), unchecked_call=in_a_step(made.timed_call), proof=proof)


def _recorded_graphs() -> int:
    """CUDA graphs in the trees that hold one path for every order in which they were called."""
    from torch._inductor import cudagraph_trees  # noqa: PLC0415

    if not torch.cuda.is_initialized():
        return 0
    manager = cudagraph_trees.get_manager(torch.cuda.current_device(), create_if_none_exists=False)
    if manager is None:
        return 0
    pending = [node for nodes in manager.roots.values() for node in nodes]
    recorded = 0
    while pending:
        recorded += 1
        pending += [child for children in pending.pop().children.values() for child in children]
    return recorded


def _break_reasons() -> str:
    from torch._dynamo.utils import counters  # noqa: PLC0415

    reasons = "; ".join(" ".join(reason.split()) for reason in counters["graph_break"])
    return reasons[:200] or "nothing was captured"


BUILDERS: dict[str, Callable[[Spec, Callable[..., Any]], Prepared]] = {
    "eager": _eager,
    "scripted": _scripted,
    "compiled": _compiled,
    "graphed": _graphed,
}
