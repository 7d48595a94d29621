"""Forgets what calls have left in a module: new or other attributes, late buffers, and what lists and dicts hold.

A model may compute a table in its first call and keep it. If its weights change, or the roundings of the oracle, it has
to compute the table again.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from zoo import internals


class ModuleMemory:
    """What a module and its parts hold.

    Args:
        owner: a module before its first call, or a plain function, which holds nothing.
    """

    def __init__(self, owner: Any) -> None:
        modules = owner.modules() if isinstance(owner, torch.nn.Module) else ()
        self._held: list[tuple[Any, Any]] = []
        for module in modules:
            if not isinstance(module, torch.jit.ScriptModule):
                own = vars(module)
                checked = internals.BACKWARD_HOOKS  # a check may hold these
                held = [value for name, value in own.items() if name not in checked]
                self._held += [_copied(value) for value in (own, *held) if isinstance(value, (dict, list))]

    def restore(self) -> None:
        """Put everything back that is not a number of a tensor."""
        for held, before in self._held:
            if isinstance(held, list):
                if len(held) != len(before) or any(map(operator.is_not, held, before)):
                    held[:] = before
            elif held.keys() != before.keys() or any(held[name] is not value for name, value in before.items()):
                held.clear()
                held.update(before)


def _copied(held: Any) -> tuple[Any, Any]:
    return held, list(held) if isinstance(held, list) else dict(held)
