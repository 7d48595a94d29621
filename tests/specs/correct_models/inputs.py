"""Right models with inputs and outputs of every kind."""

import math
from collections import namedtuple
from functools import partial

import torch
from correct_parts import drawn, function, green, normals, rows
from torch import nn

from zoo import Call, Convention

CELLS = []
_green = partial(green, CELLS)


def _keywords(x, *, scale, power=1.0, how="add", bias=None):
    y = x * scale if how == "multiply" else x + scale
    return y.exp() * power if bias is None else y


def _keyword_call(g):
    x, scale = torch.randn(6, 8, generator=g), torch.randn(8, generator=g)
    return Call((x,), {"scale": scale, "how": "multiply", "power": 0.5})


def _twice(a, b):
    return a @ b.t() + a.sum()


def _same_twice(g):
    x = torch.randn(6, 8, generator=g)
    return x, x


def _listed(tensors, weights):
    return torch.cat(tensors, dim=-1).tanh() * weights["w"]


def _list_and_dict(g):
    return [torch.randn(6, 3, generator=g), torch.randn(6, 5, generator=g)], {"w": torch.randn(8, generator=g)}


def _in_place(x, cache):
    y = x * cache.sum(0)
    cache.mul_(0.5).add_(x.detach())
    return y


def _inner_in_place(x):
    y = x * 2
    y += x
    y[:, 0] = 1.5
    y[1].mul_(0.5)
    return y.relu_()


def _no_rows(x):
    return x.exp().sum(0)


def _batch_and_cache(batch, cache):
    batch["doubled"] = batch.pop("x") * 2
    batch["y"] = batch["y"].exp()
    cache.append(batch["y"] + batch["doubled"])
    return batch, cache[0].tanh()


def _batched(g):
    return {"x": torch.randn(6, 8, generator=g), "y": torch.randn(6, 8, generator=g)}, []


KEYWORDS = _green("keywords", function(_keywords), drawn(_keyword_call), also={"compiled": ("fp32",)})
SAME_TWICE = _green(
    "same_tensor_twice",
    function(lambda a, b: a @ b.t() + a.sum()),
    drawn(lambda g: (torch.randn(6, 8, generator=g),) * 2),
)
EXPANDED = _green(
    "expanded", function(lambda x: x.exp() + x.sum(0)), drawn(lambda g: (torch.randn(1, 8, generator=g).expand(6, 8),))
)
LISTED = _green(
    "listed", function(lambda tensors, weights: torch.cat(tensors, dim=-1).tanh() * weights["w"]), drawn(_list_and_dict)
)
IN_PLACE = _green(
    "in_place", function(_in_place), normals((6, 8), (6, 8)), mutates=("cache",), also={"compiled": ("fp32",)}
)
FILLED = _green("filled", function(_batch_and_cache), drawn(_batched), also={"compiled": ("fp32", "amp_bf16")})
INNER_IN_PLACE = _green("inner_in_place", function(_inner_in_place), rows(6, 8, rowwise=True))
NO_ROWS = _green(
    "no_rows", function(lambda x: x.exp().sum(0)), rows(0, 8, name="empty"), rows(1, 8, name="one"), rows(5, 8)
)
EXTREME = _green(
    "extreme",
    function(lambda x: (x.square().sum(-1).sqrt(), x * x.abs().log())),
    drawn(lambda g: (torch.randn(6, 8, generator=g) * torch.logspace(-6, 6, 8, base=2),)),
)
FAINT = _green(
    "faint", lambda: nn.Linear(32, 32, bias=False), drawn(lambda g: (torch.randn(64, 32, generator=g) * 2.0**-20,))
)
WINNERS = _green("winners", function(lambda x: x * (x == x.amax(-1, keepdim=True))))
THRESHOLD = _green("threshold_mask", function(lambda x: (x > 0.5, x.masked_fill(x < -0.5, 0.0))))


# Outputs

Pair = namedtuple("Pair", "first second")  # noqa: PYI024 -- models return such


def _integers(x):
    values, indices = x.topk(3, dim=-1)
    return {
        "argmax": x.argmax(-1),
        "top": (values, indices),
        "count": (x > 0).sum(),
        "mask": x > 0.5,
        "bytes": (x * 16).to(torch.uint8) if x.dtype == torch.uint8 else (x > 0).to(torch.uint8),
        "shape": torch.tensor(x.shape),
    }


def _complex(x):
    z = torch.complex(x, x.flip(-1))
    return z * (0.5 + 2.0j), z.abs(), torch.fft.rfft(x)


def _nested(x):
    return {"pair": Pair(x.exp(), [x * 2, (x.sum(), None)]), "none": None, "again": {"deep": x.mean(0)}}


def _small(x):
    return x[:0] * 2, x[0, 0] * 3, x[:, :0].sum(), x.new_zeros(()), x[:1, :1].exp()


def _aliases(x):
    y = x.exp()
    return x, x.t(), x.view(-1), y, y, y[::2, 1], x.sum(0).expand(4, 8), y.detach(), torch.ones(3)


def _special(x):
    hidden = torch.arange(8) % 3 == 0
    masked = x.masked_fill(hidden, -math.inf)
    return masked.log_softmax(-1), masked.softmax(-1), x.masked_fill(hidden, math.nan), masked.amax(-1)


INTEGERS = _green("integers", function(_integers))
COMPLEX = _green("complex_numbers", function(_complex))
NESTED = _green("nested", function(_nested), also={"compiled": ("fp32",)})
SMALL = _green("small_outputs", function(_small))
ALIASES = _green(
    "aliases", function(_aliases), conventions=(Convention(tensor="output[7]", why="handed out without its graph"),)
)
SPECIAL = _green("special_values", function(_special))
OVERFLOW = _green(
    "overflow", function(lambda x: (x @ x.t()) * 1.0), drawn(lambda g: (torch.randn(6, 8, generator=g) * 256,))
)
NO_GRADIENT = _green("no_gradient", function(lambda x: (x.detach() + 1.5).floor()), differentiable=False)
