"""A network of several layers, and modes that are wrong in one way each, for `conformance repro`."""

import os

import torch
from torch import nn

from conformance import Prepared, register_backend, register_mode
from zoo import Case, Spec


class Block(nn.Module):
    """A residual of two layers, which keeps the mean of its last call."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x):
        y = self.second(torch.tanh(self.first(x)))
        self.mean.copy_(y.detach().mean(0))
        return x + y


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        return self.head(self.blocks(x))


class Branching(Net):
    def forward(self, x):
        y = self.head(self.blocks(x))
        if torch.jit.is_scripting():
            y = 1.01 * y
        return y


class Bare(nn.Module):
    """Without parameters and buffers."""

    def forward(self, x):
        y = torch.tanh(x)
        if torch.jit.is_scripting():
            y = 1.01 * y
        return y


class AddBias(torch.autograd.Function):
    """x + bias, whose backward loses a row in half precision."""

    @staticmethod
    def forward(_, x, bias):
        return x + bias.to(x.dtype)

    @staticmethod
    def backward(_, gradient):
        half = gradient.dtype in (torch.float16, torch.bfloat16)
        return gradient, (gradient[:-1] if half else gradient).sum(0)


class Forgetful(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 8, bias=False))
        self.bias = nn.Parameter(torch.randn(8))

    def forward(self, x):
        return AddBias.apply(self.layers(x), self.bias)


class Louder(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.view_as(x)

    @staticmethod
    def backward(_, gradient):
        return 1.05 * gradient


def value(graph, examples):
    return lambda *args: tuple(1.1 * y for y in graph(*args))


def dtype(graph, examples):
    return lambda *args: tuple(y.double() for y in graph(*args))


def raising(graph, examples):
    raise ZeroDivisionError("no")


def nan(model):
    def call(x):
        y = model(x)
        y.data[0, 0] = torch.nan
        return y

    return call


def gradient(model):
    return Prepared(lambda x: Louder.apply(model(x)), lambda: {"calls": 1})


def buffer(model):
    def call(x):
        y = model(x)
        model.blocks[0].mean.data.mul_(1.5)
        return y

    return call


def serving(model):
    return lambda x: model(x) if torch.is_grad_enabled() else 1.01 * model(x)


def stale(model):
    first = model.head.bias.detach().clone()
    return lambda x: model(x) + (first - model.head.bias).detach()


def rows(model):
    known = []

    def call(x):
        known.append(len(x))
        return model(x) if len(x) == known[0] else 1.01 * model(x)

    return call


class HalfBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return 0.5 * g * ctx.saved_tensors[0].cos()


def misled(x):
    return HalfBackward.apply(x)


def closure(factor):
    def prepare(model):
        return lambda x: factor * model(x)

    return prepare


def dying(model):
    return lambda x: (os.abort(), model(x))[1]


for backend in (value, dtype, raising):
    register_backend(backend.__name__, backend)
for prepare in (nan, gradient, buffer, serving, stale, rows, dying):
    register_mode(prepare.__name__, prepare, compiles=False)
register_mode("closure", closure(1.01), compiles=False)
for name in ["unnamed"]:
    register_mode(name, closure(1.01), compiles=False)

CASES = (Case(name="typical", inputs=lambda g: (torch.randn(32, 16, generator=g),)),)
FIELDS = {"summary": "s", "source": "s", "cases": CASES}
NET = Spec(name="net", build=lambda: Net(16), **FIELDS)
BRANCHING = Spec(name="branching", build=lambda: Branching(16), **FIELDS)
BARE = Spec(name="bare", build=Bare, **FIELDS)
FORGETFUL = Spec(name="forgetful", build=Forgetful, **FIELDS)
MISLED = Spec(name="misled", build=lambda: misled, **FIELDS)
