"""Builds the callables of exported and packaged cells, from programs of `torch.export`, one a signature."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from conformance.axes import DEVICES, Prepared
from conformance.errors import NotProvenError
from conformance.evaluate.weights import fingerprint_of_weights
from zoo import internals


class _Called(nn.Module):
    """A function as a module, because `torch.export` takes nothing else."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def export(model: Any) -> Prepared:
    """The model as exported programs, which are run and differentiated with the model's own parameters and buffers.

    A program is made at the first call of each signature (shapes, dtypes, strides, values that are no tensors), under
    the autocast of that call.

    Args:
        model: the model to export.

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
        graphs = [program.graph for program in programs.values() if isinstance(program, GraphModule)]
        if not graphs or len(graphs) < len(programs):
            raise NotProvenError(f"of {len(programs)} programs {len(graphs)} are graphs, so a call may have run Python")
        ops = sum(node.op == "call_function" for graph in graphs for node in graph.nodes)
        return {"programs": len(graphs), "ops": ops}

    return Prepared(call, proof, model)


def exportable(model: Any) -> nn.Module:
    """The model as a module, which is all that `torch.export` takes.

    Raises:
        TypeError: it is a ScriptModule.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"torch.export takes no {type(model).__name__}; build the eager module, or declare this")
    return model if isinstance(model, nn.Module) else _Called(model)


def signature_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a program is specialised to: shapes, dtypes and strides of tensors, and all other values."""
    leaves, structure = internals.tree_flatten((args, kwargs))
    return str(structure), *map(_describe_leaf, leaves)


def _describe_leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.device, tuple(leaf.shape), leaf.stride()
    return type(leaf), repr(leaf)


# Packages of AOTInductor run forward without Python, for deployment.


class _UnderAutocast(nn.Module):
    """A module that enters autocast itself, because a package does not see the autocast of its caller."""

    def __init__(self, module: nn.Module, dtypes: Mapping[str, torch.dtype]) -> None:
        super().__init__()
        self._module, self._dtypes = module, dtypes

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for device, dtype in self._dtypes.items():
                stack.enter_context(torch.autocast(device, dtype=dtype))
            return self._module(*args, **kwargs)


def package(model: Any) -> Prepared:
    """The model as packages of AOTInductor, which give outputs and no gradients.

    A package is made at the first call of each signature (shapes, dtypes, strides, values that are no tensors), with
    the autocast of that call as a part of it, and with the weights that the model has then. It holds these, so a call
    with other weights makes another package.

    Args:
        model: the model to package.

    Raises:
        RuntimeError: this torch has no `torch._inductor.aoti_compile_and_package`, or cannot load what it gives.
        TypeError: the model is a ScriptModule, which `torch.export` does not take.
    """
    _require()
    module = exportable(model)
    packages: dict[Any, Callable[..., Any]] = {}
    latest: Callable[..., Any] | None = None

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal latest
        dtypes = {device: torch.get_autocast_dtype(device) for device in DEVICES if torch.is_autocast_enabled(device)}
        key = signature_of(args, kwargs), str(dtypes), fingerprint_of_weights(model)
        if key not in packages:
            packages[key] = _package(_program(_UnderAutocast(module, dtypes), args, kwargs))
        latest = packages[key]
        return latest(*args, **kwargs)

    def unchecked_call(*args: Any, **kwargs: Any) -> Any:
        return latest(*args, **kwargs) if latest is not None else call(*args, **kwargs)

    def proof() -> dict[str, Any]:
        if not packages:
            raise NotProvenError("no package was made")
        return {"packages": len(packages)}

    return Prepared(call, proof, model, unchecked_call=unchecked_call)


def _require() -> None:
    try:
        _ = internals.package, internals.load_package
    except internals.MissingError as problem:
        raise RuntimeError(str(problem)) from problem


def _package(program: ExportedProgram) -> Callable[..., Any]:
    """The loaded package of a program."""
    with TemporaryDirectory(prefix="conformance-package-", ignore_cleanup_errors=True) as folder:
        path = str(Path(folder, "model.pt2"))  # read whole when it is loaded
        loaded: Callable[..., Any] = internals.load_package(internals.package(program, package_path=path))
    return loaded


def _program(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """The exported program.

    Raises:
        TypeError: it writes buffers. A package has copies of them, which nobody can read or put back.
        Whatever `torch.export` raises.
    """
    with torch.no_grad():
        program = torch.export.export(module, args, kwargs, strict=False)
        shown = program.run_decompositions().graph_signature  # the first signature leaves out what ops write inside
    written = sorted(name.removeprefix("_module.") for name in shown.buffers_to_mutate.values())
    if written:
        words = f"{len(written)} {'buffer' if len(written) == 1 else 'buffers'}, such as {written[0]}"
        raise TypeError(f"forward writes {words}, and those of a package cannot be read or put back")
    return program
