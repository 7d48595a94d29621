"""Builds the eager and the scripted form of what people name as a model: a thing of theirs, or one of a library.

A thing may be a module, a class, a function, an operator and more. An architecture of torchvision, timm or transformers
is built by its name: small, with random weights, without the network.
"""

import ast
import importlib.util
import inspect
import linecache
import re
import typing
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any
from urllib.parse import parse_qsl

import torch
from torch import nn

from conformance import axes, errors, seeds
from conformance.errors import UsageError, near_names
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
        elif isinstance(thing, nn.Module) and internals.COMPILED_MODULE in vars(thing).get(internals.SUBMODULES, ()):
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


# Builds architectures of libraries. A name reads like "torchvision:resnet18?size=64": library, architecture, and
# settings for its constructor.

FORM = re.compile(r"(?P<library>torchvision|timm|transformers):(?P<name>[\w-]+)(\?(?P<settings>.*))?")
WORDS = {"true": True, "false": False}
LOADING = ("pretrained", "weights", "weights_backbone", "checkpoint_path")  # settings that would fetch weights
TEXTS, TOKENS = 2, 8  # of an input
PICTURES, SIDE, FRAMES = 2, 64, 8  # of an input
PICTURES_TO_TRAIN = 4  # of an input in train mode, where a batch norm makes +1 and -1 of any two numbers
BATCH = 8  # pictures from which batch norms have their statistics
MEANT = {"layers": "num_hidden_layers", "width": "hidden_size", "heads": "num_attention_heads"}
SMALL = {  # what a configuration of transformers may have, and its value here, for some 10⁴ to 10⁵ parameters
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 64,
    "max_position_embeddings": 32,
    "image_size": 32,
    "patch_size": 8,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "d_ff": 48,
    "d_kv": 8,
    "state_size": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
    "use_cache": False,  # a cache would be an output too
}


@dataclass(frozen=True)
class Architecture:
    """An architecture of a library: `build` returns it with random weights, `inputs` draws those of one call."""

    build: Callable[[], nn.Module]
    inputs: Callable[[torch.Generator], Call]


def is_named(text: str) -> bool:
    """Whether a text names an architecture of a library.

    >>> is_named("timm:convnext_atto"), is_named("torchvision:models.resnet18"), is_named("nets:Net")
    (True, False, False)
    """
    return FORM.fullmatch(text) is not None


def architecture(text: str, *, train: bool = False) -> Architecture:
    """The architecture of that name, such as "timm:convnext_atto?img_size=64", with inputs for train or eval mode.

    Raises UsageError if the library is not installed, or has no such architecture; or if a setting is unknown, or would
    fetch weights.
    """
    found = FORM.fullmatch(text)
    assert found is not None
    settings = _settings(text, found["settings"] or "")
    makers = {"torchvision": _torchvision, "timm": _timm, "transformers": _transformers}
    return makers[found["library"]](text, found["name"], settings, PICTURES_TO_TRAIN if train else PICTURES)


def _settings(text: str, written: str) -> dict[str, Any]:
    settings = {}
    for name, value in parse_qsl(written, keep_blank_values=True):
        try:
            settings[name] = WORDS[value] if value in WORDS else ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[name] = value
        if name in LOADING and settings[name]:
            raise UsageError(f"{text}: {name} would fetch weights; weights are random here")
    return settings


def _import(text: str, name: str) -> Any:
    """A module of a library. Raises UsageError if it is not installed, or its import fails."""
    library = name.partition(".")[0]
    if importlib.util.find_spec(library) is None:
        raise UsageError(f"{text}: {library} is not installed; pip install {library}")
    declare_operators()  # timm and transformers import torchvision
    try:
        return importlib.import_module(name)
    except Exception as problem:  # the library's own code may raise anything
        raise UsageError(f"{text}: {library} does not import: {errors.describe_error(problem)}") from problem


def _check_known(text: str, name: str, known: Iterable[str], what: str) -> None:
    if name not in known:
        raise UsageError(f"{text}: no {what} {name!r}{near_names(name, known)}")


def _build(text: str, build: Callable[..., nn.Module], *args: Any, **settings: Any) -> nn.Module:
    try:
        return build(*args, **settings)
    except Exception as problem:
        raise UsageError(f"{text} cannot be built: {errors.describe_error(problem)}") from problem


def _of_pictures(text: str, shape: Sequence[int], build: Callable[..., nn.Module], **settings: Any) -> Architecture:
    """An architecture that takes pictures; the first number of the shape says how many."""

    def build_settled() -> nn.Module:
        batch = torch.randn(BATCH, *shape[1:], generator=torch.Generator().manual_seed(seeds.seed_of(text)))
        return settle_statistics(build(**settings), batch)

    return Architecture(
        partial(_build, text, build_settled), lambda generator: Call((torch.randn(*shape, generator=generator),))
    )


def _torchvision(text: str, name: str, settings: dict[str, Any], pictures: int) -> Architecture:
    models = _import(text, "torchvision.models")
    _check_known(text, name, models.list_models(), "architecture")
    side = settings.pop("size", SIDE)
    builder = models.get_model_builder(name)
    takes = inspect.signature(builder).parameters
    settings |= {each: None for each in ("weights", "weights_backbone") if each in takes}
    if name.startswith("vit_"):
        settings["image_size"] = side
    frames = (FRAMES,) if name in models.list_models(module=models.video) else ()
    return _of_pictures(text, (pictures, 3, *frames, side, side), builder, **settings)


def declare_operators() -> None:
    """Declare what torchvision registers meta kernels for, if it has a C++ library that does not load.

    A package built for torch with CUDA does not fit a torch without; its import would fail at `nms`. To declare an
    operator twice ends the process, so nothing is declared where any of its libraries loads, whatever it is called.
    """
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None or hasattr(torch.ops.torchvision, "nms"):
        return
    libraries = [*Path(found.origin).parent.glob("_C*.so")]
    for library in libraries:
        try:
            torch.ops.load_library(str(library))
        except OSError:
            continue
        return
    for name in ("nms", "qnms") if libraries else ():
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _timm(text: str, name: str, settings: dict[str, Any], pictures: int) -> Architecture:
    timm = _import(text, "timm")
    _check_known(text, name, timm.list_models(), "architecture")
    side = settings.pop("size", settings.get("img_size", 0))
    channels, *shape = timm.get_pretrained_cfg(name).input_size if not side else (3, side, side)
    return _of_pictures(text, (pictures, channels, *shape), partial(timm.create_model, name), **settings)


def _transformers(text: str, name: str, settings: dict[str, Any], pictures: int) -> Architecture:
    transformers = _import(text, "transformers")
    _check_known(text, name, transformers.CONFIG_MAPPING, "model type")
    chosen = {MEANT.get(key, key): value for key, value in settings.items()}
    known = _config(text, transformers, name)
    for key in chosen:
        _check_known(text, key, [each for each in dir(known) if not each.startswith("_")], "setting")
    small = {key: value for key, value in SMALL.items() if _takes_number(known, key)}
    config = _config(text, transformers, name, **small | chosen)
    if type(config) not in transformers.MODEL_MAPPING:
        raise UsageError(f"{text}: transformers has no model for {type(config).__name__} alone")
    build = partial(_build, text, transformers.AutoModel.from_config, config)
    model = transformers.MODEL_MAPPING[type(config)]
    taken = (model[0] if isinstance(model, tuple) else model).main_input_name
    return Architecture(build, partial(_words_or_pictures, text, config, taken, pictures))


def _takes_number(config: Any, key: str) -> bool:
    """Whether a configuration has a whole number, or none yet, as a setting of that name."""
    derived = getattr(type(config), key, None)  # falcon computes its head_dim
    is_fixed = isinstance(derived, property) and derived.fset is None
    return not is_fixed and isinstance(getattr(config, key, ""), (int, type(None)))


def _config(text: str, transformers: Any, name: str, **settings: Any) -> Any:
    try:
        return transformers.AutoConfig.for_model(name, **settings)
    except Exception as problem:  # a configuration checks its settings in its own way
        raise UsageError(f"{text}: no such configuration: {errors.describe_error(problem)}") from problem


def _words_or_pictures(text: str, config: Any, name: str, pictures: int, generator: torch.Generator) -> Call:
    """The arguments of one call. Raises UsageError if the model takes something else."""
    if name == "pixel_values":
        side = getattr(config, "image_size", SMALL["image_size"])
        sides = side if isinstance(side, (tuple, list)) else (side, side)
        pixels = torch.randn(pictures, getattr(config, "num_channels", 3), *sides, generator=generator)
        return Call((), {name: pixels})
    if name != "input_ids" or not hasattr(config, "vocab_size"):
        raise UsageError(f"{text} takes {name}; describe its inputs, such as --input {name}=2,80,3000")
    names = [name, "decoder_input_ids"] if config.is_encoder_decoder else [name]
    return Call((), {each: torch.randint(config.vocab_size, (TEXTS, TOKENS), generator=generator) for each in names})


# Gives new batch norms the statistics of a batch, as training does.


def settle_statistics(model: nn.Module, batch: torch.Tensor) -> nn.Module:
    """Set the running statistics of a model's batch norms to those of one batch, and return the model.

    A new batch norm has mean 0 and variance 1. So in eval mode it does not normalise, and forty layers deep the
    activations are too small for float16. The batch runs in float64, with dropout off: any number of threads gives the
    same float32.
    """
    norms = _with_statistics(model)
    if not norms:
        return model
    rehearsal = copy_model(model).double().eval()
    rehearsed = _with_statistics(rehearsal)
    for norm in rehearsed:
        norm.train().momentum = 1.0  # the statistics are those of this batch alone
    with torch.no_grad():
        rehearsal(batch.double())
    for norm, known in zip(norms, rehearsed, strict=True):
        norm.load_state_dict(known.state_dict())
    return model


def _with_statistics(model: nn.Module) -> list[Any]:
    """The batch norms that keep running statistics."""
    norms = [module for module in model.modules() if isinstance(module, internals.batch_norm)]
    return [norm for norm in norms if norm.track_running_stats]
