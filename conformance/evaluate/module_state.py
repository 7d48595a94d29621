"""Reads what a call may change of a module apart from its numbers: flags, hooks, and what belongs to it."""

from __future__ import annotations

from typing import Any

import torch

from zoo import internals

REGISTRIES = {
    internals.PARAMETERS: "parameters",
    internals.BUFFERS: "buffers",
    internals.SUBMODULES: "submodules",
    **dict.fromkeys(internals.HOOKS_OF_MODULES, "hooks"),
}


class ModuleState:
    """The state of one module, without its submodules.

    Args:
        name: name of the module in the whole; "" for the whole.
        module: the module. Of a ScriptModule, only what Python sees.
    """

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        self._name, self._module = name or "the model", module
        own = module.__dict__
        self._training = getattr(module, "training", None)  # a frozen ScriptModule has no such flag
        self._registries = {key: dict(own[key]) for key in REGISTRIES if isinstance(own.get(key), dict)}

    def restore(self, kept: tuple[str, ...]) -> dict[str, str]:
        """Put everything back.

        Args:
            kept: declared states. What a first call sets up on purpose stays.

        Returns:
            What had changed, by state.
        """
        changed: dict[str, str] = {}
        if self._training is not None and self._module.training != self._training:
            changed["training"] = f"of {self._name} from {_mode(self._training)} to {_mode(self._module.training)}"
            self._module.training = self._training
        for key, before in self._registries.items():
            state = REGISTRIES[key]
            now = self._module.__dict__[key]
            if state not in kept and not _alike(before, now, by_name=state == "buffers"):
                what = f"{len(now)} hooks, {len(before)} before" if state == "hooks" else _what(before, now)
                changed.setdefault(state, f"of {self._name}: {what}")
                held = {**now} if state == "buffers" else {}
                now.clear()
                now.update({name: held.get(name, old) for name, old in before.items()})
        return changed


def _alike(before: dict[Any, Any], now: dict[Any, Any], *, by_name: bool) -> bool:
    if by_name:  # a buffer may be another tensor after each call; its numbers are compared
        return before.keys() == now.keys()
    return list(before) == list(now) and all(old is new for old, new in zip(before.values(), now.values(), strict=True))


def _what(before: dict[Any, Any], now: dict[Any, Any]) -> str:
    new, gone = (sorted(map(str, a.keys() - b.keys())) for a, b in ((now, before), (before, now)))
    if new or gone:
        return " and ".join([f"{name} is new" for name in new[:1]] + [f"{name} is gone" for name in gone[:1]])
    replaced = [str(name) for name, old in before.items() if now[name] is not old]
    return f"{replaced[0]} is another object" if replaced else "their order"


def _mode(training: bool) -> str:  # noqa: FBT001 -- the value of a flag
    return "train" if training else "eval"
