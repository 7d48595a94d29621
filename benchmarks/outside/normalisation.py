"""Normalisation: of layers, groups, instances, roots of mean squares, weights, directions."""

import torch
from spec_parts import function, hurried, normal, normals
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- its usual name
from torch.nn.utils import parametrizations


class RootMeanSquareNorm(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.weight


class Cosine(nn.Module):
    """Logits are scaled cosines."""

    def __init__(self, width: int = 6, classes: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, width))
        self.log_scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.log_scale.exp() * F.normalize(x, dim=1) @ F.normalize(self.weight, dim=1).t()


class Adaptive(nn.Module):
    """An instance norm whose scale and shift come from a style."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.style = nn.Linear(4, 2 * channels)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        scale, shift = self.style(style)[:, :, None, None].chunk(2, 1)
        return F.instance_norm(x) * (1 + scale) + shift


class Channels(nn.Module):
    """A layer norm over the channels of images, as in ConvNeXt."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.depth = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.gamma = nn.Parameter(torch.full((channels,), 0.125))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        return x + (F.gelu(y) * self.gamma).permute(0, 3, 1, 2)


def _whitened(x: Tensor) -> Tensor:
    centred = x - x.mean(0)
    covariance = centred.t() @ centred / (x.shape[0] - 1) + 0.125 * torch.eye(x.shape[1])
    return torch.linalg.solve_triangular(torch.linalg.cholesky(covariance.float()), centred.t(), upper=False).t()


ROOT = hurried("rms_norm", "root mean square", RootMeanSquareNorm, normal(5, 8))
COSINE = hurried("cosine_head", "cosines as logits", Cosine, normal(7, 6))
ADAPTIVE = hurried("adaptive_norm", "a style scales an instance norm", Adaptive, normals((2, 3, 4, 4), (2, 4)))
CHANNELS = hurried("channel_norm", "a layer norm over channels", Channels, normal(2, 4, 5, 5))
WHITENED = hurried("whitened", "rows with unit covariance", function(_whitened), normal(12, 4))
WEIGHTS = hurried(
    "weight_norm",
    "weights by direction and length",
    lambda: parametrizations.weight_norm(nn.Linear(6, 5)),
    normal(4, 6),
)
GROUPS = hurried(
    "group_norm",
    "a group norm",
    lambda: nn.Sequential(nn.Conv1d(2, 6, 3), nn.GroupNorm(2, 6), nn.Mish()),
    normal(3, 2, 8),
)
LAYER = hurried(
    "layer_norm", "a layer norm and a Linear", lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)), normal(6, 8)
)
LOCAL = hurried(
    "local_response", "divided by its neighbours", lambda: nn.LocalResponseNorm(3, alpha=0.5), normal(2, 6, 4)
)
