"""Describes the containers in which a model returns its results, and tells which of the tensors share memory."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from conformance.evaluate import inputs
from zoo import SpecError, internals

NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
LEAVES = (torch.Tensor, type(None), str, *NUMBERS)
OTHER = "other "  # the kind of what is no tensor, number or text begins so
RETURN_TYPES = "torch.return_types"
IN_TORCHSCRIPT = {"tuple": ("list",), "Size": ("list",), "OrderedDict": ("dict",)}  # what it has in place of a type

Part = tuple[str, str, Any]  # key of a part, what its name ends with, and the part


@dataclasses.dataclass(frozen=True)
class Container:
    """What a model returned, without the numbers: a container of containers, or a leaf.

    Attributes:
        kind: "tuple", "list", "dict", "named tuple Pair", "dataclass Result", "return type topk"; or "Tensor", "None",
            "int", "float", "bool", "other Normal", or a text in quotation marks.
        keys: the keys of a dict in their order, or the names of fields; empty if the parts are numbered.
        parts: what it contains.
    """

    kind: str
    keys: tuple[str, ...] = ()
    parts: tuple["Container", ...] = ()

    def __str__(self) -> str:
        """Such as `dict[mean: Tensor, rest: tuple[Tensor, None]]`."""
        if self.kind in ("Tensor", "None") or (not self.parts and not self.keys):
            return self.kind
        keys = [f"{key}: " for key in self.keys] or [""] * len(self.parts)
        return f"{self.kind}[{', '.join(f'{key}{part}' for key, part in zip(keys, self.parts, strict=True))}]"

    def others(self) -> tuple[str, ...]:
        """The types of what is in it and is no tensor, number or text."""
        own = (self.kind.removeprefix(OTHER),) if self.kind.startswith(OTHER) else ()
        return tuple(dict.fromkeys([*own, *(name for part in self.parts for name in part.others())]))

    def stands_for(self, wanted: "Container", *, scripted: bool) -> bool:
        """Whether this is the same container as `wanted` or, if `scripted`, what TorchScript has in its place.

        It has no return types, no OrderedDict, and lists in place of the tuples that operators such as `chunk` return.
        """
        if (self.keys, len(self.parts)) != (wanted.keys, len(wanted.parts)):
            return False
        kinds = {wanted.kind}
        if scripted:
            kinds.update(IN_TORCHSCRIPT.get(wanted.kind, ()))
            kinds.update(["tuple"] if wanted.kind.startswith("return type ") else [])
        return self.kind in kinds and all(
            mine.stands_for(theirs, scripted=scripted) for mine, theirs in zip(self.parts, wanted.parts, strict=True)
        )


NOTHING = Container("None")


def describe(value: Any) -> Container:
    """Describe what a model returned."""
    if isinstance(value, str):
        return Container(repr(value))
    if isinstance(value, torch.Tensor):
        return Container("Tensor" if value.layout == torch.strided else f"{value.layout} Tensor".removeprefix("torch."))
    found = _parts(value)
    if found is None:
        of_type = type(value).__name__
        return Container("None" if value is None else of_type if isinstance(value, LEAVES) else f"{OTHER}{of_type}")
    kind, parts, keyed = found
    keys = tuple(key for key, _, _ in parts) if keyed else ()
    return Container(kind, keys, tuple(describe(part) for _, _, part in parts))


def tensors_of(value: Any, device: str = "cpu") -> dict[str, torch.Tensor | None]:
    """The tensors and None in what a model returned, by path: {"output": …} or {"output[0]": …, "output['mean']": …}.

    A number becomes a tensor without axes, so that the same gates judge it, and a sparse tensor a dense one. Text and
    what is no tensor are left to `describe`.

    Raises:
        SpecError: there is something else in it, and no tensor.
    """
    leaves = {path: leaf for path, leaf in leaves_of(value, "output") if not isinstance(leaf, str)}
    found = {path: tensor_of(leaf, device) for path, leaf in leaves.items() if isinstance(leaf, LEAVES)}
    if leaves and not found:
        path, leaf = next(iter(leaves.items()))
        raise SpecError(
            f"{path} is of type {type(leaf).__name__}; a model returns tensors, numbers, text, or containers of them"
        )
    return found


def leaves_of(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested containers, with its path."""
    found = _parts(value)
    if found is None:
        yield name, value
        return
    for _, ending, part in found[1]:
        yield from leaves_of(part, f"{name}{ending}")


def tensor_of(leaf: Any, device: str) -> torch.Tensor | None:
    """A number as a tensor without axes, a sparse tensor as a dense one, and other leaves as they are."""
    if type(leaf) in NUMBERS:
        return torch.tensor(leaf, dtype=NUMBERS[type(leaf)], device=device)
    return inputs.dense(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _parts(value: Any) -> tuple[str, list[Part], bool] | None:
    """Kind and parts of a container, and whether the keys belong to it; None for a leaf."""
    if isinstance(value, LEAVES):
        return None
    kind = type(value).__name__
    if isinstance(value, dict):
        return kind, [(str(key), f"[{key!r}]", part) for key, part in value.items()], True
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return f"named tuple {kind}", _fields(value, value._fields), True
    if isinstance(value, (tuple, list)):
        kind = f"return type {kind}" if type(value).__module__ == RETURN_TYPES else kind
        return kind, [(str(i), f"[{i}]", part) for i, part in enumerate(value)], False
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"dataclass {kind}", _fields(value, [field.name for field in dataclasses.fields(value)]), True
    return _registered_parts(value)


def _fields(value: Any, names: Iterable[str]) -> list[Part]:
    return [(name, f".{name}", getattr(value, name)) for name in names]


def _registered_parts(value: Any) -> tuple[str, list[Part], bool] | None:
    """The same for a class that is registered with pytree."""
    endings = inputs.leaves_by_path(value, is_leaf=lambda other: other is not value)
    if len(endings) == 1 and endings[0][1] is value:
        return None
    return type(value).__name__, [(ending.strip("[].'"), ending, part) for ending, part in endings], True


# Tensors share memory if writing into one of them changes the other.

Pair = tuple[str, str]
Placed = tuple[torch.Tensor, tuple[int, int]]


def sharing(outputs: Mapping[str, torch.Tensor | None], others: Mapping[str, torch.Tensor]) -> frozenset[Pair]:
    """The pairs that share memory: an output and one of the others, or an output and a later output."""
    returned = {name: (t, _extent(t)) for name, t in outputs.items() if t is not None and t.numel()}
    given = {name: (t, _extent(t)) for name, t in others.items() if t.numel()}
    pairs, names = set(), list(returned)
    for i, name in enumerate(names):
        for other, there in (*given.items(), *((later, returned[later]) for later in names[i + 1 :])):
            if _overlap(returned[name], there):
                pairs.add((name, other))
    return frozenset(pairs)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Address of the first byte of a tensor, and the address after its last."""
    start = tensor.data_ptr()
    return start, start + inputs.extent(tensor) * tensor.element_size()


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
