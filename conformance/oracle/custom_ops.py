"""Defines a dispatch mode that sees the ops inside operators written in Python, which torch dispatches as one op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._library.custom_ops import OPDEFS  # there is no public way from an operator to its definition
from torch.utils._python_dispatch import TorchDispatchMode


class OpMode(TorchDispatchMode):
    """Base of the modes that watch or change ops. A subclass defines `run_op`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op, and return its result."""
        return func(*args, **kwargs)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        inner = _implementation(func)
        if inner is None:
            return self.run_op(func, args, kwargs or {})
        with self:
            return inner(*args, **(kwargs or {}))


def _implementation(func: Any) -> Callable[..., Any] | None:
    """The Python function of an operator of `torch.library.custom_op`; None for other operators."""
    definition = OPDEFS.get(func._schema.name)  # noqa: SLF001 -- the public handle on an op's name
    return getattr(definition, "_init_fn", None)
