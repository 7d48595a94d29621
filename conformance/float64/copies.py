"""Copies a model whole: what its functions and hooks name of the model is, in the copy, that of the copy."""

import copy
import functools
import io
import types
import weakref
from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import Any

import torch

from conformance.errors import describe_error, some
from conformance.evaluate import error_text, inputs, weights
from zoo import SpecError, internals

EMPTY = types.CellType()
DICTS = (dict, OrderedDict)
MOST = 64  # things that refuse to be copied; some make what refuses anew each time


def copy_model(model: torch.nn.Module) -> torch.nn.Module:
    """A deep copy, whose functions and hooks use its own parts.

    `copy.deepcopy` keeps functions and weak references as they are, so a lambda or a hook that names `self` would use
    the original. It leaves out the hooks of parameters. What it refuses, such as a lock, is shared. A tensor that was
    computed with autograd, as the weight of `torch.nn.utils.weight_norm` is, loses its graph. A ScriptModule is saved
    and loaded, because its deep copy keeps gradients in the old dtype.

    Raises:
        SpecError: a module or a parameter refuses to be copied.
    """
    shared: dict[int, Any] = {}
    scripted = _copy_scripts(model)
    for left in reversed(range(MOST)):
        memo = {**scripted, **shared}
        try:
            twin = copy.deepcopy(model, memo)
            break
        except Exception as problem:  # anything may refuse, with what it likes
            refused = _refused_value(problem)
            computed = isinstance(refused, torch.Tensor) and not refused.is_leaf
            part = isinstance(refused, (torch.nn.Module, torch.Tensor, type(None)))
            if error_text.is_out_of_memory(problem):
                raise
            if (part and not computed) or not left:
                raise SpecError(_say_why(refused, problem)) from problem
            shared[id(refused)] = refused.detach().clone() if computed else refused
    rebound = _Rebound({key: made for key, made in memo.items() if key not in shared and key != id(memo)})
    rebound.replace()
    for parameter in model.parameters():
        for name in internals.HOOKS_OF_TENSORS:  # which a deep copy lacks
            hooks = getattr(parameter, name)
            if hooks and id(parameter) in memo:
                setattr(memo[id(parameter)], name, OrderedDict((key, rebound(hook)) for key, hook in hooks.items()))
    originals = dict(model.named_modules())
    for path, module in twin.named_modules():
        if isinstance(module, torch.fx.GraphModule) and path in originals:
            _keep_constants(module, originals[path])
    return twin


def _refused_value(problem: Exception) -> Any:
    """What `copy.deepcopy` was copying when it raised an error; None if it was not copying."""
    refused = None
    step = problem.__traceback__
    while step is not None:
        if step.tb_frame.f_code is copy.deepcopy.__code__:
            refused = step.tb_frame.f_locals["x"]
        step = step.tb_next
    return refused


def _say_why(refused: Any, problem: Exception) -> str:
    """Why a model cannot be copied, and what to do if torch does not copy a lazy part of it."""
    if isinstance(refused, torch.Tensor) and torch.nn.parameter.is_lazy(refused):
        return f"it is lazy, and torch does not copy its {type(refused).__name__}; call it once with its inputs first"
    return f"it cannot be copied: {describe_error(problem)}"


class _Rebound:
    """Makes functions that use the parts of a copy out of those that use the parts of the original."""

    def __init__(self, copies: dict[int, Any]) -> None:
        self._copies = copies  # by the `id` of the original
        self._made: dict[int, Any] = {}

    def replace(self) -> None:
        """Replace the functions that are elements or attributes of the copies."""
        for twin in self._copies.values():
            if isinstance(twin, list):
                twin[:] = map(self, twin)
                continue
            members = twin if isinstance(twin, dict) else getattr(twin, "__dict__", {})
            for name, value in [*members.items()]:
                if (made := self(value)) is not value:
                    members[name] = made

    def __call__(self, value: Any) -> Any:
        """What the copy has in place of a value; the value itself if it names no part of the original."""
        for known in (self._copies, self._made):
            if id(value) in known:
                return known[id(value)]
        if not any(id(part) in self._copies for part in reachable(value)):
            return value
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if type(value) is list:
            made: Any = self._made.setdefault(id(value), [])  # before its elements, because it may be one of them
            made += map(self, value)
        elif type(value) in DICTS:
            made = self._made.setdefault(id(value), type(value)())
            made.update((name, self(element)) for name, element in value.items())
        elif isinstance(value, types.MethodType):
            made = types.MethodType(self(value.__func__), self(value.__self__))
        elif isinstance(value, functools.partial):
            made = functools.partial(self(value.func), *self(value.args), **self(value.keywords))
        elif type(value) is weakref.ref:
            made = weakref.ref(self(value()))
        else:
            made = tuple(map(self, value))
        self._made[id(value)] = made
        return made

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        closure = function.__closure__ or ()
        cells = tuple(types.CellType() for _ in closure)
        theirs = {name: self(module) for name, module in global_modules(function).items() if id(module) in self._copies}
        scope = {**function.__globals__, **theirs} if theirs else function.__globals__
        made = types.FunctionType(function.__code__, scope, function.__name__, None, cells)
        self._made[id(function)] = made  # before its cells are filled, because a function may name itself
        functools.update_wrapper(made, function, updated=())
        made.__dict__ = {name: self(value) for name, value in vars(function).items()}
        made.__defaults__, made.__kwdefaults__ = self(function.__defaults__), self(function.__kwdefaults__)
        for old, new in zip(closure, cells, strict=True):
            if old != EMPTY:
                new.cell_contents = self(old.cell_contents)
        return made


def global_modules(function: types.FunctionType) -> dict[str, torch.nn.Module]:
    """The modules that a function names by globals."""
    named = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    return {name: value for name, value in named.items() if isinstance(value, torch.nn.Module)}


def reachable(value: Any) -> Iterator[Any]:
    """A value, and what functions and containers in it name."""
    seen: set[int] = set()
    ahead = [value]
    while ahead:
        one = ahead.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, types.FunctionType):
            ahead += [cell.cell_contents for cell in one.__closure__ or () if cell != EMPTY]
            ahead += [one.__defaults__, one.__kwdefaults__, vars(one), global_modules(one)]
        elif isinstance(one, types.MethodType):
            ahead += [one.__func__, one.__self__]
        elif isinstance(one, functools.partial):
            ahead += [one.func, one.args, one.keywords]
        elif type(one) is weakref.ref:
            ahead.append(one())
        elif type(one) in DICTS:
            ahead += one.values()
        elif type(one) in (list, tuple):
            ahead += one


def _keep_constants(copied_module: torch.nn.Module, original: torch.nn.Module) -> None:
    """Make constants of a graph plain attributes again: copying a GraphModule registers them as buffers."""
    buffers = internals.buffers_of(copied_module)
    for name in buffers.keys() - internals.buffers_of(original).keys():
        copied_module.__dict__[name] = buffers.pop(name)


def _copy_scripts(module: torch.nn.Module) -> dict[int, Any]:
    """Copies of the outermost ScriptModules, as a memo of deepcopy."""
    if isinstance(module, torch.jit.ScriptModule):
        buffer = io.BytesIO()
        torch.jit.save(module, buffer)
        buffer.seek(0)
        return {id(module): torch.jit.load(buffer)}
    return {key: twin for child in module.children() for key, twin in _copy_scripts(child).items()}


# Gives another implementation of a model the weights and flags of the model: a trusted one, or a candidate.

LISTED = 3  # names of each kind in a message


def adopt_state(made: Any, model: Any, where: str, *, any_width: bool = False) -> None:
    """Copy parameters, buffers, training flags, frozen parameters and device of a model into another implementation.

    An exported program has no training flags; then the other implementation keeps its own.
    With `any_width`, its floating dtypes may be wider or narrower than the model's. `where` names it in messages.

    Raises:
        SpecError: the two do not have the same parameters and buffers.
    """
    theirs, ours = weights.state_of(made), weights.state_of(model)
    _check_names(where, ours, theirs)
    for name, tensor in ours.items():
        other = theirs[name]
        alike = tensor.dtype == other.dtype or (any_width and inputs.widest(tensor.dtype) == inputs.widest(other.dtype))
        if tensor.shape != other.shape or not alike:
            got, wanted = (f"{t.dtype} {tuple(t.shape)}".removeprefix("torch.") for t in (other, tensor))
            raise SpecError(f"{where}: {name} is {got}, and the model's is {wanted}")
    weights.reset(made, ours)
    if isinstance(made, torch.nn.Module) and isinstance(model, torch.nn.Module):
        _adopt_flags(made, model)
        first = next(iter(ours.values()), None)
        if first is not None:
            made.to(first.device)


def _check_names(where: str, ours: Collection[str], theirs: Collection[str]) -> None:
    missing, extra = [n for n in ours if n not in theirs], [n for n in theirs if n not in ours]
    if missing or extra:
        parts = [f"it lacks {some(missing, LISTED)}"] * bool(missing)
        parts += [f"it alone has {some(extra, LISTED)}"] * bool(extra)
        raise SpecError(f"{where}: parameters and buffers must have the model's names, but {' and '.join(parts)}")


def _adopt_flags(made: torch.nn.Module, model: torch.nn.Module) -> None:
    trained = dict(model.named_parameters())
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(trained[name].requires_grad if name in trained else parameter.requires_grad)
    if isinstance(model, torch.fx.GraphModule):
        return
    modules = dict(model.named_modules())
    for name, module in made.named_modules():
        module.training = modules[name].training if name in modules else model.training
