"""Writes the reference of a model to a file, and reads it for each cell."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from conformance.errors import DamagedReferenceError
from conformance.evaluate.containers import Container
from conformance.evaluate.inputs import Picks
from conformance.gates.budget import TensorReference
from conformance.gates.distance import Distance, Figures, OracleTensor
from conformance.gates.sums import Redraws, Rounded, Sums
from conformance.oracle.many_draws import Redraw
from conformance.oracle.reference import CaseReference
from conformance.records.observation import TensorName


def save(path: Path, cases: dict[str, CaseReference]) -> None:
    """Write the reference of a model, by case name.

    Raises:
        OSError: it cannot be written.
    """
    save_tensors(path, {name: _case_tree(case) for name, case in cases.items()})


def load(path: Path, precision: str = "") -> dict[str, CaseReference]:
    """Read what `save` wrote.

    Args:
        path: path of the file.
        precision: name of the only precision that is asked for; what only others need is not read. "": all.

    Raises:
        DamagedReferenceError: it is not there, cannot be read, or is damaged.
    """
    try:
        saved = open_tensors(path)
        return {name: _case_reference(_for_precision(tree, precision)) for name, tree in saved.items()}
    except (OSError, ValueError) as problem:
        raise DamagedReferenceError(str(problem)) from problem


def _for_precision(case: dict[str, Any], precision: str) -> dict[str, Any]:
    """The part of a case that cells of a precision need. All of them need the budgets of float32."""
    if not precision:
        return case
    tensors = [[*name, known and _tensor_for_precision(known, precision)] for *name, known in case["tensors"]]
    changed = [[redraw, _for_precision(there, precision)] for redraw, there in case["changed"]]
    judged = [[redraw, there] for redraw, there in changed if _is_judged(there, precision)]
    return {**case, "tensors": tensors, "changed": judged}


def _tensor_for_precision(known: dict[str, Any], precision: str) -> dict[str, Any]:
    needed, redraws = ("fp32", precision), known["redraws"]
    parts = {part: _choose(known[part], needed) for part in ("spread", "settled", "strayed")}
    rounded = _choose(redraws["rounded"], needed) if redraws else {}
    return {**known, **parts, "redraws": {**redraws, "rounded": rounded} if rounded else None}


def _choose(by_precision: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in by_precision.items() if name in names}


def _is_judged(case: dict[str, Any], precision: str) -> bool:
    return all(known is None or precision in known["spread"] for *_, known in case["tensors"])


def _case_tree(case: CaseReference) -> dict[str, Any]:
    return {
        **vars(case),
        "tensors": [[name.kind, name.leaf, _tensor_tree(known)] for name, known in case.tensors.items()],
        "container": _container_tree(case.container),
        "shared": sorted(case.shared),
        "redraws": [vars(redraw) for redraw in case.redraws],
        "changed": [[vars(redraw), _case_tree(there)] for redraw, there in case.changed],
    }


def _container_tree(container: Container) -> dict[str, Any]:
    return {**vars(container), "parts": [_container_tree(part) for part in container.parts]}


def _container(tree: dict[str, Any]) -> Container:
    return Container(tree["kind"], tuple(tree["keys"]), tuple(_container(part) for part in tree["parts"]))


def _tensor_tree(known: TensorReference | None) -> dict[str, Any] | None:
    if known is None:
        return None
    spread = {precision: {**vars(d), "slices": list(d.slices)} for precision, d in known.spread.items()}
    redraws = None if known.redraws is None else _redraws_tree(known.redraws)
    strayed = {precision: vars(sums) for precision, sums in known.strayed.items()}
    oracle = {"raw": known.oracle.raw, "figures": vars(known.oracle.figures)}
    return {**vars(known), "oracle": oracle, "spread": spread, "strayed": strayed, "redraws": redraws}


def _redraws_tree(redraws: Redraws) -> dict[str, Any]:
    """Few large tensors, because each tensor of a file takes time to read."""

    def rows(r: Rounded) -> torch.Tensor:
        return torch.stack([r.squares, r.crowding, *vars(r.bias).values(), *vars(r.noise).values()])

    rounded = {precision: [r.draws, r.runs, rows(r)] for precision, r in redraws.rounded.items()}
    return {"truths": torch.stack(redraws.truths), "rounded": rounded}


def _redraws(saved: dict[str, Any]) -> Redraws:
    rounded = {
        precision: Rounded(draws, runs, rows[0], rows[1], Sums(rows[2], rows[3]), Sums(rows[4], rows[5]))
        for precision, (draws, runs, rows) in saved["rounded"].items()
    }
    return Redraws(tuple(saved["truths"]), rounded)


def _case_reference(tree: dict[str, Any]) -> CaseReference:
    tensors = {
        TensorName(kind, leaf): None if saved is None else _tensor_reference(saved)
        for kind, leaf, saved in tree["tensors"]
    }
    return CaseReference(
        **{
            **tree,
            "picks": _picks(tree["picks"]),
            "tensors": tensors,
            "container": _container(tree["container"]),
            "shared": frozenset((one, other) for one, other in tree["shared"]),
            "redraws": tuple(map(_redraw, tree["redraws"])),
            "assumed": tuple(tree["assumed"]),
            "changed": tuple((_redraw(redraw), _case_reference(there)) for redraw, there in tree["changed"]),
        }
    )


def _picks(saved: Any) -> Picks:
    return saved if isinstance(saved, int) else [(draw, row) for draw, row in saved]


def _redraw(saved: dict[str, Any]) -> Redraw:
    return Redraw(**{**saved, "picks": _picks(saved["picks"]), "kept": tuple(saved["kept"])})


def _tensor_reference(stored: dict[str, Any]) -> TensorReference:
    saved = read(stored)
    spread = {precision: Distance(**{**d, "slices": tuple(d["slices"])}) for precision, d in saved["spread"].items()}
    redraws = None if saved["redraws"] is None else _redraws(saved["redraws"])
    strayed = {precision: Sums(**sums) for precision, sums in saved["strayed"].items()}
    figures = saved["oracle"]["figures"]
    oracle = OracleTensor(saved["oracle"]["raw"], Figures(**{**figures, "slice_norms": tuple(figures["slice_norms"])}))
    return TensorReference(**{**saved, "oracle": oracle, "spread": spread, "strayed": strayed, "redraws": redraws})


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
