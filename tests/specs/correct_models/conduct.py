"""Right models with containers of every kind, outputs that share memory, and state that they change as declared."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from correct_parts import Cells, drawn, function, green
from torch import Tensor, nn

from conformance import Prepared, register_mode

CELLS: Cells = []
_green = partial(green, CELLS)
ALL = {"scripted": ("fp32", "amp_bf16"), "compiled": ("fp32",)}
COMPILED = {"compiled": ("fp32",)}


class Pair(NamedTuple):
    """Two tensors."""

    first: Tensor
    second: Tensor


@dataclass
class Result:
    """A tensor with numbers, a name and a remainder."""

    mean: Tensor
    gain: float
    name: str
    rest: Any


def _pair(x: Tensor) -> Pair:
    return Pair(x.exp(), x * 2)


def _listed(x: Tensor) -> list[Tensor]:
    return [x.exp(), x * 2]


def _keyed(x: Tensor) -> dict[str, Tensor]:
    return {"b": x.exp(), "a": x * 2}


def _chunked(x: Tensor):
    return x.exp().chunk(2)


def _highest(x: Tensor):
    return x.topk(2)


def _numbers(x: Tensor):
    return x.exp(), 3, 2.5, True, "mean", x.shape[0]


def _views(x: Tensor):
    return x, x.t(), x[1:], x[:, 0], x.reshape(-1), x[0].expand(3, 8), x[::2], x[1::2]


def _halves(x: Tensor):
    y = x.exp()
    return y[:3], y[3:], y


def _result(x: Tensor) -> Result:
    return Result(x.mean(0), 2.5, "mean", OrderedDict(largest=x.max(1), pair=[Pair(x * 2, x)]))


def _measured(x: Tensor) -> tuple[Tensor, float]:
    return x.exp(), x.detach().double().sum().item()


class Weights(nn.Module):
    """Returns its weight and its buffer, beside a number that the input has no part in."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.linear(x), self.linear.weight.t(), self.offset


class Caching(nn.Module):
    """Keeps a mask in an attribute that the first call makes, seeds the generator, and is hooked."""

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(3)
        if not hasattr(self, "mask"):
            self.mask = torch.arange(x.shape[-1]) > 2
            self.register_forward_hook(lambda *_: None)
        return x * self.mask


class Dropping(nn.Module):
    """Drops elements twice, the second time where autocast has made them low."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(8, 8), nn.Dropout(0.25)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.linear(self.drop(x)).tanh())


class Clipped(nn.Module):
    """Clips its weight before each use."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.linear.weight.clamp_(-0.2, 0.2)
        return self.linear(x).tanh()


class Stepping(nn.Module):
    """Trains itself by one step in each call, and returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        loss = self.linear(x).float().square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.sub_(0.1 * parameter.grad)
        return loss.detach()


def _static(model: Any) -> Prepared:
    """Make a callable that returns the same memory at every call, and says so."""
    memory: list[Tensor] = []

    def call(x: Tensor) -> Tensor:
        y = model(x)
        memory[:] = memory or [torch.empty_like(y)]
        memory[0].copy_(y)
        return memory[0].view_as(y)

    return Prepared(call, dict, reuses_outputs=True)


register_mode("static_as_declared", _static, compiles=False)

PAIR = _green("named_tuple", function(_pair), also=ALL)
LISTED = _green("list", function(_listed), also=ALL)
KEYED = _green("dict", function(_keyed), also=ALL)
CHUNKED = _green("chunked", function(_chunked), also=ALL)
HIGHEST = _green("return_type", function(_highest), also=ALL)
NUMBERS = _green("numbers_and_text", function(_numbers), also=ALL, dtypes={"output[0]": "float32"})
VIEWS = _green("views", function(_views), also=ALL, aliases=(("output[1]", "x"), ("output[0]", "output[2]")))
HALVES = _green("halves", function(_halves), also=ALL)
RESULT = _green("dataclass", function(_result), also=COMPILED)
MEASURED = _green("a_number_of_the_input", function(_measured))
WEIGHTS = _green("weights", Weights, also=ALL)
CACHING = _green("caching", Caching, changes_state=("hooks", "random generator"))
DROPPING = _green("dropping_seeded", Dropping, also=ALL, changes_state=("random generator",))
CLIPPED = _green("clipped_weight", Clipped, also=ALL, mutates=("linear.weight",))
STEPPING = _green(
    "stepping",
    Stepping,
    differentiable=False,
    mutates=("linear.weight", "linear.bias"),
    changes_state=("gradients",),
)
LIMITED = _green(
    "largest_norm",
    lambda: nn.Embedding(9, 4, max_norm=1.0),
    drawn(lambda g: (torch.randint(9, (5,), generator=g),)),
    also=COMPILED,
    mutates=("weight",),
)
STATIC = _green("static_outputs", function(torch.exp), also={"static_as_declared": ("fp32",)}, differentiable=False)
