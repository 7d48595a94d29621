"""Computes element by element in blocks, which stay in a core's cache. The tensors of large models do not."""

from __future__ import annotations

from collections.abc import Callable

import torch

BLOCK = 2**16  # elements; as float64 they fill half of a usual cache, and torch gives two threads work


def by_blocks(step: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor, *, owned: bool) -> torch.Tensor:
    """What a function makes of every element, block by block in the order of memory.

    Args:
        step: maps elements, of shape (count,) with at most `BLOCK` of them, to new ones of the same shape and dtype.
        tensor: the elements, with any strides.
        owned: nothing else uses the memory of the tensor, so the result may be written into it.
    """
    if tensor.is_contiguous():
        if tensor.numel() <= BLOCK:
            return step(tensor.view(-1)).view(tensor.shape)
        result = tensor if owned else torch.empty_like(tensor)
    else:
        result = torch.empty_like(tensor)
        if result.stride() != tensor.stride():  # it has gaps, or overlaps itself
            return by_blocks(step, tensor.contiguous(), owned=True)
    for elements, target in zip(_in_memory(tensor), _in_memory(result), strict=True):
        target.copy_(step(elements))
    return result


def any_by_blocks(test: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor) -> bool:
    """Whether a test holds for any element. It ends with the first block in which one is found.

    Args:
        test: maps elements, of any shape with at most `BLOCK` of them, to a boolean mask.
        tensor: the elements, with any strides.
    """
    if tensor.numel() <= BLOCK:
        return bool(test(tensor).any())
    if torch.empty_like(tensor).stride() != tensor.stride():  # it has gaps, or overlaps itself
        tensor = tensor.contiguous()
    return any(bool(test(part).any()) for part in _in_memory(tensor))


def _in_memory(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views of the blocks of a tensor without gaps, in the order of memory."""
    blocks: tuple[torch.Tensor, ...] = tensor.as_strided((tensor.numel(),), (1,)).split(BLOCK)
    return blocks
