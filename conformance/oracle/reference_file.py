"""Writes the reference of a model to a file, and reads it for each cell."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from conformance.axes import PRECISIONS
from conformance.errors import DamagedReferenceError
from conformance.evaluate.containers import Container
from conformance.gates.budget import TensorReference
from conformance.gates.distance import Distance, Figures, OracleTensor
from conformance.gates.sums import Redraws, Rounded, Sums
from conformance.oracle.many_draws import Redraw
from conformance.oracle.reference import CaseReference
from conformance.records.observation import TensorName

RECORDS = (CaseReference, Container, Distance, Figures, Redraw, Sums, TensorName, TensorReference)
KIND, ITEMS = "$kind", "items"


def save(path: Path, cases: dict[str, CaseReference]) -> None:
    """Write the reference of a model, by case name.

    Raises:
        OSError: it cannot be written.
    """
    save_tensors(path, {name: _tree(case) for name, case in cases.items()})


def load(path: Path, precision: str = "") -> dict[str, CaseReference]:
    """Read what `save` wrote.

    Args:
        path: path of the file.
        precision: name of the only precision that is asked for; what only others need is not read. "": all.

    Raises:
        DamagedReferenceError: it is not there, cannot be read, or is damaged.
    """
    try:
        return {name: _value(tree, precision) for name, tree in open_tensors(path).items()}
    except (OSError, ValueError) as problem:
        raise DamagedReferenceError(str(problem)) from problem


def _tree(value: Any) -> Any:
    """A value as tensors, numbers and text, and dicts that name the kind of everything else."""
    if isinstance(value, dict):
        return {KIND: "dict", ITEMS: [[_tree(key), _tree(part)] for key, part in value.items()]}
    if isinstance(value, (list, tuple, frozenset)):
        parts = sorted(value) if isinstance(value, frozenset) else value
        return {KIND: type(value).__name__, ITEMS: [_tree(part) for part in parts]}
    if isinstance(value, OracleTensor):
        fields: dict[str, Any] = {"oracle": value.raw, "figures": value.figures}
    elif isinstance(value, Redraws):  # few large tensors, because each tensor of a file takes time to read
        fields = {"truths": torch.stack(value.truths), "rounded": value.rounded}
    elif isinstance(value, Rounded):
        rows = torch.stack([value.squares, value.crowding, *vars(value.bias).values(), *vars(value.noise).values()])
        fields = {"draws": value.draws, "runs": value.runs, "rows": rows}
    elif isinstance(value, RECORDS):
        fields = vars(value)
    else:
        return value
    return {KIND: type(value).__name__, **{name: _tree(part) for name, part in fields.items()}}


def _value(tree: Any, precision: str) -> Any:
    """The value of a tree, as far as cells of a precision need it; all of them need the budgets of float32."""
    if isinstance(tree, StoredTensor):
        return tree.read()
    if isinstance(tree, list):
        return [_value(part, precision) for part in tree if _is_needed(part, precision)]
    if not isinstance(tree, dict):
        return tree
    kind, fields = tree[KIND], {name: part for name, part in tree.items() if name != KIND}
    if kind == "Redraws":
        rounded = _value(tree["rounded"], precision)
        return Redraws(tuple(tree["truths"].read()), rounded) if rounded else None
    if kind == "CaseReference" and precision:
        judged = [pair for pair in tree["changed"][ITEMS] if _is_judged(pair[ITEMS][1], precision)]
        fields["changed"] = {**tree["changed"], ITEMS: judged}
    return MAKERS[kind](**{name: _value(part, precision) for name, part in fields.items()})


def _is_needed(part: Any, precision: str) -> bool:
    """Whether a part is needed that may be the name of a precision and what is known for it."""
    of_precision = isinstance(part, list) and isinstance(part[0], str) and part[0] in PRECISIONS
    return not precision or not of_precision or part[0] in ("fp32", precision)


def _is_judged(case: dict[str, Any], precision: str) -> bool:
    spreads = (known["spread"][ITEMS] for _, known in case["tensors"][ITEMS] if known is not None)
    return all(precision in (name for name, _ in spread) for spread in spreads)


def _rounded(draws: int, runs: int, rows: torch.Tensor) -> Rounded:
    return Rounded(draws, runs, rows[0], rows[1], Sums(rows[2], rows[3]), Sums(rows[4], rows[5]))


MAKERS: dict[str, Callable[..., Any]] = {
    **{record.__name__: record for record in (*RECORDS, OracleTensor)},
    **{kind.__name__: lambda items, kind=kind: kind(items) for kind in (dict, list, tuple, frozenset)},
    "Rounded": _rounded,
}


# Stores trees of tensors, numbers and text in one file, without pickle, and maps the tensors into memory.
#
# The tensors come first, each at a multiple of `ALIGNED` bytes and filled up to it, then the tree as JSON, then the
# length of the tree and its CRC-32. The tree holds the CRC-32 of every tensor. So a tensor that nobody reads costs
# nothing, and one that is read is checked.

KEY = "$tensor"
ALIGNED = 64
LENGTH_BYTES, SUM_BYTES = 8, 4


def save_tensors(path: Path, tree: Any) -> None:
    """Write a tree of dicts, lists, numbers, text, None and tensors. No other process sees a partial file.

    Raises:
        OSError: it cannot be written.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            text = json.dumps({"tree": _without_tensors(tree, file), "start": file.tell()}).encode()
            end = text + len(text).to_bytes(LENGTH_BYTES, "little")
            file.write(end + zlib.crc32(end).to_bytes(SUM_BYTES, "little"))
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _without_tensors(tree: Any, file: BinaryIO) -> Any:
    """The tree with the place of each tensor instead of the tensor, which is written to the file."""
    if isinstance(tree, dict):
        return {key: _without_tensors(value, file) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_without_tensors(value, file) for value in tree]
    if isinstance(tree, torch.Tensor):
        return {KEY: [str(tree.dtype).removeprefix("torch."), list(tree.shape), *_write(tree, file)]}
    return tree


def _write(tensor: torch.Tensor, file: BinaryIO) -> tuple[int, int]:
    """Write the numbers of a tensor; returns their place and their CRC-32."""
    numbers, place = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous(), file.tell()
    size = numbers.numel() * numbers.element_size()
    checksum = 0
    for part in ((ctypes.c_char * size).from_address(numbers.data_ptr()) if size else b"", bytes(-size % ALIGNED)):
        file.write(part)
        checksum = zlib.crc32(part, checksum)
    return place, checksum


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file, which has not been read.

    Attributes:
        path: the file.
        content: the content of the file, as it is mapped.
        dtype, shape, place, checksum: what the file says of it.
    """

    path: Path
    content: mmap.mmap
    dtype: torch.dtype
    shape: tuple[int, ...]
    place: int
    checksum: int

    def read(self) -> torch.Tensor:
        """The tensor on the CPU. Its memory is that of the file; to write it changes nothing there.

        Raises:
            ValueError: it is damaged: its sum does not match.
        """
        count = torch.Size(self.shape).numel()
        size = count * self.dtype.itemsize
        end = self.place + size + -size % ALIGNED
        if zlib.crc32(memoryview(self.content)[self.place : end]) != self.checksum:
            raise _damage_error(self.path)
        if not count:
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.frombuffer(self.content, dtype=self.dtype, count=count, offset=self.place).reshape(self.shape)


def open_tensors(path: Path) -> Any:
    """What `save_tensors` wrote, with a `StoredTensor` in the place of each tensor. Tuples come back as lists.

    Raises:
        OSError: it cannot be read.
        ValueError: its tree is damaged.
    """
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size <= LENGTH_BYTES + SUM_BYTES:
            raise _damage_error(path)
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    end = len(content) - SUM_BYTES
    start = end - LENGTH_BYTES - int.from_bytes(content[end - LENGTH_BYTES : end], "little")
    if start < 0 or zlib.crc32(content[start:end]).to_bytes(SUM_BYTES, "little") != content[end:]:
        raise _damage_error(path)
    known = json.loads(content[start : end - LENGTH_BYTES])
    if known["start"] != start:
        raise _damage_error(path)
    return _with_tensors(known["tree"], path, content)


def read(tree: Any) -> Any:
    """A part of what `open_tensors` returned, with all its tensors.

    Raises:
        ValueError: one is damaged: its sum does not match.
    """
    if isinstance(tree, dict):
        return {key: read(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [read(value) for value in tree]
    return tree.read() if isinstance(tree, StoredTensor) else tree


def _with_tensors(tree: Any, path: Path, content: mmap.mmap) -> Any:
    if isinstance(tree, list):
        return [_with_tensors(value, path, content) for value in tree]
    if not isinstance(tree, dict):
        return tree
    if KEY not in tree:
        return {key: _with_tensors(value, path, content) for key, value in tree.items()}
    name, shape, place, checksum = tree[KEY]
    return StoredTensor(path, content, getattr(torch, name), tuple(shape), place, checksum)


def _damage_error(path: Path) -> ValueError:
    return ValueError(f"{path} is damaged: its checksum does not match")
