"""Opens a saved model: a TorchScript archive, an exported program, or whatever `torch.save` has pickled."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from conformance.errors import UsageError
from conformance.one_line import describe_error

SCRIPTED, EXPORTED = ("constants.pkl",), ("serialized_exported_program.json", "archive_format")


def builder(path: Path) -> Callable[[], Any]:
    """A function that reads the file anew at every call, so that no call sees what another has changed.

    Raises:
        UsageError: there is no such file, or it holds no model; the message says what it holds.
    """
    if not path.is_file():
        raise UsageError(f"no file {path}")
    for kind, names in ((_load_script, SCRIPTED), (_load_exported, EXPORTED)):
        if _members(path).intersection(names):
            return lambda: _read(kind, path)
    return lambda: _read(_load_pickle, path)


def unpickle(path: Path) -> Any:
    """What `torch.save` has written, on the CPU. It may run any code, as an import of the person's own module does."""
    return torch.load(path, map_location="cpu", weights_only=False)


def _members(path: Path) -> set[str]:
    """The last parts of the names in a zip archive; none if it is no archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.rpartition("/")[2] for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError):
        return set()


def _read(kind: Callable[[Path], Any], path: Path) -> Any:
    try:
        return kind(path)
    except UsageError:
        raise
    except (ImportError, AttributeError) as problem:
        raise UsageError(
            f"{path} needs code that another process cannot import: {describe_error(problem)}; put the model into a "
            "module that every process can import, such as one of your package"
        ) from problem
    except Exception as problem:  # the file may hold anything
        raise UsageError(f"{path} is no model that this torch can read: {describe_error(problem)}") from problem


def _load_script(path: Path) -> Any:
    return torch.jit.load(str(path), map_location="cpu")


def _load_exported(path: Path) -> Any:
    return torch.export.load(str(path))


def _load_pickle(path: Path) -> Any:
    found = unpickle(path)
    if isinstance(found, Mapping) and found and all(isinstance(value, torch.Tensor) for value in found.values()):
        raise UsageError(f"{path} holds the weights of a model ({len(found)} tensors) and no model; name its class")
    if not callable(found):
        raise UsageError(f"{path} holds a {type(found).__name__}, no model")
    return found
