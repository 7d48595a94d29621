"""Builds architectures of torchvision, timm and transformers by name: small, with random weights, without the network.

A name reads like "torchvision:resnet18?size=64": library, architecture, and settings for its constructor.
"""

import ast
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import torch
from torch import nn

from conformance import errors, seeds
from conformance.errors import UsageError, near_names
from conformance.float64.copies import copy_model
from zoo import Call, internals

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
