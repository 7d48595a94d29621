"""The inputs to try on a model: the arguments of one call, and the function that draws them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from zoo.errors import SpecError, UnknownNameError

__all__ = ["NAME", "Call", "Case", "NamedInputs", "SpecError", "UnknownNameError"]
NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Call:
    """The arguments of one call: `model(*args, **kwargs)`.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.

    >>> Call((torch.ones(2),), {"dim": 0}).kwargs
    {'dim': 0}
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.args, tuple):
            raise SpecError(f"call: args must be a tuple of arguments, got {self.args!r}")
        if not isinstance(self.kwargs, Mapping) or not all(isinstance(name, str) for name in self.kwargs):
            raise SpecError(f"call: kwargs must map names to arguments, got {self.kwargs!r}")


@dataclass(frozen=True, kw_only=True)
class NamedInputs:
    """The arguments of one call, under a name.

    Attributes:
        name: lower-case identifier, unique within the spec; hyphens are allowed.
        inputs: draws the arguments from the generator it gets. It returns a tuple of positional arguments, or a
            `Call` if the model needs keywords. Tensors are on the CPU.

    >>> NamedInputs(name="one-row", inputs=lambda g: (torch.randn(1, 3, generator=g),)).name
    'one-row'
    """

    _kind: ClassVar[str] = "NamedInputs"

    name: str
    inputs: Callable[[torch.Generator], tuple[Any, ...] | Call]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name.replace("-", "_")):
            raise SpecError(f"{self._kind} name {self.name!r}: want lower-case letters, digits, '-' and '_'")
        if not callable(self.inputs):
            raise SpecError(
                f"{self._kind} {self.name!r}: inputs must be a function of a torch.Generator, got {self.inputs!r}"
            )

    def draw(self, generator: torch.Generator) -> Call:
        """Draw the inputs as a `Call`.

        Args:
            generator: the source of all random numbers, on the CPU.

        Raises:
            TypeError: `generator` is not a torch.Generator.
            SpecError: `inputs` returned neither a tuple nor a `Call`.
        """
        if not isinstance(generator, torch.Generator):
            raise TypeError(f"Case.draw: generator must be a torch.Generator, got {type(generator).__name__}")
        drawn = self.inputs(generator)
        if isinstance(drawn, Call):
            return drawn
        if isinstance(drawn, tuple):
            return Call(drawn)
        raise SpecError(
            f"{self._kind} {self.name!r}: inputs must return a tuple of arguments or a Call, got {type(drawn).__name__}"
        )


@dataclass(frozen=True, kw_only=True)
class Case(NamedInputs):
    """One named set of inputs. Floating ones are rounded before every run to values that float16 and bfloat16 have.

    Attributes:
        name, inputs: see `NamedInputs`.
        independent_samples: row i of every output depends only on row i of every input. The matrix then draws
            more rows and keeps the rows that are away from kinks (relu, max, clamp). At a kink a rounding
            error could flip a unit, and gradients have no single right value.
        first: the arguments of the first draw, where they are given; `inputs` draws the others. None: it draws all.

    >>> case = Case(name="one-row", inputs=lambda g: (torch.randn(1, 3, generator=g),))
    >>> case.draw(torch.Generator().manual_seed(0)).args[0].shape
    torch.Size([1, 3])
    """

    _kind: ClassVar[str] = "case"

    independent_samples: bool = False
    first: Call | None = None
