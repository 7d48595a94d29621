"""Convolutional networks: residual, separable, U-shaped, dilated, transposed, pooled, sampled."""

import torch
from spec_parts import hurried, normal, normals
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- its usual name


class Residual(nn.Module):
    """Two convolutions with batch norm in training, and a shortcut."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + x)


class Separable(nn.Module):
    """Depthwise, pointwise, squeeze and excitation."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.depth = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.point = nn.Conv2d(width, width, 1)
        self.squeeze, self.excite = nn.Linear(width, 3), nn.Linear(3, width)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.point(self.depth(x)))
        gate = torch.sigmoid(self.excite(F.silu(self.squeeze(y.mean((2, 3))))))
        return x + y * gate[:, :, None, None]


class Hourglass(nn.Module):
    """Down, up by interpolation, and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(2, 6, 3, stride=2, padding=1), nn.Conv2d(8, 2, 3, padding=1)
        self.norm = nn.GroupNorm(3, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.norm(self.down(x)))
        y = F.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.up(torch.cat([x, y.to(x.dtype)], dim=1))


class Dilated(nn.Module):
    """Gated causal convolutions whose reach doubles."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.layers = nn.ModuleList([nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(3)])

    def forward(self, wave: Tensor) -> Tensor:
        x = self.first(wave)
        skip = torch.zeros_like(x)
        for i, layer in enumerate(self.layers):
            a, b = layer(F.pad(x, (2**i, 0))).chunk(2, dim=1)
            y = torch.tanh(a) * torch.sigmoid(b)
            x, skip = x + y, skip + y
        return skip


class Pooled(nn.Module):
    """ReLU, max and average pooling, a Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.adaptive_avg_pool2d(F.relu(self.conv2(x)), 1)
        return self.head(torch.flatten(x, 1))


class SpatialTransformer(nn.Module):
    """Predicts an affine map for each image, and samples the image there."""

    def __init__(self) -> None:
        super().__init__()
        self.locate = nn.Linear(2, 6)

    def forward(self, x: Tensor) -> Tensor:
        theta = torch.tanh(self.locate(x.mean((2, 3)))).view(-1, 2, 3).float() * 0.25 + torch.eye(2, 3)
        grid = F.affine_grid(theta, [x.shape[0], x.shape[1], 5, 5], align_corners=False)
        return F.grid_sample(x, grid, align_corners=False)


class Upward(nn.Module):
    """A small decoder of transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(5, 32),
            nn.Unflatten(1, (8, 2, 2)),
            nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1),
            nn.LeakyReLU(0.1),
            nn.ConvTranspose2d(4, 1, 4, stride=2, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, z: Tensor) -> Tensor:
        return self.net(z)


def _volume() -> nn.Module:
    return nn.Sequential(nn.Conv3d(1, 3, 2), nn.ELU(), nn.AvgPool3d(2), nn.Flatten(), nn.Linear(3 * 8, 2))


RESIDUAL = hurried("residual", "a residual block in training", Residual, normal(4, 4, 6, 6))
SEPARABLE = hurried("separable", "squeeze and excitation", Separable, normal(2, 6, 5, 5))
HOURGLASS = hurried("hourglass", "down, up, and a skip", Hourglass, normal(2, 2, 6, 6))
DILATED = hurried("dilated", "gated dilated convolutions", Dilated, normal(2, 1, 12))
POOLED = hurried("pooled", "a small classifier of images", Pooled, normal(3, 1, 10, 10))
SAMPLED = hurried("spatial_transformer", "samples an image at an affine grid", SpatialTransformer, normal(2, 2, 6, 6))
UPWARD = hurried("upward", "a decoder of images", Upward, normal(3, 5))
VOLUME = hurried("volume", "a convolution of volumes", _volume, normal(2, 1, 5, 5, 5))
GATED = hurried(
    "maxout",
    "the larger of two convolutions",
    lambda: nn.Sequential(nn.Conv1d(2, 8, 3), nn.Unflatten(1, (4, 2)), nn.Flatten(2, 3), nn.MaxPool1d(3, 2)),
    normals((2, 2, 9)),
)
