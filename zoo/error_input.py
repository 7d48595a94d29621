"""An input that a model must refuse: the arguments of one call, and the error that the call must raise."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from zoo.case import Call, NamedInputs, SpecError
from zoo.expect import check_names


@dataclass(frozen=True, kw_only=True)
class ErrorInput(NamedInputs):
    """Arguments that a model must refuse with an error, in every mode.

    Eager must raise this error. Another mode must raise an error; where it raises another one, a run remarks on it.

    Attributes:
        name, inputs: see `NamedInputs`. The arguments are passed on as they are drawn; only tensors on the CPU are
            moved to the device of the cell. A tensor on the device "meta" stays there: on another device than all
            others.
        error: the type of the exception, or a tuple of types.
        match: regular expression that is searched in the message.
        devices: device types on which the call must raise; empty: all. A check that CUDA makes asynchronously raises
            nothing when the call returns.

    >>> ErrorInput(name="scalar", inputs=lambda _: (torch.ones(()),), error=ValueError, match="rank").wanted
    "ValueError matching 'rank'"
    """

    _kind: ClassVar[str] = "ErrorInput"

    name: str
    inputs: Callable[[torch.Generator], tuple[Any, ...] | Call]
    error: type[Exception] | tuple[type[Exception], ...]
    match: str
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"{self._kind} {self.name!r}"
        if not self.errors or not all(isinstance(e, type) and issubclass(e, Exception) for e in self.errors):
            raise SpecError(f"{where}: error must be a type of exception or a tuple of types, got {self.error!r}")
        if not isinstance(self.match, str) or not self.match:
            raise SpecError(f"{where}: match must be a regular expression for the message, got {self.match!r}")
        try:
            re.compile(self.match)
        except re.error as problem:
            raise SpecError(f"{where}: match {self.match!r}: {problem}") from problem
        check_names(f"{where}: devices", self.devices)

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The types of `error` as a tuple."""
        return self.error if isinstance(self.error, tuple) else (self.error,)

    @property
    def wanted(self) -> str:
        """The error that the call must raise, in words."""
        return f"{' or '.join(error.__name__ for error in self.errors)} matching {self.match!r}"

    def describes(self, problem: Exception, message: str) -> bool:
        """Return whether an exception is the error that the call must raise.

        TorchScript raises an error of its own, which quotes type and message of the original.

        Args:
            problem: the exception.
            message: its text.

        >>> scalar = ErrorInput(name="scalar", inputs=lambda _: (torch.ones(()),), error=ValueError, match="rank")
        >>> [scalar.describes(error, str(error)) for error in (ValueError("rank 0"), ValueError(), TypeError("rank 0"))]
        [True, False, False]
        """
        quoted = "|".join(error.__name__ for error in self.errors)
        from_script = isinstance(problem, torch.jit.Error) and re.search(rf"\b({quoted}): ", message)
        return (isinstance(problem, self.errors) or bool(from_script)) and re.search(self.match, message) is not None


INTEGERS = ErrorInput(
    name="integers",
    inputs=lambda _: (torch.ones(4, 6, dtype=torch.int64),),
    error=TypeError,
    match="x must have a floating dtype",
)
