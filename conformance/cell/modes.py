"""Builds the callable of a mode, and the proof that the mode took effect; counts what compiles again."""

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
from torch import fx, nn

from conformance.axes import BROKEN_GRAPH, DEVICES, NOT_PROVEN, SYMBOLIC, Mode, Prepared
from conformance.errors import NotProvenError, call_theirs, of_model
from conformance.evaluate import error_text, process_state, weights
from conformance.float64.copies import adopt_state
from conformance.records.cell import Discrepancy, Measure, TensorName
from zoo import Candidate, Spec, SpecError, internals

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
        raise _refused("torch.compile captures", model)
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


def _refused(what: str, model: Any) -> TypeError:
    return of_model(TypeError(f"{what} no {type(model).__name__}; build the eager module, or declare this"))


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
    return "; ".join(dict.fromkeys(error_text.without_hints(text) for text in said)) or "nothing was captured"


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

    def facts(self) -> dict[str, float]:
        """The numbers of graphs, graph breaks and recompiles, and the seconds; nothing if nothing was compiled."""
        if not any(map(sum, self._compiled.values())):
            return {}
        counters = internals.dynamo_counters
        return {
            "graphs": counters["stats"]["unique_graphs"],
            "graph breaks": sum(counters["graph_break"].values()),
            "recompiles": sum(sum(compiled[1:]) for compiled in self._compiled.values()),
            **_compile_seconds(),
        }


def compilations() -> int:
    """How many times this process has compiled a piece of code with torch.compile."""
    by_frame, by_graph = internals.loaded("compilations"), internals.loaded("dynamo_counters")
    if by_frame is not None:
        return sum(by_frame.values())
    return int(by_graph["stats"]["unique_graphs"]) if by_graph is not None else 0


def _compile_seconds() -> dict[str, float]:
    """Seconds that Dynamo traced, and that what it calls compiled, in this process; nothing if torch tells none."""
    spent = internals.loaded("compile_seconds") or {}
    traced, forward, backward = (
        sum(sum(times) for name, times in spent.items() if name.endswith(part))
        for part in ("compile_inner", "call_user_compiler", "bw_compiler")
    )
    if not traced:
        return {}
    return {"seconds in Dynamo": round(traced - forward, 2), "seconds in its backend": round(forward + backward, 2)}


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


# Builds the callables of the other modes, each with its proof.

Build = Callable[..., Any]


def prepare(mode: Mode, spec: Spec, build: Build) -> Prepared:
    """Make the callable of a mode: a built-in one, a registered one, or a candidate of the spec.

    The proof checks the claims of the spec. `build` returns the model on representable weights, from the spec's builder
    or from the one that it is given.

    Raises:
        TypeError: a registered mode returns neither a `Prepared` nor a callable.
        Whatever the mode or the model raises.
    """
    if mode.prepare is not None:
        model = build()
        made = call_theirs(mode.prepare, model)
        if not isinstance(made, Prepared):
            if not callable(made):
                wanted = f"prepare must return a Prepared or a callable, got {type(made).__name__}"
                raise of_model(TypeError(f"mode {mode.name!r}: {wanted}"))
            made = Prepared(made, dict)  # nothing proves that it took effect
        owner = model if made.parameters_of is None else made.parameters_of
        return replace(made, parameters_of=owner, proof=lambda: _facts_of(mode, made) or {NOT_PROVEN: True})
    for candidate in spec.candidates:
        if candidate.name == mode.name:
            return replace_model(spec, candidate, build())
    return BUILDERS[mode.name](spec, build)


def _facts_of(mode: Mode, made: Prepared) -> dict[str, Any]:
    facts = call_theirs(made.proof)
    if not isinstance(facts, Mapping):
        raise of_model(
            TypeError(f"mode {mode.name!r}: proof must return a mapping of facts, got {type(facts).__name__}")
        )
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

    Raises:
        SpecError: parameters or buffers do not have the names, shapes and dtypes of the model's.
        Whatever the candidate raises.
    """
    made = call_theirs(candidate.build)
    where = f"candidate {candidate.name!r} of {spec.name}"
    if not callable(made):
        raise SpecError(f"{where}: build returned a {type(made).__name__}, which cannot be called")
    adopt_state(made, model, where)
    return Prepared(made, dict, made)


# Exported cells run programs of `torch.export`, one a signature.


def export(model: Any) -> Prepared:
    """The model as exported programs, which are run and differentiated with the model's own parameters and buffers.

    A program is made at the first call of each signature (shapes, dtypes, strides, values that are no tensors), under
    the autocast of that call.

    Raises:
        TypeError: the model is a ScriptModule, which `torch.export` does not take.
    """
    module = exportable(model)
    programs: dict[Any, nn.Module] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        signature = signature_of(args, kwargs)
        if signature not in programs:
            if internals.current_transform() is not None:
                raise of_model(
                    RuntimeError("torch.export makes no program inside torch.vmap, and there is none for this call")
                )
            programs[signature] = torch.export.export(module, args, kwargs, strict=False).module()
        return programs[signature](*args, **kwargs)

    def proof() -> dict[str, Any]:
        graphs = [program.graph for program in programs.values() if isinstance(program, fx.GraphModule)]
        if not graphs or len(graphs) < len(programs):
            raise NotProvenError(f"of {len(programs)} programs {len(graphs)} are graphs, so a call may have run Python")
        ops = sum(node.op == "call_function" for graph in graphs for node in graph.nodes)
        return {"programs": len(graphs), "ops": ops}

    return Prepared(call, proof, model)


def exportable(model: Any) -> nn.Module:
    """The model as a module, which is all that `torch.export` takes; a ScriptModule is refused by a TypeError."""
    if isinstance(model, torch.jit.ScriptModule):
        raise _refused("torch.export takes", model)
    return model if isinstance(model, nn.Module) else _Wrapped(model, {})


def signature_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a program is specialised to: shapes, dtypes and strides of tensors, and all other values."""
    leaves, structure = internals.tree_flatten((args, kwargs))
    return str(structure), *map(_describe_leaf, leaves)


def _describe_leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.device, tuple(leaf.shape), leaf.stride()
    return type(leaf), repr(leaf)


# Packages of AOTInductor run forward without Python, for deployment.


class _Wrapped(nn.Module):
    """A function as a module, which enters autocast itself: a package does not see the autocast of its caller."""

    def __init__(self, function: Callable[..., Any], dtypes: Mapping[str, torch.dtype]) -> None:
        super().__init__()
        self._function, self._dtypes = function, dtypes

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for device, dtype in self._dtypes.items():
                stack.enter_context(torch.autocast(device, dtype=dtype))
            return self._function(*args, **kwargs)


def package(model: Any) -> Prepared:
    """The model as packages of AOTInductor, which give outputs and no gradients.

    A package is made at the first call of each signature (shapes, dtypes, strides, values that are no tensors), with
    the autocast of that call as a part of it, and with the weights that the model has then. It holds these, so a call
    with other weights makes another package.

    Raises:
        RuntimeError: this torch has no `torch._inductor.aoti_compile_and_package`, or cannot load what it gives.
        TypeError: the model is a ScriptModule, which `torch.export` does not take.
    """
    try:
        _ = internals.package, internals.load_package
    except internals.MissingError as problem:
        raise of_model(RuntimeError(str(problem))) from problem
    module = exportable(model)
    packages: dict[Any, Callable[..., Any]] = {}
    latest: Callable[..., Any] | None = None

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal latest
        dtypes = {device: torch.get_autocast_dtype(device) for device in DEVICES if torch.is_autocast_enabled(device)}
        key = signature_of(args, kwargs), str(dtypes), weights.fingerprint_of_weights(model)
        if key not in packages:
            packages[key] = _package(_program(_Wrapped(module, dtypes), args, kwargs))
        latest = packages[key]
        return latest(*args, **kwargs)

    def unchecked_call(*args: Any, **kwargs: Any) -> Any:
        return latest(*args, **kwargs) if latest is not None else call(*args, **kwargs)

    def proof() -> dict[str, Any]:
        if not packages:
            raise NotProvenError("no package was made")
        return {"packages": len(packages)}

    return Prepared(call, proof, model, unchecked_call=unchecked_call)


def _package(program: torch.export.ExportedProgram) -> Callable[..., Any]:
    """The loaded package of a program."""
    with TemporaryDirectory(prefix="conformance-package-", ignore_cleanup_errors=True) as folder:
        path = str(Path(folder, "model.pt2"))  # read whole when it is loaded
        loaded: Callable[..., Any] = internals.load_package(internals.package(program, package_path=path))
    return loaded


def _program(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    """The exported program.

    Raises:
        TypeError: it writes buffers. A package has copies of them, which nobody can read or put back.
        Whatever `torch.export` raises.
    """
    with torch.no_grad():
        program = torch.export.export(module, args, kwargs, strict=False)
        shown = program.run_decompositions().graph_signature  # the first signature leaves out what ops write inside
    written = sorted(name.removeprefix("_function.") for name in shown.buffers_to_mutate.values())
    if written:
        words = f"{len(written)} {'buffer' if len(written) == 1 else 'buffers'}, such as {written[0]}"
        raise of_model(TypeError(f"forward writes {words}, and those of a package cannot be read or put back"))
    return program
