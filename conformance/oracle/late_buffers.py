"""Takes away the buffers that calls have made, such as tables that the first call keeps for later ones."""

from __future__ import annotations

from typing import Any

import torch


class LateBuffers:
    """The buffers that a module lacks at first.

    Args:
        owner: a module before its first call, or a plain function.
    """

    def __init__(self, owner: Any) -> None:
        modules = owner.modules() if isinstance(owner, torch.nn.Module) else ()
        own = [module for module in modules if not isinstance(module, torch.jit.ScriptModule)]
        self._before = [(module, dict(module._buffers)) for module in own]  # noqa: SLF001 -- with those that are None

    def remove(self) -> None:
        """Remove them, or set them to None if they were; the next call makes them again."""
        for module, before in self._before:
            now = module._buffers  # noqa: SLF001 -- setting the attribute may run the model's code
            for name in [*now]:
                if name not in before:
                    del now[name]
                elif before[name] is None:
                    now[name] = None
