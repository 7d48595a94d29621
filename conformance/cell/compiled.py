"""Builds the callables of compiled and graphed cells, proves that compiled code ran, and counts what compiles again."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from conformance.axes import BROKEN_GRAPH, SYMBOLIC, Prepared
from conformance.errors import NotProvenError
from conformance.evaluate.error_text import without_hints
from conformance.records.cell import Discrepancy, Measure, TensorName
from zoo import internals

MANY_RECOMPILES = 64  # each case may bring a new shape; past the limit torch would run eager without an error


def compile_model(model: Any, *, one_graph: bool | None, patches: dict[str, Any], dynamic: bool = False) -> Prepared:
    """The model under torch.compile with Inductor.

    With `one_graph`, the proof fails if there was a graph break; with None, it notes why. `patches` change Inductor's
    configuration. If `dynamic`, sizes are symbols, so one graph serves all shapes but those that the code or torch (0
    and 1) tells apart. Otherwise each shape has a graph of its own.

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
        counters = internals.dynamo_counters
        breaks = sum(counters["graph_break"].values())
        if breaks and one_graph:
            raise NotProvenError(f"the spec claims one graph, found {breaks} graph breaks: {_break_reasons()}")
        hits, misses = (counters["inductor"][f"fxgraph_cache_{what}"] for what in ("hit", "miss"))
        cache = "miss" if misses else "hit" if hits else "off"
        broken = {BROKEN_GRAPH: _break_reasons()} if breaks and one_graph is None else {}
        return {"cache": cache, **broken, **({SYMBOLIC: calls[SYMBOLIC]} if dynamic else {})}

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


def _break_reasons() -> str:
    """Why Dynamo broke a graph or, if it captured none, why it skipped the call."""
    counters = internals.dynamo_counters
    said = [*(counters["graph_break"] or counters["unimplemented"])]
    return "; ".join(dict.fromkeys(without_hints(text) for text in said)) or "nothing was captured"


def prepare_graphed(model: Any, *, one_graph: bool | None, patches: dict[str, Any]) -> Prepared:
    """The compiled model, with the kernels of each call recorded into CUDA graphs and replayed."""
    made = compile_model(model, one_graph=one_graph, patches={"triton.cudagraphs": True, **patches})

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


# Code that compiles again at every identical call is red.

GATE = "recompile"
FURTHER_CALLS = 2  # a first call may create state that a guard reads, and a second call may still change it
LONGEST_REASON = 160

ResultT = TypeVar("ResultT")


class Recompiles:
    """Watches the identical calls of every case. Until torch.compile is used, it counts nothing and costs nothing."""

    def __init__(self) -> None:
        self._compiled: dict[str, list[int]] = {}  # by case, what each call compiled
        self._reasons: dict[str, str] = {}

    def watch(self, case: str, call: Callable[[], ResultT]) -> ResultT:
        """Make a call from the same state as every other watched call of the case, and count what it compiles."""
        compiled, failures = compilations(), _guard_failures()
        returned = call()
        self._compiled.setdefault(case, []).append(compilations() - compiled)
        if self._compiled[case][-1]:
            self._reasons[case] = _new_reason(failures)
        return returned

    def settle(self, case: str, call: Callable[[], Any]) -> None:
        """Repeat the call while each compiles again, at most `FURTHER_CALLS` times. Most cases need no further call."""
        for _ in range(FURTHER_CALLS):
            if self._compiled[case][-1]:
                self.watch(case, call)

    def discrepancies(self) -> list[Discrepancy]:
        """One for each case whose last identical call compiled again."""
        found = []
        for case, compiled in self._compiled.items():
            if len(compiled) > 1 and compiled[-1]:
                again = [str(number) for number, count in enumerate(compiled, 1) if count and number > 1]
                calls = f"{', '.join(again[:-1])} and {again[-1]}" if len(again) > 1 else again[0]
                text = f"identical calls compiled again {sum(compiled[1:])} times, at calls {calls}"
                measure = Measure(GATE, float("inf"), 0.0, f"{text}{self._reasons[case]}")
                found.append(Discrepancy(case, TensorName("subject", "compiled code"), "absent", "", "", (measure,)))
        return found

    def facts(self) -> dict[str, int]:
        """The numbers of graphs, graph breaks and recompiles; nothing if nothing was compiled."""
        if not any(map(sum, self._compiled.values())):
            return {}
        counters = internals.dynamo_counters
        return {
            "graphs": counters["stats"]["unique_graphs"],
            "graph breaks": sum(counters["graph_break"].values()),
            "recompiles": sum(sum(compiled[1:]) for compiled in self._compiled.values()),
        }


def compilations() -> int:
    """How many times this process has compiled a piece of code with torch.compile."""
    by_frame, by_graph = internals.loaded("compilations"), internals.loaded("dynamo_counters")
    if by_frame is not None:
        return sum(by_frame.values())
    return int(by_graph["stats"]["unique_graphs"]) if by_graph is not None else 0


def _guard_failures() -> dict[Any, int]:
    """The number of guards that failed, by code object."""
    return {code: len(reasons) for code, reasons in (internals.loaded("guard_failures") or {}).items()}


def _new_reason(before: dict[Any, int]) -> str:
    """The first guard that failed since then, for the end of a message; "" if torch tells none."""
    for code, reasons in (internals.loaded("guard_failures") or {}).items():
        new = reasons[before.get(code, 0) :]
        if new:
            told = re.sub(r"^\d+/\d+: ", "", str(new[-1]).partition("\n")[0].partition("(HINT")[0])  # after its number
            return f"; failed guard of {code.co_name}: {' '.join(told.split())[:LONGEST_REASON].rstrip()}"
    return ""
