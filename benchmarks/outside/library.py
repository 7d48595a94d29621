"""Models of torchvision, timm and transformers, at small sizes, by their own constructors, with random weights.

    python -m benchmarks.outside --parts correct --modes eager benchmarks/outside/library.py

The three packages are not needed otherwise: `pip install torchvision timm transformers`.

PyPI's torchvision is built for torch with CUDA. Beside a CPU build of torch its C++ operators do not load. No model
here uses them, so they are declared without a kernel.
"""

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

from spec_parts import hurried, normal, tokens
from torch import Tensor, nn

from conformance.own.forms import declare_operators

PACKAGES = ("torchvision", "timm", "transformers")


class MissingPackageError(ImportError):
    """A package that this file needs is not installed, or does not fit this torch."""


def _check_installed() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPackageError(f"library.py needs {', '.join(missing)}: pip install {' '.join(missing)}")


@cache
def _imported(name: str) -> Any:
    """A package, imported by the process that builds a model of it: these packages take seconds."""
    declare_operators()
    try:
        return importlib.import_module(name)
    except Exception as problem:
        raise MissingPackageError(f"library.py cannot import {name}: {type(problem).__name__}: {problem}") from problem


_check_installed()


def _vision(name: str, *arguments: Any, **settings: Any) -> Callable[[], nn.Module]:
    """A model of torchvision, in eval mode."""
    return lambda: getattr(_imported("torchvision.models"), name)(*arguments, num_classes=10, **settings).eval()


def _timm(name: str, **settings: Any) -> Callable[[], nn.Module]:
    return lambda: _imported("timm").create_model(name, pretrained=False, num_classes=10, **settings).eval()


class Taken(nn.Module):
    """A model of transformers, and one field of what it returns."""

    def __init__(self, model: nn.Module, field: str) -> None:
        super().__init__()
        self.model, self.field = model, field

    def forward(self, ids: Tensor) -> Tensor:
        more = {"decoder_input_ids": ids[:, :4]} if self.model.config.is_encoder_decoder else {}
        return self.model(ids, use_cache=False, **more)[self.field]


class Images(nn.Module):
    """A vision model of transformers, and its last hidden state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).last_hidden_state


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 41}


def _of(family: str, model: str, field: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        transformers = _imported("transformers")
        config = getattr(transformers, f"{family}Config")(**settings)
        return Taken(getattr(transformers, model)(config), field).eval()

    return build


def _resnet() -> nn.Module:
    models = _imported("torchvision.models")
    return models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=10)


def _images() -> nn.Module:
    transformers = _imported("transformers")
    sizes = {name: size for name, size in SIZES.items() if name != "vocab_size"}
    config = transformers.ViTConfig(image_size=16, patch_size=8, intermediate_size=48, **sizes)
    return Images(transformers.ViTModel(config)).eval()


IMAGES = normal(2, 3, 32, 32)
IDS = tokens(41, 2, 7)
RESNET = hurried("tv_resnet", "one block a stage", lambda: _resnet().eval(), IMAGES)
MOBILE = hurried("tv_mobilenet_v3", "a narrow MobileNet v3", _vision("mobilenet_v3_small", width_mult=0.25), IMAGES)
SHUFFLE = hurried(
    "tv_shufflenet", "a narrow ShuffleNet v2", _vision("ShuffleNetV2", [2, 2, 2], [8, 16, 32, 32, 64]), IMAGES
)
SQUEEZE = hurried("tv_squeezenet", "SqueezeNet 1.1", _vision("squeezenet1_1"), IMAGES)
DENSE = hurried("tv_densenet", "a small DenseNet", _vision("DenseNet", 8, (2, 2), 16), IMAGES)
VISION = hurried("tv_vit", "a small vision transformer", _vision("VisionTransformer", 32, 8, 2, 4, 32, 64), IMAGES)
SWIN = hurried(
    "tv_swin", "a small Swin transformer", _vision("SwinTransformer", [4, 4], 16, [2, 2], [2, 4], [2, 2]), IMAGES
)
VIT = hurried(
    "timm_vit",
    "timm's vision transformer",
    _timm("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4),
    IMAGES,
)
CONVNEXT = hurried(
    "timm_convnext", "timm's ConvNeXt", _timm("convnext_atto", depths=(1, 1, 2, 1), dims=(8, 16, 24, 32)), IMAGES
)
EFFICIENT = hurried("timm_efficientnet", "timm's small EfficientNet", _timm("test_efficientnet"), IMAGES)
RESIDUAL = hurried("timm_resnet", "timm's small ResNet", _timm("test_resnet"), IMAGES)
MIXED = hurried("timm_byobnet", "timm's small network of mixed blocks", _timm("test_byobnet"), IMAGES)
FREE = hurried("timm_nfnet", "timm's small network without norms", _timm("test_nfnet"), IMAGES)
RESIDUAL_TRAIN = hurried(
    "timm_resnet_train",
    "timm's small ResNet, training",
    lambda: _imported("timm").create_model("test_resnet", pretrained=False, num_classes=10).train(),
    normal(4, 3, 64, 64),
)
BERT = hurried(
    "hf_bert",
    "BERT, two layers",
    _of("Bert", "BertModel", "last_hidden_state", intermediate_size=48, **SIZES),
    IDS,
)
GPT2 = hurried(
    "hf_gpt2",
    "GPT-2, two layers",
    _of("GPT2", "GPT2LMHeadModel", "logits", n_embd=32, n_layer=2, n_head=4, vocab_size=41, n_positions=16),
    IDS,
)
T5 = hurried(
    "hf_t5",
    "T5, two layers",
    _of(
        "T5",
        "T5ForConditionalGeneration",
        "logits",
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        vocab_size=41,
    ),
    IDS,
)
LLAMA = hurried(
    "hf_llama",
    "Llama, two layers",
    _of("Llama", "LlamaForCausalLM", "logits", intermediate_size=48, num_key_value_heads=2, **SIZES),
    IDS,
)
MAMBA = hurried(
    "hf_mamba",
    "Mamba, two layers",
    _of("Mamba", "MambaForCausalLM", "logits", hidden_size=32, num_hidden_layers=2, vocab_size=41, state_size=4),
    IDS,
)
SEEN = hurried("hf_vit", "transformers' vision transformer", _images, normal(2, 3, 16, 16))
