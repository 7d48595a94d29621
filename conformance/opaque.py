"""Looks into operators written in Python, which a dispatch mode sees as one op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._library.custom_ops import OPDEFS  # there is no public way from an operator to its definition


def implementation(func: Any) -> Callable[..., Any] | None:
    """The function behind an operator of `torch.library.custom_op`; None for every other.

    A mode that watches or changes what the ops inside do calls it under itself.
    """
    definition = OPDEFS.get(func._schema.name)  # noqa: SLF001 -- the public handle on an op's name
    return getattr(definition, "_init_fn", None)
