"""A model at several sizes, for curves of speed over size, and the size at which its speed is worth knowing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from zoo.case import NAME, Call, SpecError


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A model at any size.

    Attributes:
        size_name: the quantity that the size measures, such as "width" or "rows".
        sizes: the sizes to try, ascending; at least one.
        build: returns the model of a size; weights are drawn from torch's global generator.
        inputs: draws the inputs for a size from a generator: a tuple of arguments or a `Call`, tensors on the CPU.
        scripted: returns the ScriptModule or ScriptFunction of a size; None: torch.jit.script(build(size)).
        working: the size at which the matrix times the model: one at which forward and backward of eager fp32 take 1 to
            50 ms on one core. 0: the matrix times the model's first case.
        working_on_cuda: the same on CUDA: one that keeps a GPU busy.

    >>> rows = Scale(
    ...     size_name="rows", sizes=(8, 64), build=lambda n: torch.nn.Linear(4, 2),
    ...     inputs=lambda n, g: (torch.randn(n, 4, generator=g),),
    ... )
    >>> rows.inputs(8, torch.Generator())[0].shape
    torch.Size([8, 4])
    """

    size_name: str
    sizes: tuple[int, ...]
    build: Callable[[int], Callable[..., Any]]
    inputs: Callable[[int, torch.Generator], tuple[Any, ...] | Call]
    scripted: Callable[[int], Callable[..., Any]] | None = None
    working: int = 0
    working_on_cuda: int = 0

    def working_on(self, device: str) -> int:
        """Return the size at which the matrix times the model on a device; 0: the size of its first case."""
        return self.working_on_cuda if device == "cuda" else self.working

    def __post_init__(self) -> None:
        if not isinstance(self.size_name, str) or not NAME.fullmatch(self.size_name):
            raise SpecError(f"scale: size_name {self.size_name!r}: want lower-case letters, digits and '_'")
        if not isinstance(self.sizes, tuple) or not all(isinstance(size, int) for size in self.sizes):
            raise SpecError(f"scale of {self.size_name}: sizes must be a tuple of integers, got {self.sizes!r}")
        if not self.sizes or min(self.sizes) < 1 or list(self.sizes) != sorted(set(self.sizes)):
            raise SpecError(f"scale of {self.size_name}: sizes must be positive and ascending, got {self.sizes!r}")
        for name in ("working", "working_on_cuda"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 0:
                raise SpecError(
                    f"scale of {self.size_name}: {name} must be a size, or 0 for none, got {getattr(self, name)!r}"
                )
        for name in ("build", "inputs", "scripted"):
            value = getattr(self, name)
            if not callable(value) and (value is not None or name != "scripted"):
                raise SpecError(f"scale of {self.size_name}: {name} must be callable, got {value!r}")


def elementwise(model: Callable[[torch.Tensor], torch.Tensor]) -> Scale:
    """Return the scale of an elementwise function: float32 vectors of 2¹⁰ to 2²⁰ numbers from N(0, 1).

    Raises:
        TypeError: `model` is not callable.

    >>> elementwise(torch.exp).size_name
    'numbers'
    """
    if not callable(model):
        raise TypeError(f"elementwise: model must be callable, got {type(model).__name__}")
    return Scale(
        size_name="numbers",
        sizes=(2**10, 2**14, 2**17, 2**20),
        build=lambda _: model,
        inputs=lambda n, g: (torch.randn(n, generator=g),),
        working=2**20,
        working_on_cuda=2**26,
    )
