"""Draws the noise of perturbed runs: numbers that are uniform from -1 to 1.

Each element of a small tensor gets a number of its own. Those of a large one are read from a pool of two million
numbers, which is the same in every process, from a random place on. So a number comes back in other ops, at other
elements, and in one tensor after a million elements at the earliest: one sum hardly has a number twice.
"""

from __future__ import annotations

from functools import cache, lru_cache

import torch

LARGE = 2**16  # elements; below, a tensor is drawn as fast as the pool is read
POOL = 2**21
WINDOW = POOL // 2  # that are read at once
KEPT = 16  # sizes of perturbations for which the factors of the whole pool are kept, 16 MiB each
STEP = 2.0**-31  # uniform numbers of all of int32 are drawn twice as fast as numbers of float64


def uniform(shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """Uniform numbers from -1 to 1, as float64.

    Args:
        shape: the shape of the result.
        generator: draws the numbers, or the places at which the pool is read.
    """
    count = shape.numel()
    if count < LARGE:
        return _draw(count, generator).view(shape)
    return torch.cat(_windows(_pool(), count, generator)).view(shape)


def perturb(tensor: torch.Tensor, down: float, up: float, generator: torch.Generator) -> torch.Tensor:
    """A tensor times random factors, as float64 or complex128, with the strides of the tensor if it is dense.

    Args:
        tensor: floating or complex numbers.
        down: the factors are uniform from 1 - down on,
        up: to 1 + up.
        generator: draws the noise.
    """
    flat = None if tensor.is_complex() or tensor.numel() < LARGE else _in_memory_order(tensor)
    factors = torch.empty_like(tensor, dtype=torch.float64)
    if flat is None:
        centre = torch.tensor(1.0 + (up - down) / 2, dtype=torch.float64)
        torch.add(centre, uniform(tensor.shape, generator), alpha=(up + down) / 2, out=factors)
        return tensor * factors if tensor.is_complex() else factors.mul_(tensor)
    windows = _windows(_factors(down, up), len(flat), generator)
    results = factors.permute(_order(factors)).view(-1).split(WINDOW)
    for numbers, window, result in zip(flat.split(WINDOW), windows, results, strict=True):
        torch.mul(numbers, window, out=result)
    return factors


def _draw(count: int, generator: torch.Generator) -> torch.Tensor:
    numbers = torch.empty((count + 1) // 2, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    return numbers.view(torch.int32)[:count].to(torch.float64).mul_(STEP)


def _windows(pool: torch.Tensor, count: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Parts of a pool that have so many numbers together, each from a random place on."""
    sizes = [min(count - start, WINDOW) for start in range(0, count, WINDOW)]
    starts = torch.randint(POOL - WINDOW + 1, (len(sizes),), generator=generator).tolist()
    return [pool[start : start + size] for start, size in zip(starts, sizes, strict=True)]


@cache
def _pool() -> torch.Tensor:
    return _draw(POOL, torch.Generator().manual_seed(0))


@lru_cache(KEPT)
def _factors(down: float, up: float) -> torch.Tensor:
    return _pool().mul((up + down) / 2).add_(1.0 + (up - down) / 2)


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor | None:
    """The elements of a tensor as they lie in memory; None if there are gaps between them, or some lie on others."""
    lying = tensor.permute(_order(tensor))
    return lying.view(-1) if lying.is_contiguous() else None


def _order(tensor: torch.Tensor) -> list[int]:
    """The axes of a tensor, that of the largest stride first."""
    return sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
