"""Watches what calls change apart from their results, in the process, a module and its leaves, and puts it back."""

import contextlib
import hashlib
import locale
import os
import random
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from conformance.gates.distance import same_bytes
from zoo import internals

_PRODUCTS = tuple((backend, op) for backend in ("cuda", "mkldnn") for op in ("matmul", "conv", "rnn"))
_CUDNN = ("deterministic", "benchmark", "enabled")
_BACKENDS = {
    "mkldnn": "mkldnn",
    "flash attention": "flash_attention",
    "math attention": "math_attention",
    "memory-efficient attention": "frugal_attention",
    "cudnn attention": "cudnn_attention",
}  # what follows `get_` and `set_` in `zoo.internals`
DRAWS = "random generator"  # its word in `zoo.states.STATES`
_GUARDS: list[Any] = []  # what switches inference mode off again, for the life of the process


@dataclass(frozen=True)
class Switch:
    """A switch of the process, by its word in `zoo.states.STATES`; `==` compares its values.

    What the first import of a module changes is no work of the call that imports it: `import numpy` adds filters of
    warnings, which are kept, and code that GCC 12 made with `-ffast-math`, as Inductor of torch 2.4 does, flushes
    denormal numbers, which is undone.
    """

    state: str
    read: Callable[[], Any]
    put: Callable[[Any], object]
    when_imported: str = "noted"  # like any change; or "kept", or "undone"


def _put_inference_mode(enabled: bool) -> None:  # noqa: FBT001 -- a value that was read
    _GUARDS.append(internals.InferenceMode(enabled))  # nothing else ends it


def _autocast() -> dict[str, Any]:
    devices = ("cpu", "cuda") if torch.cuda.is_initialized() else ("cpu",)
    found: dict[str, Any] = {d: (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices}
    return found | {"cache": torch.is_autocast_cache_enabled()}


def _put_autocast(value: dict[str, Any]) -> None:
    for device, (enabled, dtype) in ((d, v) for d, v in value.items() if d != "cache"):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(value["cache"])


def _products() -> dict[str, Any]:
    """The precision of float32 products. torch keeps it twice, and refuses to read the older form if they differ."""
    found: dict[str, Any] = {}
    with contextlib.suppress(RuntimeError):
        found = {"float32": torch.get_float32_matmul_precision(), "cudnn tf32": torch.backends.cudnn.allow_tf32}
    if hasattr(internals, "get_fp32_precision"):
        found |= {f"{backend} {op}": internals.get_fp32_precision(backend, op) for backend, op in _PRODUCTS}
    return found


def _put_products(value: dict[str, Any]) -> None:
    if "float32" in value:
        torch.set_float32_matmul_precision(value["float32"])
        torch.backends.cudnn.allow_tf32 = value["cudnn tf32"]
    if hasattr(internals, "get_fp32_precision"):
        for backend, op in _PRODUCTS:
            internals.set_fp32_precision(backend, op, value[f"{backend} {op}"])


def _determinism() -> dict[str, Any]:
    return {
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "filling of new memory": internals.get_filling(),
        **{f"cudnn.{name}": getattr(torch.backends.cudnn, name) for name in _CUDNN},
    }


def _put_determinism(value: dict[str, Any]) -> None:
    torch.use_deterministic_algorithms(value["algorithms"], warn_only=value["warn only"])
    internals.set_filling(value["filling of new memory"])
    for name in _CUDNN:
        setattr(torch.backends.cudnn, name, value[f"cudnn.{name}"])


def _backends() -> dict[str, bool]:
    return {name: getattr(internals, f"get_{switch}")() for name, switch in _BACKENDS.items()}


def _put_backends(value: dict[str, bool]) -> None:
    for name, enabled in value.items():
        getattr(internals, f"set_{_BACKENDS[name]}")(enabled)


def _saving() -> tuple[Any, ...]:
    """The innermost functions that `torch.autograd.graph.saved_tensors_hooks` has set."""
    return (internals.get_saving_hooks(False) or ()) if hasattr(internals, "get_saving_hooks") else ()


def _put_saving(value: tuple[Any, ...]) -> None:
    while _saving() and _saving() != value:
        internals.pop_saving_hooks()
    if value and not _saving():
        internals.push_saving_hooks(*value)


class _Stack:
    """The modes that are on, innermost last, without the one that `torch.set_default_device` puts there."""

    def __init__(self, kind: str) -> None:
        self._kind = kind  # "function" or "dispatch", as in the names of `zoo.internals`

    def read(self) -> tuple[Any, ...]:
        """The modes; `==` compares them by identity."""
        length = getattr(internals, f"count_{self._kind}_modes")()
        modes = map(getattr(internals, f"get_{self._kind}_mode"), range(length))
        return tuple(mode for mode in modes if type(mode).__name__ != "DeviceContext")

    def put(self, value: tuple[Any, ...]) -> None:
        """Switch off what was switched on since, and on again what was switched off."""
        kept = 0
        now = self.read()
        while kept < min(len(now), len(value)) and now[kept] is value[kept]:
            kept += 1
        for _ in now[kept:]:
            getattr(internals, f"pop_{self._kind}_mode")()
        for mode in value[kept:]:
            getattr(internals, f"push_{self._kind}_mode")(mode)


def _multithreading() -> bool:
    return bool(internals.is_multithreading_enabled())


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


_TINY = sys.float_info.min


def _flushes() -> bool:
    """Whether the processor takes numbers near zero for zero; torch can set that, and not tell."""
    return _TINY * 0.5 == 0.0


def _put_warnings(value: tuple[Any, ...]) -> None:
    warnings.resetwarnings()  # it also makes Python read the filters anew
    warnings.filters[:] = value  # type: ignore[index]


def _environment() -> dict[bytes, bytes]:
    """The variables, read where `cache.sources` does not note that somebody asks for them."""
    return dict(vars(os.environ)["_data"])


def _put_environment(value: dict[bytes, bytes]) -> None:
    for name in os.environb.keys() - value.keys():
        del os.environb[name]
    os.environb.update(value)


def _folder() -> str:
    with contextlib.suppress(FileNotFoundError):
        return str(Path.cwd())
    return ""  # it is gone


def _put_folder(value: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.chdir(value)


_FUNCTIONS, _DISPATCH = _Stack("function"), _Stack("dispatch")

SWITCHES = (
    Switch("inference mode", torch.is_inference_mode_enabled, _put_inference_mode),  # it carries grad mode along
    Switch("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    Switch("default device", internals.default_device, torch.set_default_device),  # before the modes: it is one of them
    Switch("modes", _FUNCTIONS.read, _FUNCTIONS.put),
    Switch("modes", _DISPATCH.read, _DISPATCH.put),
    Switch("default dtype", torch.get_default_dtype, torch.set_default_dtype),
    Switch("autocast", _autocast, _put_autocast),
    Switch("matmul precision", _products, _put_products),
    Switch("determinism", _determinism, _put_determinism),
    Switch("threads", torch.get_num_threads, torch.set_num_threads),
    Switch("threads", _multithreading, torch.autograd.set_multithreading_enabled),
    Switch("backends", _backends, _put_backends),
    Switch("hooks", _saving, _put_saving),
    Switch("anomaly mode", _anomaly, lambda value: torch.set_anomaly_enabled(*value)),
    Switch("denormal numbers", _flushes, torch.set_flush_denormal, "undone"),
    Switch("warning filters", lambda: tuple(warnings.filters), _put_warnings, "kept"),
    Switch("environment variables", _environment, _put_environment, "kept"),
    Switch("locale", lambda: locale.setlocale(locale.LC_ALL), lambda value: locale.setlocale(locale.LC_ALL, value)),
    Switch("working folder", _folder, _put_folder),
    Switch("recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
)


def read() -> list[Any]:
    """The number of modules, and the value of each of `SWITCHES`."""
    return [len(sys.modules), *(switch.read() for switch in SWITCHES)]


def restore(before: list[Any]) -> dict[str, str]:
    """Put the switches back to what `read` returned, and say by state what had changed, as in "from on to off"."""
    changed: dict[str, str] = {}
    imported = len(sys.modules) > before[0]
    for switch, old in zip(SWITCHES, before[1:], strict=True):
        new = switch.read()
        fate = switch.when_imported if imported else "noted"
        if new == old or fate == "kept":
            continue
        if fate == "noted":
            changed.setdefault(switch.state, _difference(old, new))
        switch.put(old)
    return changed


@contextlib.contextmanager
def keep_switches() -> Iterator[None]:
    """A context that puts the switches back at its end."""
    before = read()
    try:
        yield
    finally:
        restore(before)


def seed_draws(declared: Collection[str], owner: Any) -> None:
    """Seed all random generators, if it is declared that a call draws: so every call draws the same numbers."""
    if DRAWS not in declared:
        return
    torch.manual_seed(0)
    random.seed(0)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(0)  # its generators may be loaded only now, at their first use
    for generator in _generators_of(owner):
        generator.manual_seed(0)


def after_draws(declared: Collection[str], owner: Any) -> str:
    """What tells the state of torch's generator and of a model's own from others; "" if no draws are declared."""
    if DRAWS not in declared:
        return ""
    states = [torch.get_rng_state(), *(generator.get_state() for generator in _generators_of(owner))]
    return hashlib.blake2b(b"".join(map(_bytes, states)), digest_size=8).hexdigest()


def random_state(owner: Any) -> dict[str, Any]:
    """The state of each random generator that is in use, by whose it is; `==` compares them."""
    states: dict[str, Any] = {"torch's": _bytes(torch.get_rng_state()), "Python's": random.getstate()}
    if generators := _generators_of(owner):
        states["its own"] = [_bytes(generator.get_state()) for generator in generators]
    if torch.cuda.is_initialized():
        states["CUDA's"] = _bytes(torch.cuda.get_rng_state())
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        state = numpy.get_state(legacy=False)
        inner = {
            name: value.tobytes() if hasattr(value, "tobytes") else value for name, value in state["state"].items()
        }
        states["NumPy's"] = {**state, "state": inner}
    return states


def _generators_of(owner: Any) -> list[torch.Generator]:
    """The generators that a module and its parts hold as attributes."""
    modules = owner.modules() if isinstance(owner, torch.nn.Module) else ()
    return [value for module in modules for value in vars(module).values() if isinstance(value, torch.Generator)]


def _bytes(state: torch.Tensor) -> bytes:
    return bytes(state.tolist())  # reading its storage takes 20 ms


def _difference(old: Any, new: Any) -> str:
    if isinstance(old, dict):
        name = next(key for key in {**old, **new} if old.get(key) != new.get(key))
        return f"of {_show(name)} {_difference(old.get(name), new.get(name))}"
    return f"from {_show(old)} to {_show(new)}"


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(_show(v) for v in value) or "none"
    if isinstance(value, bytes):
        return os.fsdecode(value)
    return str(value) if isinstance(value, (str, int, torch.dtype, type(None))) else type(value).__name__


@dataclass(frozen=True)
class Change:
    """Something that a call changed and should not have."""

    subject: str  # name of an input or a parameter, or a word of `zoo.states.STATES`
    text: str  # what happened to it


class Watch:
    """Puts back what the phases of a call change, and notes it in `changes`, in order, if `noted`.

    `may_change` has names of inputs and parameters that the call may write, and words of `zoo.states.STATES`.
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
        switches = read()
        if phase != "backward":
            seed_draws(self._may_change, self._owner)
        drawn = random_state(self._owner) if self._noted else {}
        parts = self._owner.named_modules() if isinstance(self._owner, torch.nn.Module) else ()
        modules = [ModuleState(name, module) for name, module in parts]
        with internals.DisableTorchFunction():  # a look at a tensor is no work of the model
            for leaf in self._leaves:
                leaf.begin()
        try:
            yield
        finally:
            changed = restore(switches)
            for module in modules:
                changed = module.restore(self._may_change) | changed
            with internals.DisableTorchFunction():
                self._note(phase, changed, drawn)

    def _note(self, phase: str, changed: dict[str, str], drawn: dict[str, Any]) -> None:
        found = [Change(leaf.name, text) for leaf in self._leaves for text in [leaf.finish(phase)] if text]
        for state in ("gradients", "requires_grad", "hooks"):
            for leaf in self._leaves:
                if text := leaf.restore(state, kept=state in self._may_change):
                    changed.setdefault(state, text)
        if not self._noted:
            return
        now = random_state(self._owner)
        if touched := [whose for whose, state in drawn.items() if now[whose] != state]:
            changed[DRAWS] = f"by drawing from {touched[0]}, or seeding it"
        undeclared = {state: text for state, text in changed.items() if state not in self._may_change}
        self.changes += [*found, *(Change(state, f"{phase} changed it {text}") for state, text in undeclared.items())]


class _Leaf:
    """An input or a parameter, and what may change of it."""

    def __init__(self, name: str, leaf: torch.Tensor, *, noted: bool) -> None:
        self.name, self._leaf = name, leaf
        self._content = leaf.detach().clone() if noted else None

    def begin(self) -> None:
        leaf = self._leaf
        self._version = _version_of(leaf)
        self._gradient = leaf.grad if leaf.is_leaf else None
        self._requires_grad = leaf.requires_grad
        self._hooks = dict(internals.hooks_of(leaf) or {})

    def finish(self, phase: str) -> str:
        """What happened to the content; "" for nothing, or if it is not noted."""
        leaf = self._leaf
        if self._content is None:
            return ""
        same = _version_of(leaf) == self._version
        if not same_bytes(self._content, leaf):
            self._content = leaf.detach().clone()
            return f"changed in {phase}, undeclared{', where autograd does not see it, as by .data' * same}"
        return "" if same else f"written in {phase}, undeclared, though with the same bytes"

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


def _version_of(leaf: torch.Tensor) -> int:
    return 0 if leaf.is_inference() else internals.version_of(leaf)


# Reads what a call may change of a module apart from its numbers: flags, hooks, and what belongs to it.

REGISTRIES = {
    internals.PARAMETERS: "parameters",
    internals.BUFFERS: "buffers",
    internals.SUBMODULES: "submodules",
    **dict.fromkeys(internals.HOOKS_OF_MODULES, "hooks"),
}


class ModuleState:
    """The state of one module, without its submodules. Of a ScriptModule, only what Python sees."""

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        self._name, self._module = name or "the model", module
        own = module.__dict__
        self._training = getattr(module, "training", None)  # a frozen ScriptModule has no such flag
        self._registries = {key: dict(own[key]) for key in REGISTRIES if isinstance(own.get(key), dict)}

    def restore(self, kept: tuple[str, ...]) -> dict[str, str]:
        """Put everything back but declared states, and say by state what had changed.

        What a first call sets up on purpose stays.
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
