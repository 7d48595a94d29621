"""Watches forward and backward: what each changes apart from its results, which is then put back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from conformance.evaluate import process_state
from conformance.gates.distance import same_bytes
from zoo import internals


@dataclass(frozen=True)
class Change:
    """Something that a call changed and should not have.

    Attributes:
        subject: name of an input or a parameter, or a word of `zoo.states.STATES`.
        text: what happened to it.
    """

    subject: str
    text: str


class Watch:
    """Puts back what the phases of a call change, and notes it.

    Args:
        owner: the module that is called, or a plain function.
        leaves: inputs and parameters by name.
        may_change: names of inputs and parameters that the call may write, and words of `zoo.states.STATES`.
        noted: note the changes; otherwise they are only put back.

    Attributes:
        changes: what was noted, in order.
    """

    def __init__(
        self, owner: Any, leaves: Mapping[str, torch.Tensor], may_change: tuple[str, ...], *, noted: bool
    ) -> None:
        self.changes: list[Change] = []
        self._owner, self._may_change, self._noted = owner, may_change, noted
        self._leaves = [_Leaf(name, leaf, noted=noted) for name, leaf in leaves.items() if name not in may_change]

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """A context for one phase, "forward", "backward" or "training"."""
        switches = process_state.read()
        if phase != "backward":
            process_state.seed_draws(self._may_change, self._owner)
        drawn = process_state.random_state(self._owner) if self._noted else {}
        modules = self._modules()
        with internals.DisableTorchFunction():  # a look at a tensor is no work of the model
            for leaf in self._leaves:
                leaf.begin()
        try:
            yield
        finally:
            changed = process_state.restore(switches)
            for module in modules:
                changed = module.restore(self._may_change) | changed
            with internals.DisableTorchFunction():
                self._note(phase, changed, drawn)

    def _modules(self) -> list[ModuleState]:
        if not isinstance(self._owner, torch.nn.Module):
            return []
        return [ModuleState(name, module) for name, module in self._owner.named_modules()]

    def _note(self, phase: str, changed: dict[str, str], drawn: dict[str, Any]) -> None:
        found = [Change(leaf.name, text) for leaf in self._leaves for text in [leaf.finish(phase)] if text]
        for state in ("gradients", "requires_grad", "hooks"):
            for leaf in self._leaves:
                text = leaf.restore(state, kept=state in self._may_change)
                if text:
                    changed.setdefault(state, text)
        if not self._noted:
            return
        now = process_state.random_state(self._owner)
        touched = [whose for whose, state in drawn.items() if now[whose] != state]
        if touched:
            changed[process_state.DRAWS] = f"by drawing from {touched[0]}, or seeding it"
        undeclared = {state: text for state, text in changed.items() if state not in self._may_change}
        self.changes += [*found, *(Change(state, f"{phase} changed it {text}") for state, text in undeclared.items())]


class _Leaf:
    """An input or a parameter, and what may change of it."""

    def __init__(self, name: str, leaf: torch.Tensor, *, noted: bool) -> None:
        self.name, self._leaf = name, leaf
        self._content = leaf.detach().clone() if noted else None

    def begin(self) -> None:
        leaf = self._leaf
        self._version = 0 if leaf.is_inference() else internals.version_of(leaf)
        self._gradient = leaf.grad if leaf.is_leaf else None
        self._requires_grad = leaf.requires_grad
        self._hooks = dict(internals.hooks_of(leaf) or {})

    def finish(self, phase: str) -> str:
        """What happened to the content; "" for nothing, or if it is not noted."""
        leaf = self._leaf
        if self._content is None:
            return ""
        if not same_bytes(self._content, leaf):
            self._content = leaf.detach().clone()
            return f"changed in {phase}, undeclared"
        version = 0 if leaf.is_inference() else internals.version_of(leaf)
        return f"written in {phase}, undeclared, though with the same bytes" if version != self._version else ""

    def restore(self, state: str, *, kept: bool) -> str:
        """Put one state back, and say what had changed; "" for nothing. Hooks that are `kept` stay."""
        leaf, text = self._leaf, ""
        if state == "gradients" and leaf.is_leaf and leaf.grad is not self._gradient:
            leaf.grad, text = self._gradient, f"of {self.name}: .grad is another"
        elif state == "requires_grad" and leaf.is_leaf and leaf.requires_grad != self._requires_grad:
            text = f"of {self.name} to {leaf.requires_grad}"
            leaf.requires_grad_(self._requires_grad)
        elif state == "hooks" and not kept:
            hooks = internals.hooks_of(leaf) or {}
            if hooks.keys() != self._hooks.keys():
                text = f"of {self.name}: {len(hooks)} hooks, {len(self._hooks)} before"
                for key in hooks.keys() - self._hooks.keys():
                    del hooks[key]
        return text


# Reads what a call may change of a module apart from its numbers: flags, hooks, and what belongs to it.

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
