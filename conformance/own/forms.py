"""Tells what a thing is (module, class, function, operator …), and builds its eager and its scripted form."""

import inspect
import linecache
import typing
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from conformance import axes, errors
from conformance.errors import UsageError
from conformance.float64.copies import EMPTY, copy_model, global_modules, reachable
from zoo import Call, Case, internals

OF_SCRIPTS = tuple(name for name, mode in axes.MODES.items() if mode.prepare is None and name != "scripted")
OF_PROGRAMS = ("scripted", "fp16", "bf16")  # the dtypes are written into the program


@dataclass(frozen=True)
class Forms:
    """A model in the forms that a spec needs.

    `kind` says what it is. `build` returns the eager form, and `scripted` the scripted one; without it, that is what
    `torch.jit.script` makes of the eager one. The model does not exist in the built-in modes and precisions `without`.
    `taken` tells a report how it was taken, if not as it is.
    """

    kind: str
    build: Callable[[], Any]
    scripted: Callable[[], Any] | None = None
    without: tuple[str, ...] = ()
    taken: str = ""


def forms_of(fetch: Callable[[], Any], case: Case) -> Forms:  # noqa: PLR0911 -- one for each kind
    """The forms of a thing; a wrapper has names and types of the case. UsageError if it cannot be called or built."""
    thing = fetch()
    if unwrap(thing) is not thing:
        around = f"the {type(thing).__name__}" if isinstance(thing, WRAPPERS) else "torch.compile"
        return replace(forms_of(lambda: unwrap(fetch()), case), taken=f"it is judged without {around} around it")
    if isinstance(thing, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        return Forms("TorchScript", fetch, fetch, OF_SCRIPTS)
    if isinstance(thing, torch.export.ExportedProgram):
        return Forms("an exported program", lambda: fetch().module(), without=OF_PROGRAMS)
    if isinstance(thing, nn.Module):
        return Forms(f"a module {type(thing).__name__}", lambda: copy_model(fetch()))
    if isinstance(thing, type):
        return _of_class(thing, case)
    if is_operator(thing) or inspect.isbuiltin(thing):
        called = getattr(thing, "overloadpacket", thing)  # TorchScript takes no overload; it chooses one by the types
        return Forms("an operator", lambda: wrap(called, case))
    if not callable(thing):
        raise UsageError(f"a {type(thing).__name__} is no model; want a module, a class, a function or an operator")
    return Forms(f"the module that {thing.__name__} builds", thing) if _builds(thing) else _of_callable(fetch, thing)


def _of_callable(fetch: Callable[[], Any], thing: Callable[..., Any]) -> Forms:
    """The forms of a function, and of what owns modules and is none."""
    if inspect.ismethod(thing) and isinstance(thing.__self__, nn.Module):
        of = type(thing.__self__).__name__
        return Forms(f"the method {thing.__name__} of a module {of}", lambda: _as_forward(fetch()))
    if owned := owned_modules(thing):
        names = errors.some([f"{name}, a {type(module).__name__}" for name, module in owned.items()], 3)
        taken = f"it owns {names}"
        return Forms("a callable with modules", lambda: copy_model(Owner(fetch())), without=("scripted",), taken=taken)
    return Forms("a function", lambda: thing)


# Finds the modules behind a callable, whose weights are the model's.

WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def unwrap(thing: Any) -> Any:
    """What is inside the wrappers of torch.compile and of data parallelism."""
    while True:
        if isinstance(thing, WRAPPERS):
            thing = thing.module
        elif isinstance(thing, nn.Module) and internals.COMPILED_MODULE in vars(thing)[internals.SUBMODULES]:
            thing = getattr(thing, internals.COMPILED_MODULE)
        elif _is_compiled(thing):
            thing = getattr(thing, internals.COMPILED_FUNCTION)
        else:
            return thing


def _is_compiled(thing: Any) -> bool:
    """Whether a function is what `torch.compile` returns; what it is told to leave to eager has the same mark."""
    marked = not isinstance(thing, nn.Module) and callable(getattr(thing, internals.COMPILED_FUNCTION, None))
    return marked and not getattr(thing, internals.LEFT_TO_EAGER, False)


def _as_forward(method: Any) -> nn.Module:
    """A copy of the module of a bound method, whose forward is the method."""
    module = copy_model(method.__self__)
    module.forward = MethodType(method.__func__, module)
    return module


def owned_modules(thing: Any) -> dict[str, nn.Module]:
    """The modules that a callable reaches by its closure, globals, defaults, arguments or attributes, by name."""
    named: dict[int, tuple[str, nn.Module]] = {}
    for part in reachable(thing):
        names = _names_in(part)
        found = [*names.items(), *(("module", inner) for value in names.values() for inner in reachable(value))]
        for name, module in (*found, ("module", part)):
            if isinstance(module, nn.Module) and id(module) not in named:
                taken = sum(other.rstrip("0123456789") == name for other, _ in named.values())
                named[id(module)] = f"{name}{taken or ''}", module
    return dict(named.values())


def _names_in(part: Any) -> dict[str, Any]:
    """What a function names from outside, or an object by its attributes."""
    if isinstance(part, FunctionType):
        cells = zip(part.__code__.co_freevars, part.__closure__ or (), strict=True)
        return {name: cell.cell_contents for name, cell in cells if cell != EMPTY} | global_modules(part)
    unnamed = isinstance(part, (nn.Module, type, ModuleType, MethodType, partial))
    return {} if unnamed else dict(getattr(part, "__dict__", {}))


class Owner(nn.Module):
    """A module whose forward is a callable, and whose parts are the modules that the callable reaches."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        for name, module in owned_modules(function).items():
            self.add_module(name, module)
        self.forward = function


def _of_class(thing: type, case: Case) -> Forms:
    if issubclass(thing, torch.autograd.Function):
        return Forms(f"a Function {thing.__name__}", lambda: wrap(thing, case), partial(make_ignored, thing, case))
    try:
        thing()
    except TypeError as problem:
        raise UsageError(
            f"{thing.__name__} cannot be built without arguments ({errors.describe_error(problem)}); "
            "give an instance, or a function that builds one"
        ) from problem
    return Forms(f"a module {thing.__name__}", thing)


def _builds(function: Callable[..., Any]) -> bool:
    """Whether a function needs no arguments and returns a module, so that it builds the model."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if any(p.default is p.empty and p.kind not in variable for p in parameters):
        return False
    try:
        return isinstance(function(), nn.Module)
    except Exception:  # noqa: BLE001 -- then it is the model itself
        return False


# Wraps what TorchScript cannot take as it is, an operator or a custom Function, into a Python function.
#
# TorchScript reads sources, so the wrapper has one: a fixed number of parameters, with the types of the inputs.

TYPES = {bool: "bool", int: "int", float: "float", str: "str", type(None): "Optional[Tensor]"}
TYPING = {name: getattr(typing, name) for name in ("List", "Optional", "Tuple")}  # what the sources name


def wrap(target: Any, case: Case) -> Callable[..., Any]:
    """A function that calls an operator, or `apply` of an `autograd.Function`, with the arguments of a case."""
    parameters, passed = _parameters(target, _call(case))
    is_function = isinstance(target, type)
    called = target.apply if is_function else target
    function = _make_model(f"def model({parameters}):\n    return target({passed})\n", called)
    if is_operator(target):
        function.operator = target  # type: ignore[attr-defined]  # for opcheck
    return function


def make_ignored(function: type[torch.autograd.Function], case: Case) -> Any:
    """The scripted form of a custom Function: a script that calls it in Python, as `torch.jit.ignore` does.

    TorchScript has no other form of it in every version of torch.
    """
    call = _call(case)
    parameters, passed = _parameters(function, call)
    given = [t.detach() if isinstance(t, torch.Tensor) else t for t in call.args]
    returned = _type_of(function.apply(*given, **call.kwargs))
    source = (
        f"@torch.jit.ignore\ndef call({parameters}) -> {returned}:\n    return target({passed})\n\n"
        f"def model({parameters}) -> {returned}:\n    return call({passed})\n"
    )
    return torch.jit.script(_make_model(source, function.apply))


def is_operator(target: Any) -> bool:
    """Whether it is an operator, or one overload of it."""
    return isinstance(target, (internals.OpOverload, internals.OpOverloadPacket))


def _call(case: Case) -> Call:
    return case.first or case.draw(torch.Generator().manual_seed(0))


def _names(target: Any, call: Call) -> list[str]:
    """Names for the positional arguments: those of the target, as far as it has a signature."""
    is_function = isinstance(target, type)
    try:
        known = inspect.signature(target.forward if is_function else target).parameters.values()
        names = [p.name for p in known if p.kind == p.POSITIONAL_OR_KEYWORD]
    except (TypeError, ValueError):
        names = []
    if is_function and target.setup_context is torch.autograd.Function.setup_context:
        names = names[1:]  # without the context
    if len(names) < len(call.args):
        names = [f"input{i}" for i in range(len(call.args))]
    return names[: len(call.args)]


def _parameters(target: Any, call: Call) -> tuple[str, str]:
    """The parameters of the wrapper, and the arguments that it passes on."""
    names = _names(target, call)
    named = [*zip(names, call.args, strict=True), *call.kwargs.items()]
    typed = (f"{name}: {kind}" if (kind := _type_of(value)) else name for name, value in named)
    return ", ".join(typed), ", ".join([*names, *(f"{name}={name}" for name in call.kwargs)])


def _type_of(value: Any) -> str:
    if isinstance(value, (tuple, list)) and value:
        parts = [_type_of(part) for part in value]
        if isinstance(value, tuple):
            return f"Tuple[{', '.join(parts)}]" if all(parts) else ""
        return f"List[{parts[0]}]" if len(set(parts)) == 1 and parts[0] else ""
    return TYPES.get(type(value), "Tensor" if isinstance(value, torch.Tensor) else "")


def _make_model(source: str, target: Any) -> Callable[..., Any]:
    """The function `model` of a source, which `inspect` can find."""
    file = f"<wrapper {zlib.crc32(source.encode()):x}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope = {"__name__": __name__, "torch": torch, "Tensor": torch.Tensor, "target": target, **TYPING}
    exec(compile(source, file, "exec", dont_inherit=True), scope)  # noqa: S102 -- a source of two lines, made above
    function: Callable[..., Any] = scope["model"]
    return function
