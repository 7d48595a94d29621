"""Stores trees of tensors, numbers and text in one file, without pickle: a JSON header, then raw bytes, then a sum.

The sum is the CRC-32 of all bytes before it.
"""

from __future__ import annotations

import ctypes
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

KEY = "$tensor"
SUM_BYTES = 4


def save(path: Path, tree: Any) -> None:
    """Write a tree of dicts, lists, numbers, text, None and tensors. No other process sees a partial file.

    Raises:
        OSError: it cannot be written.
    """
    blobs = _Blobs()
    header = json.dumps(_without_tensors(tree, blobs)).encode()
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    checksum = 0
    try:
        with unfinished.open("wb") as file:
            for part in _parts(header, blobs.tensors):
                checksum = zlib.crc32(part, checksum)
                file.write(part)
            file.write(checksum.to_bytes(SUM_BYTES, "little"))
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _parts(header: bytes, blobs: list[torch.Tensor]) -> Iterator[bytes]:
    yield len(header).to_bytes(8, "little") + header
    for blob in blobs:
        size = blob.numel() * blob.element_size()
        yield ctypes.string_at(blob.data_ptr(), size) if size else b""


def load(path: Path) -> Any:
    """Read what `save` wrote. Tuples come back as lists, and tensors are on the CPU.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged: its sum does not match.
    """
    data = bytearray(path.read_bytes())
    if zlib.crc32(data[:-SUM_BYTES]).to_bytes(SUM_BYTES, "little") != data[-SUM_BYTES:]:
        raise ValueError(f"{path} is damaged: its checksum does not match")
    size = int.from_bytes(data[:8], "little")
    return _with_tensors(json.loads(data[8 : 8 + size]), data, 8 + size)


class _Blobs:
    """Copies of tensors that lie one behind the other in the file."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._end = 0

    def add(self, tensor: torch.Tensor) -> int:
        """Add a tensor; returns its place."""
        place = self._end
        self.tensors.append(tensor.detach().cpu().contiguous().clone())
        self._end += tensor.numel() * tensor.element_size()
        return place


def _without_tensors(tree: Any, blobs: _Blobs) -> Any:
    if isinstance(tree, dict):
        return {key: _without_tensors(value, blobs) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_without_tensors(value, blobs) for value in tree]
    if isinstance(tree, torch.Tensor):
        return {KEY: [str(tree.dtype).removeprefix("torch."), list(tree.shape), blobs.add(tree)]}
    return tree


def _with_tensors(tree: Any, data: bytearray, start: int) -> Any:
    if isinstance(tree, list):
        return [_with_tensors(value, data, start) for value in tree]
    if not isinstance(tree, dict):
        return tree
    if KEY not in tree:
        return {key: _with_tensors(value, data, start) for key, value in tree.items()}
    name, shape, offset = tree[KEY]
    dtype = getattr(torch, name)
    count = torch.Size(shape).numel()
    if not count:
        return torch.empty(shape, dtype=dtype)
    size = count * dtype.itemsize
    raw = torch.frombuffer(data, dtype=torch.uint8, count=size, offset=start + offset)  # which may be unaligned
    return raw.clone().view(dtype).reshape(shape)
