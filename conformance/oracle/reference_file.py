"""Writes the reference of a model to a file, and reads it for each cell.

Without pickle, and so that a tensor that nobody reads costs nothing. The tensors come first, each at a multiple of
`ALIGNED` bytes and filled up to it, then a tree as JSON, then the length of the tree and its CRC-32. The tree holds the
CRC-32 of every tensor, which is checked when it is read; it is mapped into memory, and not copied.
"""

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
from conformance.gates.distance import Distance, Figures, OracleTensor, Redraws, Rounded, Sums
from conformance.oracle.draws import Redraw
from conformance.oracle.reference import CaseReference
from conformance.records.cell import TensorName

ALIGNED = 64
LENGTH_BYTES, SUM_BYTES = 8, 4
KIND, ITEMS = "$kind", "items"
RECORDS = (CaseReference, Container, Distance, Figures, Redraw, Sums, TensorName, TensorReference)


def save(path: Path, cases: dict[str, CaseReference]) -> None:
    """Write the reference of a model, by case name. No other process sees a partial file.

    Raises:
        OSError: it cannot be written.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            tree = {name: _tree(case, file) for name, case in cases.items()}
            text = json.dumps({"tree": tree, "start": file.tell()}).encode()
            end = text + len(text).to_bytes(LENGTH_BYTES, "little")
            file.write(end + zlib.crc32(end).to_bytes(SUM_BYTES, "little"))
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _tree(value: Any, file: BinaryIO) -> Any:
    """A value as numbers, text and dicts that name the kind of everything else; its tensors are written to the file."""
    if isinstance(value, torch.Tensor):
        return {KIND: "Tensor", ITEMS: [str(value.dtype).removeprefix("torch."), [*value.shape], *_write(value, file)]}
    if isinstance(value, dict):
        return {KIND: "dict", ITEMS: [[_tree(key, file), _tree(part, file)] for key, part in value.items()]}
    if isinstance(value, (list, tuple, frozenset)):
        parts = sorted(value) if isinstance(value, frozenset) else value
        return {KIND: type(value).__name__, ITEMS: [_tree(part, file) for part in parts]}
    if isinstance(value, OracleTensor):
        fields: dict[str, Any] = {"oracle": value.raw, "figures": value.figures}
    elif isinstance(value, Redraws):  # few large tensors, because each tensor of a file takes time to read
        fields = {"truths": torch.stack(value.truths), "rounded": value.rounded}
    elif isinstance(value, Rounded):
        rows = torch.stack([value.squares, value.crowding, *vars(value.bias).values(), *vars(value.noise).values()])
        fields = {"draws": value.draws, "rows": rows, "strays": value.strays}
    elif isinstance(value, RECORDS):
        fields = vars(value)
    else:
        return value
    return {KIND: type(value).__name__, **{name: _tree(part, file) for name, part in fields.items()}}


def _write(tensor: torch.Tensor, file: BinaryIO) -> tuple[int, int]:
    """Write the numbers of a tensor; returns their place and their CRC-32."""
    numbers, place = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous(), file.tell()
    size = numbers.numel() * numbers.element_size()
    checksum = 0
    for part in ((ctypes.c_char * size).from_address(numbers.data_ptr()) if size else b"", bytes(-size % ALIGNED)):
        file.write(part)
        checksum = zlib.crc32(part, checksum)
    return place, checksum


def load(path: Path, precision: str = "") -> dict[str, CaseReference]:
    """Read what `save` wrote. The memory of its tensors is that of the file; to write them changes nothing there.

    Args:
        path: path of the file.
        precision: name of the only precision that is asked for; what only others need is not read. "": all.

    Raises:
        DamagedReferenceError: it is not there, cannot be read, or is damaged.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size <= LENGTH_BYTES + SUM_BYTES:
                raise _damage_error(path)
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as problem:
        raise DamagedReferenceError(str(problem)) from problem
    end = len(content) - SUM_BYTES
    start = end - LENGTH_BYTES - int.from_bytes(content[end - LENGTH_BYTES : end], "little")
    if start < 0 or zlib.crc32(content[start:end]).to_bytes(SUM_BYTES, "little") != content[end:]:
        raise _damage_error(path)
    known = json.loads(content[start : end - LENGTH_BYTES])
    if known["start"] != start:
        raise _damage_error(path)
    reader = _Reader(path, content, precision)
    return {name: reader.value(tree) for name, tree in known["tree"].items()}


@dataclass(frozen=True)
class _Reader:
    """Makes values of trees again, as far as cells of a precision need them. All of them need float32's budgets.

    Attributes:
        path: the file.
        content: the content of the file, as it is mapped.
        precision: name of the precision; "": all.
    """

    path: Path
    content: mmap.mmap
    precision: str

    def value(self, tree: Any) -> Any:
        """The value of a tree."""
        if isinstance(tree, list):
            return [self.value(part) for part in tree if self._is_needed(part)]
        if not isinstance(tree, dict):
            return tree
        kind, fields = tree[KIND], {name: part for name, part in tree.items() if name != KIND}
        if kind == "Tensor":
            return self._tensor(*tree[ITEMS])
        if kind == "Redraws":
            rounded = self.value(tree["rounded"])
            return Redraws(tuple(self.value(tree["truths"])), rounded) if rounded else None
        if kind == "CaseReference" and self.precision:
            judged = [pair for pair in tree["changed"][ITEMS] if self._is_judged(pair[ITEMS][1])]
            fields["changed"] = {**tree["changed"], ITEMS: judged}
        return MAKERS[kind](**{name: self.value(part) for name, part in fields.items()})

    def _is_needed(self, part: Any) -> bool:
        """Whether a part is needed that may be the name of a precision and what is known for it."""
        of_precision = isinstance(part, list) and isinstance(part[0], str) and part[0] in PRECISIONS
        return not self.precision or not of_precision or part[0] in ("fp32", self.precision)

    def _is_judged(self, case: dict[str, Any]) -> bool:
        spreads = (known["spread"][ITEMS] for _, known in case["tensors"][ITEMS] if known is not None)
        return all(self.precision in (name for name, _ in spread) for spread in spreads)

    def _tensor(self, name: str, shape: list[int], place: int, checksum: int) -> torch.Tensor:
        dtype, count = getattr(torch, name), torch.Size(shape).numel()
        size = count * dtype.itemsize
        if zlib.crc32(memoryview(self.content)[place : place + size + -size % ALIGNED]) != checksum:
            raise _damage_error(self.path)
        if not count:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self.content, dtype=dtype, count=count, offset=place).reshape(shape)


def _rebuild_rounded(draws: int, rows: torch.Tensor, strays: torch.Tensor) -> Rounded:
    return Rounded(draws, rows[0], rows[1], Sums(rows[2], rows[3]), Sums(rows[4], rows[5]), strays)


MAKERS: dict[str, Callable[..., Any]] = {
    **{record.__name__: record for record in (*RECORDS, OracleTensor)},
    **{kind.__name__: lambda items, kind=kind: kind(items) for kind in (dict, list, tuple, frozenset)},
    "Rounded": _rebuild_rounded,
}


def _damage_error(path: Path) -> DamagedReferenceError:
    return DamagedReferenceError(f"{path} is damaged: its checksum does not match")
