"""Right models that look wrong to a careless judge, each of which must be green in every cell it names."""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- its usual name
from torch.utils.checkpoint import checkpoint

from conformance import Prepared, register_mode
from zoo import Call, Case, Expect, Spec

PRECISIONS = ("fp32", "amp_fp16", "amp_bf16")
CELLS: list[tuple[str, str, str]] = []


def _rows(*shape: int, name: str = "typical", rowwise: bool = False) -> Case:
    return Case(name=name, inputs=lambda g: (torch.randn(*shape, generator=g),), independent_samples=rowwise)


def _drawn(draw: Any) -> Case:
    return Case(name="typical", inputs=draw)


def _green(
    name: str,
    build: Any,
    *cases: Case,
    precisions: tuple[str, ...] = PRECISIONS,
    also: dict[str, tuple[str, ...]] | None = None,
    **fields: Any,
) -> Spec:
    """Make a spec and note its cells: eager in `precisions`, other modes as `also` says; compiling takes long."""
    for mode, chosen in {"eager": precisions, **(also or {})}.items():
        CELLS.extend((name, mode, precision) for precision in chosen)
    cases = cases or (_rows(6, 8),)
    return Spec(name=name, summary=name, source="a right model", build=build, cases=cases, **fields)


def _function(function: Any) -> Any:
    return lambda: function


def _scripted_dtype(precision: str, dtype: str) -> Expect:
    return Expect(
        outcome="dtype",
        modes=("scripted",),
        precisions=(precision,),
        tensor="output",
        dtype=dtype,
        reason="TorchScript's autocast pass has rules of its own",
    )


# Another road to the same numbers, as modes of one Linear


def _low(y: Tensor) -> Tensor:
    on = torch.is_autocast_enabled("cpu")
    return y.to(torch.get_autocast_dtype("cpu") if on else torch.float32)


def _more_exactly(model: nn.Linear) -> Prepared:
    """In float64, rounded once: nearer to the oracle than eager, and far from eager."""

    def call(x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            y = x.double() @ model.weight.double().t() + model.bias.double()
        return _low(y)

    return Prepared(call, dict)


def _in_another_order(model: nn.Linear) -> Prepared:
    """One column after the other from the last to the first, every partial sum rounded."""

    def call(x: Tensor) -> Tensor:
        y = _low(model.bias)
        for k in reversed(range(model.in_features)):
            y = _low(y + x[:, k, None] * model.weight[:, k])
        return y

    return Prepared(call, dict)


register_mode("more_exact", _more_exactly)
register_mode("another_order", _in_another_order)

LINEAR = _green(
    "plain_linear",
    lambda: nn.Linear(32, 16),
    _rows(24, 32),
    also=dict.fromkeys(("scripted", "compiled", "more_exact", "another_order"), PRECISIONS),
    dtypes="follows",
    one_graph=True,
)


# Casts


class RMSNorm(nn.Module):
    """As every Llama has it: up to float32, down again."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 16)
        self.weight = nn.Parameter(torch.rand(16) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(x)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def _cast_along(x: Tensor) -> Any:
    table = torch.arange(8, dtype=torch.float32) / 8
    angles = x.to(torch.float32) * table + torch.tensor(0.25)
    return angles.cos().type_as(x), torch.softmax(x, dim=-1, dtype=torch.float32)


RMS_NORM = _green("rms_norm", RMSNorm, _rows(12, 16), also={"scripted": PRECISIONS, "compiled": ("amp_bf16",)})
CAST_ALONG = _green("cast_along", _function(_cast_along))


# Gradients that are not derivatives, and gradients that are zero


class _Sign(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.sign()

    @staticmethod
    def backward(_, g):
        return g


class Binary(nn.Module):
    """A Linear with binary weights, straight through the sign."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 8) + 0.25)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, _Sign.apply(self.weight))


def _linear_in(model: Binary, x: Tensor) -> Tensor:
    """Its value is wrong and its derivative is what straight-through makes of `Binary`."""
    return x @ (model.weight.sign().detach() - model.weight.detach() + model.weight).t()


def _detach_trick(x: Tensor) -> Tensor:
    return x + (x.sign() - x).detach()


class BiasBeforeNorm(nn.Module):
    """The gradients of its first bias and of the softmax's shift are structurally zero."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3)
        self.norm = nn.BatchNorm1d(4)
        self.shift = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.norm(self.conv(x)) + self.shift, dim=-1)


STRAIGHT = _green("straight_through", Binary, surrogate_gradient=_linear_in)
DETACH_TRICK = _green("detach_trick", _function(_detach_trick), surrogate_gradient=lambda _, x: x * 1.0)
BIAS_BEFORE_NORM = _green(
    "bias_before_norm",
    BiasBeforeNorm,
    _rows(8, 3, 10),
    also={"scripted": PRECISIONS, "compiled": ("amp_fp16",)},
    expectations=(
        _scripted_dtype("amp_fp16", "float32"),
        _scripted_dtype("amp_bf16", "float32"),
    ),
)


# Outputs of every kind

Pair = namedtuple("Pair", "first second")  # noqa: PYI024 -- models return such


def _integers(x: Tensor) -> Any:
    values, indices = x.topk(3, dim=-1)
    return {
        "argmax": x.argmax(-1),
        "top": (values, indices),
        "count": (x > 0).sum(),
        "mask": x > 0.5,
        "bytes": (x * 16).to(torch.uint8) if x.dtype == torch.uint8 else (x > 0).to(torch.uint8),
        "shape": torch.tensor(x.shape),
    }


def _complex(x: Tensor) -> Any:
    z = torch.complex(x, x.flip(-1))
    return z * (0.5 + 2.0j), z.abs(), torch.fft.rfft(x)


def _nested(x: Tensor) -> Any:
    return {"pair": Pair(x.exp(), [x * 2, (x.sum(), None)]), "none": None, "again": {"deep": x.mean(0)}}


def _small(x: Tensor) -> Any:
    return x[:0] * 2, x[0, 0] * 3, x[:, :0].sum(), x.new_zeros(()), x[:1, :1].exp()


def _aliases(x: Tensor) -> Any:
    y = x.exp()
    return x, x.t(), x.view(-1), y, y, y[::2, 1], x.sum(0).expand(4, 8), y.detach(), torch.ones(3)


def _special(x: Tensor) -> Any:
    hidden = torch.arange(8) % 3 == 0
    masked = x.masked_fill(hidden, -math.inf)
    return masked.log_softmax(-1), masked.softmax(-1), x.masked_fill(hidden, math.nan), masked.amax(-1)


INTEGERS = _green("integers", _function(_integers))
COMPLEX = _green("complex_numbers", _function(_complex))
NESTED = _green("nested", _function(_nested), also={"compiled": ("fp32",)})
SMALL = _green("small_outputs", _function(_small))
ALIASES = _green("aliases", _function(_aliases))
SPECIAL = _green("special_values", _function(_special))
OVERFLOW = _green(
    "overflow", _function(lambda x: (x @ x.t()) * 1.0), _drawn(lambda g: (torch.randn(6, 8, generator=g) * 256,))
)
NO_GRADIENT = _green("no_gradient", _function(lambda x: (x.detach() + 1.5).floor()), differentiable=False)


# Inputs of every kind


def _keywords(x: Tensor, *, scale: Tensor, power: float = 1.0, how: str = "add", bias: Any = None) -> Tensor:
    y = x * scale if how == "multiply" else x + scale
    return y.exp() * power if bias is None else y


def _keyword_call(g: torch.Generator) -> Call:
    x, scale = torch.randn(6, 8, generator=g), torch.randn(8, generator=g)
    return Call((x,), {"scale": scale, "how": "multiply", "power": 0.5})


def _twice(a: Tensor, b: Tensor) -> Tensor:
    return a @ b.t() + a.sum()


def _same_twice(g: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(6, 8, generator=g)
    return x, x


def _listed(tensors: list[Tensor], weights: dict[str, Tensor]) -> Tensor:
    return torch.cat(tensors, dim=-1).tanh() * weights["w"]


def _list_and_dict(g: torch.Generator) -> Any:
    return [torch.randn(6, 3, generator=g), torch.randn(6, 5, generator=g)], {"w": torch.randn(8, generator=g)}


def _in_place(x: Tensor, cache: Tensor) -> Tensor:
    y = x * cache.sum(0)
    cache.mul_(0.5).add_(x.detach())
    return y


def _inner_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y += x
    y[:, 0] = 1.5
    y[1].mul_(0.5)
    return y.relu_()


def _no_rows(x: Tensor) -> Tensor:
    return x.exp().sum(0)


KEYWORDS = _green("keywords", _function(_keywords), _drawn(_keyword_call), also={"compiled": ("fp32",)})
SAME_TWICE = _green("same_tensor_twice", _function(_twice), _drawn(_same_twice))
EXPANDED = _green(
    "expanded",
    _function(lambda x: x.exp() + x.sum(0)),
    _drawn(lambda g: (torch.randn(1, 8, generator=g).expand(6, 8),)),
)
LISTED = _green("listed", _function(_listed), _drawn(_list_and_dict))
IN_PLACE = _green(
    "in_place",
    _function(_in_place),
    _drawn(lambda g: (torch.randn(6, 8, generator=g), torch.randn(6, 8, generator=g))),
    mutates=("cache",),
    also={"compiled": ("fp32",)},
)
INNER_IN_PLACE = _green("inner_in_place", _function(_inner_in_place), _rows(6, 8, rowwise=True))
NO_ROWS = _green("no_rows", _function(_no_rows), _rows(0, 8, name="empty"), _rows(1, 8, name="one"), _rows(5, 8))
EXTREME = _green(
    "extreme",
    _function(lambda x: (x.square().sum(-1).sqrt(), x * x.abs().log())),
    _drawn(lambda g: (torch.randn(6, 8, generator=g) * torch.logspace(-6, 6, 8, base=2),)),
)
FAINT = _green(
    "faint",
    lambda: nn.Linear(32, 32, bias=False),
    _drawn(lambda g: (torch.randn(64, 32, generator=g) * 2.0**-20,)),
)
WINNERS = _green("winners", _function(lambda x: x * (x == x.amax(-1, keepdim=True))))
THRESHOLD = _green("threshold_mask", _function(lambda x: (x > 0.5, x.masked_fill(x < -0.5, 0.0))))


# State


class Stateful(nn.Module):
    """Batch norm in training, a moving average, a counter, an unused and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.frozen = nn.Parameter(torch.randn(8), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(3))
        self.register_buffer("average", torch.zeros(8))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        before = self.average.clone()
        with torch.no_grad():
            self.average.lerp_(x.mean(0), 0.25)
            self.calls += 1
        return self.norm(x) * self.frozen + before


class Shared(nn.Module):
    """The same Linear twice, and its weight under a second name."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 8)
        self.other = nn.Linear(8, 8, bias=False)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.other(torch.tanh(self.one(self.one(x))))


class Checkpointed(nn.Module):
    """Forward runs again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda t: torch.tanh(self.linear(t)), x, use_reentrant=False)


STATEFUL = _green("stateful", Stateful, _rows(16, 8), also={"scripted": PRECISIONS})
SHARED = _green("shared", Shared, also={"scripted": PRECISIONS})
CHECKPOINTED = _green("checkpointed", Checkpointed)
TRANSFORMED = _green("transformed", _function(torch.vmap(torch.func.grad(lambda v: (v**3).sum()))))


# Ordinary networks


class Attention(nn.Module):
    """A pre-norm transformer block with two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, time, 3, 2, width // 2).permute(2, 3, 0, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.permute(1, 2, 0, 3).reshape(batch, time, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ConvNet(nn.Module):
    """Convolution, ReLU, max pooling, Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(2, 4, 3), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(F.max_pool2d(torch.relu(self.conv(x)), 2).flatten(1))


class Embedded(nn.Module):
    """An embedding with a padding row, and what is made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(10, 6), nn.Linear(6, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.linear(self.table(tokens)).mean(1)


def _loss(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target, label_smoothing=0.125)


def _losses(g: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(6, 8, generator=g), torch.randint(8, (6,), generator=g)


def _gru_inputs(g: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(5, 6, generator=g), torch.randn(5, 8, generator=g)


def _scattered(x: Tensor, index: Tensor) -> Any:
    return (
        torch.zeros(4, 8).index_add(0, index, x),
        torch.zeros(4, 8).scatter_reduce(0, index[:, None].expand(6, 8), x, "amax", include_self=False),
        x[index].cumsum(0),
        torch.zeros(4, dtype=torch.int64).scatter_add(0, index, torch.ones_like(index)),
    )


def _scatter_inputs(g: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(6, 8, generator=g), torch.tensor([0, 3, 1, 3, 2, 0])


BLOCK = _green("transformer_block", Attention, _rows(3, 6, 16), also={"compiled": ("amp_bf16",)})
CONV_NET = _green("conv_net", ConvNet, _rows(8, 2, 6, 6, rowwise=True), also={"scripted": PRECISIONS})
LAYER_NORM = _green("layer_norm", lambda: nn.LayerNorm(8), also={"scripted": PRECISIONS})
EMBEDDED = _green("embedded", Embedded, _drawn(lambda g: (torch.randint(10, (7, 3), generator=g),)))
GRU = _green(
    "gru_cell",
    lambda: nn.GRUCell(6, 8),
    _drawn(_gru_inputs),
    also={"scripted": PRECISIONS},
    expectations=(
        _scripted_dtype("amp_fp16", "float16"),
        _scripted_dtype("amp_bf16", "bfloat16"),
    ),
)
LSTM = _green(  # oneDNN has no float16 LSTM on most processors
    "lstm", lambda: nn.LSTM(6, 5, batch_first=True), _rows(3, 4, 6), precisions=("fp32", "amp_bf16")
)
HEADS = _green(
    "multihead",
    lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    _drawn(lambda g: (torch.randn(2, 5, 8, generator=g),) * 3),
)
LOSS = _green("loss", _function(_loss), _drawn(_losses))
SCATTERED = _green("scattered", _function(_scattered), _drawn(_scatter_inputs))
GROUPS = _green(
    "groups",
    lambda: nn.Sequential(nn.ConvTranspose1d(4, 6, 3, stride=2), nn.GroupNorm(2, 6), nn.SiLU(), nn.AvgPool1d(2)),
    _rows(3, 4, 9),
)
DROPOUT_OFF = _green("dropout_off", lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).eval())
