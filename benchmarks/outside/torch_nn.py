"""The modules of torch.nn, each with inputs that fit: right models that nobody here has written.

    conformance run benchmarks/outside/torch_nn.py --mode eager

A red cell is a false alarm, or tells what torch itself does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from zoo import Case, Convention, Spec

Draw = Callable[[torch.Generator], Tensor]
DRAWS = ("random generator",)
IMAGES = {1: (2, 4, 9), 2: (2, 4, 8, 8), 3: (2, 4, 5, 6, 6)}  # by their number of dimensions
LOG_SOFTMAX = Convention(tensor="log_probs", why="it is the gradient of the scores before log_softmax")


def normal(*shape: int) -> Draw:
    return lambda generator: torch.randn(*shape, generator=generator)


def uniform(*shape: int) -> Draw:
    return lambda generator: torch.rand(*shape, generator=generator)


def whole(end: int, *shape: int) -> Draw:
    return lambda generator: torch.randint(end, shape, generator=generator)


def signs(*shape: int) -> Draw:
    return lambda generator: torch.randint(2, shape, generator=generator) * 2.0 - 1.0


def log_probabilities(*shape: int) -> Draw:
    return lambda generator: torch.randn(*shape, generator=generator).log_softmax(-1)


def labels(samples: int, classes: int) -> Draw:
    """Two classes of each sample, and −1 after them."""
    return lambda generator: (
        torch.rand(samples, classes, generator=generator).argsort().index_fill(1, torch.arange(2, classes), -1)
    )


def lengths(*numbers: int) -> Draw:
    return lambda _: torch.tensor(numbers)


def _spec(name: str, build: Callable[[], nn.Module], *inputs: Draw, **fields: Any) -> None:
    """Make the spec of a module, under a name that a run finds."""
    case = Case(name="typical", inputs=lambda generator: tuple(draw(generator) for draw in inputs))
    name = f"nn_{name}"
    globals()[name.upper()] = Spec(name=name, summary=name, source="torch.nn", build=build, cases=(case,), **fields)


X = normal(6, 10)
for activation in (
    *(nn.CELU, nn.ELU, nn.GELU, nn.GLU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU),
    *(nn.LogSigmoid, nn.Mish, nn.PReLU, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink),
    *(nn.Softsign, nn.Tanh, nn.Tanhshrink),
):
    _spec(activation.__name__.lower(), activation, X)
_spec("log_softmax", partial(nn.LogSoftmax, 1), X)
_spec("softmin", partial(nn.Softmin, 1), X)
_spec("softmax2d", nn.Softmax2d, normal(2, 3, 4, 4))
_spec("threshold", partial(nn.Threshold, 0.1, 20.0), X)
_spec("rrelu", nn.RReLU, X, changes_state=DRAWS)

for d, shape in IMAGES.items():
    images = normal(*shape)
    for name, arguments in {
        "Conv": {"in_channels": 4, "out_channels": 6, "kernel_size": 3, "padding": 1},
        "ConvTranspose": {"in_channels": 4, "out_channels": 6, "kernel_size": 3, "stride": 2},
        "BatchNorm": {"num_features": 4},
        "InstanceNorm": {"num_features": 4, "affine": True, "track_running_stats": True},
        "MaxPool": {"kernel_size": 3, "stride": 2, "padding": 1},
        "AvgPool": {"kernel_size": 3, "stride": 2, "padding": 1},
        "AdaptiveMaxPool": {"output_size": 3},
        "AdaptiveAvgPool": {"output_size": 3},
        "ReflectionPad": {"padding": 2},
        "ReplicationPad": {"padding": 2},
        "CircularPad": {"padding": 2},
    }.items():
        _spec(f"{name.lower()}{d}d", partial(getattr(nn, f"{name}{d}d"), **arguments), images)
    grouped = partial(getattr(nn, f"Conv{d}d"), 4, 8, 3, groups=4, dilation=2, padding=2)
    _spec(f"grouped_conv{d}d", grouped, images)
    _spec(f"lppool{d}d", partial(getattr(nn, f"LPPool{d}d"), 2, 3), uniform(*shape))

_spec("group_norm", partial(nn.GroupNorm, 2, 6), normal(3, 6, 5))
_spec("layer_norm", partial(nn.LayerNorm, 10), X)
_spec("local_response_norm", partial(nn.LocalResponseNorm, 3), normal(2, 6, 5, 5))
_spec("rms_norm", partial(nn.RMSNorm, 10), X)
_spec("channel_shuffle", partial(nn.ChannelShuffle, 2), normal(2, 4, 3, 3))
_spec("fold", partial(nn.Fold, (5, 6), (2, 3)), normal(2, 12, 16))
_spec("pixel_shuffle", partial(nn.PixelShuffle, 2), normal(2, 8, 3, 3))
_spec("pixel_unshuffle", partial(nn.PixelUnshuffle, 2), normal(2, 2, 4, 4))
_spec("unfold", partial(nn.Unfold, (2, 3)), normal(2, 3, 5, 6))
for mode in ("nearest", "bilinear", "bicubic", "area"):
    _spec(f"upsample_{mode}", partial(nn.Upsample, size=(7, 9), mode=mode), normal(2, 3, 4, 5))

_spec("bilinear", partial(nn.Bilinear, 4, 5, 3), normal(6, 4), normal(6, 5))
_spec("cosine_similarity", partial(nn.CosineSimilarity, 1), X, X)
_spec("pairwise_distance", nn.PairwiseDistance, X, X)
_spec("embedding_bag_max", partial(nn.EmbeddingBag, 9, 4, mode="max"), whole(9, 5, 3))
_spec("embedding_bag_mean", partial(nn.EmbeddingBag, 9, 4, mode="mean"), whole(9, 5, 3))
_spec("sparse_embedding", partial(nn.Embedding, 9, 4, sparse=True), whole(9, 5, 3))
_spec("gru", partial(nn.GRU, 5, 4, bidirectional=True), normal(6, 3, 5))
_spec("lstm_cell", partial(nn.LSTMCell, 5, 4), normal(3, 5))
_spec("rnn", partial(nn.RNN, 5, 4, 2, nonlinearity="relu"), normal(6, 3, 5))
_spec("decoder", partial(nn.TransformerDecoderLayer, 8, 2, 16, dropout=0.0), normal(5, 2, 8), normal(4, 2, 8))
_spec("encoder", partial(nn.TransformerEncoderLayer, 8, 2, 16), normal(5, 2, 8), changes_state=DRAWS)
_spec("multihead", partial(nn.MultiheadAttention, 8, 2, add_bias_kv=True, add_zero_attn=True), *[normal(5, 2, 8)] * 3)
_spec("orthogonal", lambda: parametrizations.orthogonal(nn.Linear(5, 5)), normal(6, 5))
_spec("spectral_norm", lambda: parametrizations.spectral_norm(nn.Linear(5, 4)), normal(6, 5))
_spec("weight_norm", lambda: parametrizations.weight_norm(nn.Linear(5, 4)), normal(6, 5))
_spec("alpha_dropout", partial(nn.AlphaDropout, 0.3), X, changes_state=DRAWS)
_spec("dropout", partial(nn.Dropout, 0.3), X, changes_state=DRAWS)
_spec("dropout2d", partial(nn.Dropout2d, 0.3), normal(3, 6, 4, 4), changes_state=DRAWS)

SCORES, CLASSES, TARGETS = normal(8, 5), whole(5, 8), uniform(8, 5)
for loss in (nn.HuberLoss, nn.L1Loss, nn.MSELoss, nn.SmoothL1Loss):
    _spec(loss.__name__.lower(), loss, SCORES, SCORES)
for loss in (nn.BCELoss, nn.BCEWithLogitsLoss, nn.KLDivLoss, nn.PoissonNLLLoss):
    _spec(loss.__name__.lower(), loss, TARGETS if loss is nn.BCELoss else SCORES, TARGETS)
_spec("bceloss_of_classes", nn.BCELoss, TARGETS, lambda g: whole(2, 8, 5)(g).float(), constants=("target",))
_spec("cosine_embedding_loss", nn.CosineEmbeddingLoss, SCORES, SCORES, signs(8))
_spec("cross_entropy", partial(nn.CrossEntropyLoss, label_smoothing=0.1, ignore_index=2), SCORES, CLASSES)
_spec("gaussian_nll_loss", nn.GaussianNLLLoss, SCORES, SCORES, TARGETS)
_spec("hinge_embedding_loss", nn.HingeEmbeddingLoss, SCORES, signs(8, 5), constants=("target",))
_spec("margin_ranking_loss", nn.MarginRankingLoss, normal(8), normal(8), signs(8))
_spec("multi_label_soft_margin_loss", nn.MultiLabelSoftMarginLoss, SCORES, TARGETS)
_spec("multi_label_margin_loss", nn.MultiLabelMarginLoss, SCORES, labels(8, 5))
_spec("multi_margin_loss", nn.MultiMarginLoss, SCORES, CLASSES)
_spec("nll_loss", nn.NLLLoss, SCORES, CLASSES)
_spec("soft_margin_loss", nn.SoftMarginLoss, SCORES, signs(8, 5), constants=("target",))
_spec("triplet_margin_loss", nn.TripletMarginLoss, SCORES, SCORES, SCORES)
_spec(
    "ctc_loss",
    nn.CTCLoss,
    *(log_probabilities(12, 2, 6), whole(5, 2, 4), lengths(12, 12), lengths(4, 3)),
    conventions=(LOG_SOFTMAX,),
)
