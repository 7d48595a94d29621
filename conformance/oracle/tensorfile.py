"""Stores trees of tensors, numbers and text in one file, without pickle, and maps the tensors into memory.

The tensors come first, each at a multiple of `ALIGNED` bytes and filled up to it, then the tree as JSON, then the
length of the tree and its CRC-32. The tree holds the CRC-32 of every tensor. So a tensor that nobody reads costs
nothing, and one that is read is checked.
"""

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

KEY = "$tensor"
ALIGNED = 64
LENGTH_BYTES, SUM_BYTES = 8, 4


def save(path: Path, tree: Any) -> None:
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
    """What `save` wrote, with a `StoredTensor` in the place of each tensor. Tuples come back as lists.

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


def load(path: Path) -> Any:
    """What `save` wrote, with all its tensors.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged: a sum does not match.
    """
    return read(open_tensors(path))


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
