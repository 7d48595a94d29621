"""Right models with containers of every kind, outputs that share memory, and state that they change as declared."""

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from correct_parts import Parts, drawn, function, green
from torch import Tensor, nn

from conformance import Prepared, register_mode

CELLS = []
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


def _pair(x):
    return Pair(x.exp(), x * 2)


def _listed(x):
    return [x.exp(), x * 2]


def _keyed(x):
    return {"b": x.exp(), "a": x * 2}


def _chunked(x):
    return x.exp().chunk(2)


def _highest(x):
    return x.topk(2)


def _numbers(x):
    return x.exp(), 3, 2.5, True, "mean", x.shape[0]


def _views(x):
    return x, x.t(), x[1:], x[:, 0], x.reshape(-1), x[0].expand(3, 8), x[::2], x[1::2]


def _halves(x):
    y = x.exp()
    return y[:3], y[3:], y


def _result(x):
    return Result(x.mean(0), 2.5, "mean", OrderedDict(largest=x.max(1), pair=[Pair(x * 2, x)]))


class Weights(Parts):
    """Returns its weight and its buffer, beside a number that the input has no part in."""

    def forward(self, x):
        return self.linear(x), self.linear.weight.t(), self.offset


class Caching(nn.Module):
    """Keeps a mask in an attribute that the first call makes, seeds the generator, and is hooked."""

    def forward(self, x):
        torch.manual_seed(3)
        if not hasattr(self, "mask"):
            self.mask = torch.arange(x.shape[-1]) > 2
            self.register_forward_hook(lambda *_: None)
        return x * self.mask


class Dropping(Parts):
    """Drops elements twice, the second time where autocast has made them low."""

    def forward(self, x):
        return self.drop(self.linear(self.drop(x)).tanh())


class Clipped(Parts):
    """Clips its weight before each use."""

    def forward(self, x):
        with torch.no_grad():
            self.linear.weight.clamp_(-0.2, 0.2)
        return self.linear(x).tanh()


class Stepping(Parts):
    """Trains itself by one step in each call, and returns the loss."""

    def forward(self, x):
        loss = self.linear(x).float().square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.sub_(0.1 * parameter.grad)
        return loss.detach()


def _static(model):
    """Make a callable that returns the same memory at every call, and says so."""
    memory = []

    def call(x):
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
MEASURED = _green("a_number_of_the_input", function(lambda x: (x.exp(), x.detach().double().sum().item())))
WEIGHTS = _green("weights", lambda: Weights(linear=nn.Linear(8, 4), offset=torch.ones(4)), also=ALL)
CACHING = _green("caching", Caching, changes_state=("hooks", "random generator"))
DROPPING = _green(
    "dropping_seeded",
    lambda: Dropping(linear=nn.Linear(8, 8), drop=nn.Dropout(0.25)),
    also=ALL,
    changes_state=("random generator",),
)
CLIPPED = _green("clipped_weight", lambda: Clipped(linear=nn.Linear(8, 8)), also=ALL, mutates=("linear.weight",))
STEPPING = _green(
    "stepping",
    lambda: Stepping(linear=nn.Linear(8, 8)),
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
