"""Opens a saved model: a TorchScript archive, an exported program, or whatever `torch.save` has pickled.

A pickle runs what it likes. So may an exported program: torch unpickles parts of it, and evaluates its expressions.
"""

import ast
import json
import os
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from conformance.errors import UsageError, describe_error, one_line, some

LONGEST_KEY = 60  # characters that a message shows
SCRIPTED, EXPORTED = ("constants.pkl",), ("serialized_exported_program.json", "archive_format")
PICKLED, PICKLE_BEGINS = ("data.pkl",), b"\x80"
RUNS = "may run any code when it is opened"
TRUST = "if you trust those who made it, say so: --trust, or trust=True"
ASKED = re.compile(r"GLOBAL ([\w.]{1,200})")  # by a pickle, in the words of torch


def builder(path: Path, *, trusted: bool) -> Callable[[], Any]:
    """A function that reads the file anew at every call, so that no call sees what another has changed.

    Raises UsageError if there is no such file, it holds no model, or it may run code when it is opened and is not
    trusted; the message says what it holds.
    """
    if path.suffix == ".onnx":
        raise UsageError(f"{path}: a model in ONNX cannot be judged; give the PyTorch module that it was exported from")
    if not path.is_file():
        raise UsageError(f"no file {path}")
    load = _loader(path, trusted=trusted)
    return lambda: _read(load, str(path))


def _loader(path: Path, *, trusted: bool) -> Callable[[str], Any]:
    """What opens a file. Of one that is not trusted it runs no Python, whatever the file holds and looks like."""
    held = _members(path)
    if held.intersection(SCRIPTED):
        return partial(torch.jit.load, map_location="cpu")  # TorchScript reads no pickle but its own
    if not trusted:
        return _load_program if held.intersection(EXPORTED) else _load_plain
    return torch.export.load if held.intersection(EXPORTED) else _load_pickle


def unpickle(path: str | Path) -> Any:
    """What `torch.save` has written, on the CPU. It may run any code, as an import of the person's own module does."""
    return torch.load(path, map_location="cpu", weights_only=False)


def _members(path: Path) -> set[str]:
    """The last parts of the names in a zip archive; none if it is no archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.rpartition("/")[2] for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError):
        return set()


def _read(load: Callable[[str], Any], path: str) -> Any:
    try:
        return load(path)
    except UsageError:
        raise
    except (ImportError, AttributeError) as problem:
        raise UsageError(
            f"{path} needs code that another process cannot import: {describe_error(problem)}; put the model into a "
            "module that every process can import, such as one of your package"
        ) from problem
    except Exception as problem:  # the file may hold anything
        raise UsageError(f"{path} is no model that this torch can read: {describe_error(problem)}") from problem


def _load_plain(path: str) -> Any:
    """Read a file of `torch.save` as far as it runs no code; a model always does."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as problem:
        with Path(path).open("rb") as file:
            is_pickle = file.read(1) == PICKLE_BEGINS or _members(Path(path)).intersection(PICKLED)
        if not is_pickle:
            raise UsageError(f"{path} is no model that this torch can read: it is no file of torch.save") from problem
        asked = _globals(path) or ASKED.findall(str(problem))[:1]
        names = f": it asks for {some([one_line(name, LONGEST_KEY) for name in asked], 3)}" if asked else ""
        raise UsageError(f"{path} {RUNS}{names}; {TRUST}") from problem
    return _as_model(found, path)


def _globals(path: str) -> list[str]:
    """The names of the code that a file of `torch.save` asks for, as far as this torch can tell them."""
    find = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)  # from 2.6
    try:
        return sorted(find(path)) if find else []
    except Exception:  # noqa: BLE001 -- of an old or newer format; the file may hold anything
        return []


def _load_pickle(path: str) -> Any:
    return _as_model(unpickle(path), path)


def _as_model(found: Any, path: str) -> Any:
    if _has_tensors(found) and not any(isinstance(part, nn.Module) for part in found.values()):
        keys = some([one_line(key, LONGEST_KEY) for key in found], 3)
        raise UsageError(
            f"{path} holds weights alone ({keys}) and no model; build the module, load them by load_state_dict, and "
            "check the module, or name a function that returns it"
        )
    if not callable(found):
        raise UsageError(f"{path} holds a {type(found).__name__}, no model")
    return found


def _has_tensors(found: Any) -> bool:
    """Whether it is a dictionary with tensors, such as a `state_dict`, or one that holds such a dictionary."""
    parts = found.values() if isinstance(found, Mapping) else ()
    return any(isinstance(part, torch.Tensor) or _has_tensors(part) for part in parts)


# An exported program needs no trust if it names nothing but ops, sizes and plain data. Whatever else a version of torch
# may read into one is refused.

PARTS = re.compile(r"(?:weight|tensor)_\d+|\w+\.(?:json|pt)|archive_\w+|version|byteorder|serialization_id")
OPS = re.compile(  # of a namespace: `torch.ops.load_library` is none
    r"torch\.ops\.(?!_)\w+(?:\.(?!__)\w+)+|torch\._?sym_\w+|math\.(?!_)\w+|_operator\.(?!_|call|\w*getter|\w*caller)\w+"
)
IMPORTS = re.compile("defaultdict|fqn")  # what torch imports to make a container again
OPERATORS = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
WORDS = (ast.Expression, ast.Call, ast.keyword, ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.expr_context)
CALLED = re.compile(r"[A-Z]\w*|abs|ceil|ceiling|floor|max|min|pow|round|sqrt|size|stride|storage_offset")
WORD = re.compile(r"(?!__)\w*(?:\.\w+)*")


def _load_program(path: str) -> Any:
    """Read an exported program that runs no code."""
    if not _is_plain(path):
        raise UsageError(f"{path} is an exported program that names more than ops and sizes, so it {RUNS}; {TRUST}")
    with mock.patch.dict(os.environ, TORCH_FORCE_WEIGHTS_ONLY_LOAD="1", TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="0"):
        try:
            return torch.export.load(path)
        except pickle.UnpicklingError as problem:
            names = one_line(", ".join(ASKED.findall(str(problem))[:1]) or problem, LONGEST_KEY)
            raise UsageError(f"{path} {RUNS}: it asks for {names}; {TRUST}") from problem


def _is_plain(path: str) -> bool:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if len(set(names)) < len(names) or not all(PARTS.fullmatch(name.rpartition("/")[2]) for name in names):
            return False
        texts = (json.loads(archive.read(name)) for name in names if name.endswith(".json"))
        return all(CHECKS.get(key, bool)(text) for tree in texts for key, text in _strings(tree) if text)


def _strings(tree: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """The texts of a JSON document, each with the nearest key above it."""
    if isinstance(tree, dict):
        for name, part in tree.items():
            yield from _strings(part, name)
    elif isinstance(tree, list):
        for part in tree:
            yield from _strings(part, key)
    elif isinstance(tree, str):
        yield key, tree


def _is_arithmetic(text: str) -> bool:
    """Whether a text is an expression of numbers, symbols and sizes, which calls nothing else."""
    try:
        nodes = [*ast.walk(ast.parse(text.strip(), mode="eval"))]
    except (SyntaxError, ValueError, RecursionError):
        return False
    return all(isinstance(node, OPERATORS) or (isinstance(node, WORDS) and _is_harmless(node)) for node in nodes)


def _is_harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return CALLED.fullmatch(getattr(node.func, "id", getattr(node.func, "attr", ""))) is not None
    held = getattr(node, "id", getattr(node, "attr", getattr(node, "value", "")))  # of a name, an attribute, a constant
    return not isinstance(held, (str, bytes)) or WORD.fullmatch(str(held)) is not None


CHECKS: dict[str, Callable[[str], object]] = {
    "target": OPS.fullmatch,
    "path_name": PARTS.fullmatch,
    "expr_str": _is_arithmetic,
    "guards_code": _is_arithmetic,
    **dict.fromkeys(("in_spec", "out_spec"), lambda text: not IMPORTS.search(text)),
}
