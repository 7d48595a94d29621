"""Builds the callable of a mode, and the proof that the mode took effect."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import fx, nn

from conformance.axes import DEVICES, NOT_PROVEN, Mode, Prepared
from conformance.cell.compiled import compile_model, prepare_graphed
from conformance.errors import NotProvenError
from conformance.evaluate import process_state, weights
from conformance.float64.copies import adopt_state
from zoo import Candidate, Spec, SpecError, internals

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
        made = mode.prepare(model)
        if not isinstance(made, Prepared):
            if not callable(made):
                wanted = f"prepare must return a Prepared or a callable, got {type(made).__name__}"
                raise TypeError(f"mode {mode.name!r}: {wanted}")
            made = Prepared(made, dict)  # nothing proves that it took effect
        owner = model if made.parameters_of is None else made.parameters_of
        return replace(made, parameters_of=owner, proof=lambda: _facts_of(mode, made) or {NOT_PROVEN: True})
    for candidate in spec.candidates:
        if candidate.name == mode.name:
            return replace_model(spec, candidate, build())
    return BUILDERS[mode.name](spec, build)


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
                raise RuntimeError("torch.export makes no program inside torch.vmap, and there is none for this call")
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
        raise TypeError(f"torch.export takes no {type(model).__name__}; build the eager module, or declare this")
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
        raise RuntimeError(str(problem)) from problem
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
        raise TypeError(f"forward writes {words}, and those of a package cannot be read or put back")
    return program
