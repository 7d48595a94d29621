"""The dtype of every module's input and output in one call of a model, under the autocast in which it is called.

Autocast chooses a dtype for each operation, so no line of a model's source says which dtypes are inside. Forward hooks
see what goes into each module and what comes out. The model is called once, and then is as it was before.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parameter import is_lazy

from zoo import internals
from zoo.arguments import want_callables

Dtypes = tuple[torch.dtype, ...]
HEAD = ("module", "type", "parameters", "autocast", "input", "output", "calls", "")


@dataclass(frozen=True, kw_only=True)
class DtypeRow:
    """What one module got and returned; calls that differ in a dtype have a row each.

    Attributes:
        module: the name that `named_modules` gives, "" for the model itself; a module with several names has all of
            them, separated by ", ". For a function: its name.
        kind: name of the class.
        parameters: dtypes of the module's own parameters, without those of its submodules.
        autocast: the dtype of autocast where the module was called, for the accelerator if the call uses one and for
            the CPU if not; None if autocast was off there.
        inputs: dtypes of the tensors among the arguments, in order.
        outputs: dtypes of the tensors in the result, in order; empty too if the call raised an error.
        calls: how often the module was called with these dtypes; 0 if it was never called.

    >>> row = DtypeRow(module="fc", kind="Linear", inputs=(torch.float32,), outputs=(torch.bfloat16,), calls=1)
    >>> row.changes
    True
    """

    module: str
    kind: str
    parameters: Dtypes = ()
    autocast: torch.dtype | None = None
    inputs: Dtypes = ()
    outputs: Dtypes = ()
    calls: int = 0

    @property
    def changes(self) -> bool:
        """Whether an output has a floating or complex dtype that no input has; without such inputs, no parameter."""
        return not _inexact(self.outputs) <= (
            _inexact(self.inputs) or _inexact(self.parameters) or _inexact(self.outputs)
        )


@dataclass(frozen=True)
class DtypeTrace:
    """The rows of one call; `str` makes a table of them.

    Attributes:
        rows: in the order of the calls, which is from the outside in; modules without a call are last.

    >>> DtypeTrace((DtypeRow(module="fc", kind="Linear", calls=2),)).rows[0].calls
    2
    """

    rows: tuple[DtypeRow, ...]

    def __str__(self) -> str:
        """Return the table; its last column says where a dtype changes, and which module is not called."""
        import tabulate  # noqa: PLC0415 -- the zoo imports without it

        body = [
            (
                row.module or "(model)",
                row.kind,
                _words(row.parameters),
                _words(() if row.autocast is None else (row.autocast,)) or ("off" if row.calls else ""),
                _words(row.inputs),
                _words(row.outputs),
                row.calls,
                "changes" if row.changes else "" if row.calls else "not called",
            )
            for row in self.rows
        ]
        return tabulate.tabulate(body, HEAD, tablefmt="simple", disable_numparse=True)


def trace_dtypes(model: Callable[..., Any], /, *inputs: Any, **kwargs: Any) -> DtypeTrace:
    """Call a model once, and list the dtypes that go into each of its modules and come out.

    Call it under the autocast of interest. It shows modules, not single operations; a function is one row, whatever it
    calls. So is a ScriptModule, because TorchScript runs no hooks inside; if it is part of another module, its keyword
    arguments are not seen.

    Afterwards the model is as it was, also after an error: its hooks, training mode, buffers, and whatever else forward
    assigns to its modules. So are the random generators of Python and torch, and autocast's cache of weights. What
    forward does to parameters in place, and to anything outside the model, remains.

    Args:
        model: a module or a function. It must not be compiled.
        inputs: the arguments of `model`.
        kwargs: its keyword arguments.

    Returns:
        The rows; print them for a table.

    Raises:
        TypeError: `model` is not callable.
        ValueError: `model` has a compiled part, or a lazy module whose parameters do not exist yet.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     trace = trace_dtypes(model, torch.ones(1, 4))
    >>> print(trace)
    module    type        parameters    autocast    input     output    calls
    --------  ----------  ------------  ----------  --------  --------  -------  -------
    (model)   Sequential                bfloat16    float32   bfloat16  1        changes
    0         Linear      float32       bfloat16    float32   bfloat16  1        changes
    1         LayerNorm   float32       bfloat16    bfloat16  bfloat16  1
    2         Linear      float32       bfloat16    bfloat16  bfloat16  1
    >>> [row.module for row in trace.rows if row.changes]
    ['', '0']
    """
    want_callables("trace_dtypes", model=model)
    parts: dict[int, tuple[Any, list[str]]] = {}
    _find(model, "" if isinstance(model, nn.Module) else getattr(model, "__name__", ""), parts)
    modules = [part for part, _ in parts.values() if isinstance(part, nn.Module)]
    recorder = _Recorder(_devices((inputs, kwargs), modules))
    with _as_found(modules, recorder.devices), recorder.watching([m for m in modules if m is not model]):
        recorder.enter(model, inputs, kwargs)
        recorder.leave(model, model(*inputs, **kwargs))
    return DtypeTrace(tuple(_rows(parts, recorder.calls)))


def _find(part: Any, name: str, parts: dict[int, tuple[Any, list[str]]]) -> None:
    """Add a model and its modules with all their names; what is inside a ScriptModule cannot be watched."""
    parts.setdefault(id(part), (part, []))[1].append(name)
    if not isinstance(part, nn.Module) or isinstance(part, torch.jit.ScriptModule):
        return
    where = f"trace_dtypes: {name or 'model'}"
    if internals.compiled_call_of(part) is not None or internals.COMPILED_MODULE in internals.submodules_of(part):
        raise ValueError(f"{where} must not be compiled, because hooks do not run in compiled code")
    if any(map(is_lazy, [*part.parameters(recurse=False), *part.buffers(recurse=False)])):
        raise ValueError(
            f"{where} must have its parameters, got a lazy {type(part).__name__}: call the model once before"
        )
    for child_name, child in internals.submodules_of(part).items():  # named_modules would drop second names
        if child is not None:
            _find(child, f"{name}.{child_name}" if name else child_name, parts)


def _devices(arguments: Any, modules: list[nn.Module]) -> list[torch.device]:
    """Return the devices of the arguments and of the modules; the CPU if there are none."""
    tensors = [leaf for leaf in internals.tree_leaves(arguments) if isinstance(leaf, Tensor)]
    for module in modules:
        tensors += [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return list(dict.fromkeys(tensor.device for tensor in tensors)) or [torch.device("cpu")]


@dataclass
class _Call:
    """One call of a part of the model."""

    part: Any
    autocast: torch.dtype | None
    inputs: Dtypes
    outputs: Dtypes = ()


class _Recorder:
    """Records the calls in their order; a call that raises an error has no outputs."""

    def __init__(self, devices: list[torch.device]) -> None:
        self.devices = devices
        self._kind = next((device.type for device in devices if device.type != "cpu"), "cpu")
        self.calls: list[_Call] = []
        self._open: list[_Call] = []

    def enter(self, part: Any, args: Any, kwargs: Any) -> None:
        on = torch.amp.is_autocast_available(self._kind) and torch.is_autocast_enabled(self._kind)
        call = _Call(part, torch.get_autocast_dtype(self._kind) if on else None, _dtypes((args, kwargs)))
        self.calls.append(call)
        self._open.append(call)

    def leave(self, part: Any, output: Any) -> None:
        while (call := self._open.pop()).part is not part:
            pass  # this call raised an error, which the model caught
        call.outputs = _dtypes(output)

    @contextmanager
    def watching(self, modules: list[nn.Module]) -> Iterator[None]:
        """Watch the calls of modules with hooks: their own, or global ones for ScriptModules, which have none."""
        scripts = {id(module) for module in modules if isinstance(module, torch.jit.ScriptModule)}
        with ExitStack() as stack:
            for module in modules:
                if id(module) not in scripts:
                    stack.enter_context(module.register_forward_pre_hook(self.enter, with_kwargs=True))
                    stack.enter_context(module.register_forward_hook(lambda part, _, output: self.leave(part, output)))
            if scripts:
                stack.enter_context(
                    register_module_forward_pre_hook(
                        lambda part, args: self.enter(part, args, {}) if id(part) in scripts else None
                    )
                )
                stack.enter_context(
                    register_module_forward_hook(
                        lambda part, _, output: self.leave(part, output) if id(part) in scripts else None
                    )
                )
            yield


@contextmanager
def _as_found(modules: list[nn.Module], devices: list[torch.device]) -> Iterator[None]:
    """Put back what a call changes in the modules, the random generators, and autocast's cache of weights."""
    plain = [module for module in modules if not isinstance(module, torch.jit.ScriptModule)]
    attributes = [(module.__dict__, dict(module.__dict__)) for module in plain]
    held = [value for _, found in attributes for value in found.values()]
    containers = [(value, copy(value)) for value in held if isinstance(value, (dict, list))]
    tensors = [buffer for module in modules for buffer in module.buffers(recurse=module not in plain)]
    tensors += [value for value in held if isinstance(value, Tensor)]
    contents = [(tensor, tensor.detach().clone()) for tensor in tensors if _comparable(tensor)]
    python, cache = random.getstate(), torch.is_autocast_cache_enabled()
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for device in devices:
            if device.type not in ("cpu", "meta"):
                stack.enter_context(torch.random.fork_rng(devices=[device], device_type=device.type))
        # a later call in the same autocast would get weights from the cache, even if they have changed since
        torch.set_autocast_cache_enabled(False)
        try:
            yield
        finally:
            torch.set_autocast_cache_enabled(cache)
            random.setstate(python)
            for now, found in attributes:
                now.clear()
                now.update(found)
            for container, content in containers:
                container.clear()
                (container.update if isinstance(container, dict) else container.extend)(content)
            with torch.no_grad():
                for tensor, before in contents:
                    if not torch.equal(tensor, before):
                        tensor.copy_(before)


def _rows(parts: dict[int, tuple[Any, list[str]]], calls: list[_Call]) -> Iterator[DtypeRow]:
    """Count equal calls of a part; a part without a call comes last, unless it has no forward to call."""
    counts = Counter((id(call.part), call.autocast, call.inputs, call.outputs) for call in calls)
    called = {id(call.part) for call in calls}
    for key, (part, _) in parts.items():
        if key not in called and type(part).forward is not nn.Module.forward:
            counts[key, None, (), ()] = 0
    for (key, autocast, inputs, outputs), count in counts.items():
        part, names = parts[key]
        script = isinstance(part, torch.jit.ScriptModule)
        own = part.parameters(recurse=script) if isinstance(part, nn.Module) else ()
        yield DtypeRow(
            module=", ".join(names),
            kind=f"{part.original_name} (scripted)" if script else type(part).__name__,
            parameters=tuple(dict.fromkeys(parameter.dtype for parameter in own)),
            autocast=autocast,
            inputs=inputs,
            outputs=outputs,
            calls=count,
        )


def _dtypes(tree: Any) -> Dtypes:
    return tuple(leaf.dtype for leaf in internals.tree_leaves(tree) if isinstance(leaf, Tensor))


def _comparable(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_meta


def _inexact(dtypes: Dtypes) -> set[torch.dtype]:
    return {dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex}


def _words(dtypes: Dtypes) -> str:
    """Return each dtype once, in order: (float32, int64, float32) is "float32, int64"."""
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dict.fromkeys(dtypes))
