"""Builds the callable of packaged cells: packages of AOTInductor, which run forward without Python, for deployment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from conformance.axes import DEVICES, Prepared
from conformance.cell.exported import exportable, signature_of
from conformance.errors import NotProvenError
from conformance.evaluate.fingerprint import of_weights
from zoo import internals


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
        key = signature_of(args, kwargs), str(dtypes), of_weights(model)
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
