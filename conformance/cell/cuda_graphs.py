"""Builds the callable of graphed cells, and the proof that all compiled graphs were recorded as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from conformance.axes import Prepared
from conformance.cell.compiled import compile_model
from conformance.errors import NotProvenError
from zoo import internals


def prepare_graphed(model: Any, *, one_graph: bool, patches: dict[str, Any] | None = None) -> Prepared:
    """The compiled model, with the kernels of each call recorded into CUDA graphs and replayed.

    Args:
        model: the model to compile.
        one_graph: the proof fails if there was a graph break.
        patches: options of Inductor's configuration to change.
    """
    made = compile_model(model, one_graph=one_graph, patches={"triton.cudagraphs": True, **(patches or {})})

    def in_a_step(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            torch.compiler.cudagraph_mark_step_begin()  # from here on, the results of earlier calls may be overwritten
            return inner(*args, **kwargs)

        return call

    def proof() -> dict[str, Any]:
        left_out, recorded = internals.dynamo_counters["inductor"]["cudagraph_skips"], _recorded_graphs()
        if left_out or not recorded:
            raise NotProvenError(f"{recorded} CUDA graphs were recorded, {left_out} compiled graphs were left without")
        return {**made.proof(), "CUDA graphs": recorded}

    call, timed = in_a_step(made.call), in_a_step(made.timed_call)
    return replace(made, call=call, unchecked_call=timed, proof=proof, around=None, reuses_outputs=True)


def _recorded_graphs() -> int:
    """The number of recorded CUDA graphs. torch keeps them in trees, with one path for each order of the calls."""
    if not torch.cuda.is_initialized():
        return 0
    manager = internals.graphs_of_device(torch.cuda.current_device(), create_if_none_exists=False)
    if manager is None:
        return 0
    pending = [node for nodes in manager.roots.values() for node in nodes]
    recorded = 0
    while pending:
        recorded += 1
        pending += [child for children in pending.pop().children.values() for child in children]
    return recorded
