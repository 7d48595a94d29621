"""How large a model can be made: what curves of speed over size are drawn from."""

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
        knob: what the size is, such as "width" or "rows".
        sizes: to try, ascending; at least one.
        build: the model of a size, weights from torch's global generator.
        inputs: the inputs for a size, drawn from a generator; a tuple of arguments or a `Call`. CPU tensors.
        scripted: the ScriptModule or ScriptFunction of a size, made by hand; None: torch.jit.script(build(size)).

    >>> rows = Scale(
    ...     knob="rows", sizes=(8, 64), build=lambda n: torch.nn.Linear(4, 2),
    ...     inputs=lambda n, g: (torch.randn(n, 4, generator=g),),
    ... )
    >>> rows.inputs(8, torch.Generator())[0].shape
    torch.Size([8, 4])
    """

    knob: str
    sizes: tuple[int, ...]
    build: Callable[[int], Callable[..., Any]]
    inputs: Callable[[int, torch.Generator], tuple[Any, ...] | Call]
    scripted: Callable[[int], Callable[..., Any]] | None = None

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.knob):
            raise SpecError(f"scale: knob {self.knob!r}: want lower-case letters, digits and '_'")
        if not self.sizes or min(self.sizes) < 1 or list(self.sizes) != sorted(set(self.sizes)):
            raise SpecError(f"scale of {self.knob}: sizes must be positive and ascending, got {self.sizes!r}")


def elementwise(model: Callable[[torch.Tensor], torch.Tensor]) -> Scale:
    """The scale of a function of single numbers: on 2¹⁰ to 2²⁰ of them, drawn from N(0, 1).

    >>> elementwise(torch.exp).knob
    'numbers'
    """
    return Scale(
        knob="numbers",
        sizes=(2**10, 2**14, 2**17, 2**20),
        build=lambda _: model,
        inputs=lambda n, g: (torch.randn(n, generator=g),),
    )
