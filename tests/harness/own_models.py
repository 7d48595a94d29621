"""Models without a spec, which the tests name."""

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """A small network with dropout, which draws nothing in eval mode."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


class Lazy(Net):
    """A network whose parameters the first call makes."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.LazyLinear(8), nn.LazyLinear(3)


def build():
    return Net()


def double(x: Tensor) -> Tensor:
    return 2 * x


def write(x: Tensor) -> Tensor:
    """Add 1 to x in place, and return half of it."""
    return x.detach().add_(1) / 2


class Cube(torch.autograd.Function):
    """x³ times a number; returns two tensors."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return factor * x**3, x + 1

    @staticmethod
    def backward(ctx, slope, other):
        (x,) = ctx.saved_tensors
        return 3 * ctx.factor * x**2 * slope + other, None


class Graph(nn.Module):
    """A graph convolution on a sparse adjacency matrix."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, adjacency: Tensor):
        """Return the sums over neighbours, and what is no tensor."""
        return torch.sparse.mm(adjacency, self.layer(x).tanh()), {"distribution": torch.distributions.Normal(x, 1.0)}


class NeedsWidth(nn.Module):
    """A network that is not built without arguments."""

    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)


@torch.library.custom_op("conformance_tests::negate", mutates_args=())
def negate(x: Tensor) -> Tensor:
    """Return -x, with a fake of another shape."""
    return -x


@negate.register_fake
def _(x):
    return torch.empty(1)
