"""Smooth models that claim second derivatives."""

import torch
from spec_parts import function, hurried, normal, normals
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- its usual name


class Penalised(nn.Module):
    """A critic whose gradient is part of its loss elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Sine(nn.Module):
    """A field as a network of sines."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.sin(3.0 * self.first(x)))


class Energy(nn.Module):
    """The energy of a modern Hopfield network."""

    def __init__(self) -> None:
        super().__init__()
        self.patterns = nn.Parameter(torch.randn(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * (x * x).sum(-1) - torch.logsumexp(2.0 * x @ self.patterns.t(), -1) / 2.0


def _cubic(x: Tensor, y: Tensor) -> Tensor:
    return x**3 + x * y**2


PENALISED = hurried("penalised", "a smooth critic", Penalised, normal(6, 5), twice_differentiable=True)
SINE = hurried("sine_field", "a network of sines", Sine, normal(7, 2), twice_differentiable=True)
ENERGY = hurried("hopfield_energy", "an energy", Energy, normal(5, 4), twice_differentiable=True)
CUBIC = hurried("cubic", "two variables", function(_cubic), normals((4, 3), (4, 3)), twice_differentiable=True)
NORMED = hurried(
    "smooth_norm",
    "a Linear, a norm, a GELU",
    lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU()),
    normal(5, 4),
    twice_differentiable=True,
)
QUADRATIC = hurried(
    "quadratic_form", "a form", lambda: nn.Bilinear(4, 4, 2), normals((5, 4), (5, 4)), twice_differentiable=True
)
ATTENDED = hurried(
    "smooth_attention",
    "attention of given tensors",
    function(lambda q, k: F.softmax(q @ k.t(), -1) @ k),
    normals((4, 3), (5, 3)),
    twice_differentiable=True,
)
