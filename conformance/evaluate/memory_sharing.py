"""Finds tensors that share memory: writing into one of them changes the other. Gives memory an identity."""

from collections.abc import Mapping

import torch

from zoo import internals

Pair = tuple[str, str]


def sharing(outputs: Mapping[str, torch.Tensor | None], others: Mapping[str, torch.Tensor]) -> frozenset[Pair]:
    """The pairs that share memory: an output and one of the others, or an output and a later output.

    Args:
        outputs: the tensors that a call returned, by name.
        others: inputs, parameters and buffers, by name.
    """
    returned = {name: (t, _extent(t)) for name, t in outputs.items() if t is not None and t.numel()}
    given = {name: (t, _extent(t)) for name, t in others.items() if t.numel()}
    pairs, names = set(), list(returned)
    for i, name in enumerate(names):
        for other, there in (*given.items(), *((later, returned[later]) for later in names[i + 1 :])):
            if _overlap(returned[name], there):
                pairs.add((name, other))
    return frozenset(pairs)


Placed = tuple[torch.Tensor, tuple[int, int]]


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Address of the first byte of a tensor, and the address after its last."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


def _overlap(one: Placed, other: Placed) -> bool:
    """Whether two tensors have an element in common; the rows of a matrix share a storage, but no element."""
    (a, (start, end)), (b, (first, last)) = one, other
    if a.device != b.device or end <= first or last <= start:
        return False
    size = a.element_size()
    if start == first or size != b.element_size() or (start - first) % size:
        return True
    low = min(start, first)
    taken = torch.zeros((max(end, last) - low) // size, dtype=torch.bool)
    taken[_positions(a, (start - low) // size)] = True
    return bool(taken[_positions(b, (first - low) // size)].any())


def _positions(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """The places of a tensor's elements in its memory: int64, of one axis."""
    places = torch.tensor([offset])
    for n, s in zip(tensor.shape, tensor.stride(), strict=True):
        if s:
            places = (places.unsqueeze(-1) + torch.arange(n) * s).flatten()
    return places


def home(memory: torch.UntypedStorage) -> int:
    """The identity of memory, also of an empty one, for as long as something holds it."""
    return int(internals.identity_of(memory))
