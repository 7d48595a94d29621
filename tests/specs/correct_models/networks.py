"""Right models with state, and ordinary networks."""

from functools import partial

import torch
from correct_parts import PRECISIONS, Parts, drawn, function, green, normals, rows, scripted_dtype
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- its usual name
from torch.utils.checkpoint import checkpoint

CELLS = []
_green = partial(green, CELLS)


# State


class Stateful(Parts):
    """Batch norm in training, a moving average, a counter, an unused and a frozen parameter."""

    def forward(self, x):
        before = self.average.clone()
        with torch.no_grad():
            self.average.lerp_(x.mean(0), 0.25)
            self.calls += 1
        return self.norm(x) * self.frozen + before


class Shared(nn.Module):
    """The same Linear twice, and its weight under a second name."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(8, 8)
        self.other = nn.Linear(8, 8, bias=False)
        self.other.weight = self.one.weight

    def forward(self, x):
        return self.other(torch.tanh(self.one(self.one(x))))


class Checkpointed(Parts):
    """Forward runs again in backward."""

    def forward(self, x):
        return checkpoint(lambda t: torch.tanh(self.linear(t)), x, use_reentrant=False)


STATEFUL = _green(
    "stateful",
    lambda: Stateful(
        norm=nn.BatchNorm1d(8),
        frozen=nn.Parameter(torch.randn(8), requires_grad=False),
        unused=nn.Parameter(torch.randn(3)),
        average=torch.zeros(8),
        calls=torch.zeros((), dtype=torch.int64),
    ),
    rows(16, 8),
    also={"scripted": PRECISIONS},
)
SHARED = _green("shared", Shared, also={"scripted": PRECISIONS})
CHECKPOINTED = _green("checkpointed", lambda: Checkpointed(linear=nn.Linear(8, 8)))
TRANSFORMED = _green("transformed", function(torch.vmap(torch.func.grad(lambda v: (v**3).sum()))))


# Ordinary networks


class Attention(Parts):
    """A pre-norm transformer block with two heads."""

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, time, 3, 2, width // 2).permute(2, 3, 0, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.permute(1, 2, 0, 3).reshape(batch, time, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Embedded(Parts):
    """An embedding with a padding row, and what is made of it."""

    def forward(self, tokens):
        return self.linear(self.table(tokens)).mean(1)


def _losses(g):
    return torch.randn(6, 8, generator=g), torch.randint(8, (6,), generator=g)


def _scattered(x, index):
    return (
        torch.zeros(4, 8).index_add(0, index, x),
        torch.zeros(4, 8).scatter_reduce(0, index[:, None].expand(6, 8), x, "amax", include_self=False),
        x[index].cumsum(0),
        torch.zeros(4, dtype=torch.int64).scatter_add(0, index, torch.ones_like(index)),
    )


def _scatter_inputs(g):
    return torch.randn(6, 8, generator=g), torch.tensor([0, 3, 1, 3, 2, 0])


BLOCK = _green(
    "transformer_block",
    lambda: Attention(
        norm1=nn.LayerNorm(16),
        norm2=nn.LayerNorm(16),
        qkv=nn.Linear(16, 48),
        out=nn.Linear(16, 16),
        up=nn.Linear(16, 32),
        down=nn.Linear(32, 16),
    ),
    rows(3, 6, 16),
    also={"compiled": ("amp_bf16",)},
)
CONV_NET = _green(
    "conv_net",
    lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 5)),
    rows(8, 2, 6, 6, rowwise=True),
    also={"scripted": PRECISIONS},
)
GROUPED_ROWS = _green("grouped_rows", lambda: nn.GroupNorm(2, 8), rows(6, 8))  # no axis after the channels
NORM_OF_NO_ROWS = _green("norm_of_no_rows", lambda: nn.LayerNorm(8), rows(0, 8, name="none"), rows(8, name="one"))
LAYER_NORM = _green("layer_norm", lambda: nn.LayerNorm(8), also={"scripted": PRECISIONS})
EMBEDDED = _green(
    "embedded",
    lambda: Embedded(table=nn.Embedding(10, 6), linear=nn.Linear(6, 4)),
    drawn(lambda g: (torch.randint(10, (7, 3), generator=g),)),
)
GRU = _green(
    "gru_cell",
    lambda: nn.GRUCell(6, 8),
    normals((5, 6), (5, 8)),
    also={"scripted": PRECISIONS},
    expectations=(scripted_dtype("amp_fp16", "float16"), scripted_dtype("amp_bf16", "bfloat16")),
)
# oneDNN has a bfloat16 LSTM on processors with AVX-512 alone, and a float16 one on few
LSTM = _green(
    "lstm",
    lambda: nn.LSTM(6, 5, batch_first=True),
    rows(3, 4, 6),
    precisions=("fp32", "amp_bf16") if torch.ops.mkldnn._is_mkldnn_bf16_supported() else ("fp32",),
)
HEADS = _green(
    "multihead",
    lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    drawn(lambda g: (torch.randn(2, 5, 8, generator=g),) * 3),
)
LOSS = _green(
    "loss", function(lambda logits, target: F.cross_entropy(logits, target, label_smoothing=0.125)), drawn(_losses)
)
SCATTERED = _green("scattered", function(_scattered), drawn(_scatter_inputs))
GROUPS = _green(
    "groups",
    lambda: nn.Sequential(nn.ConvTranspose1d(4, 6, 3, stride=2), nn.GroupNorm(2, 6), nn.SiLU(), nn.AvgPool1d(2)),
    rows(3, 4, 9),
)
SPARSE = _green(
    "sparse_gradient",
    lambda: nn.Sequential(nn.EmbeddingBag(10, 4, mode="sum", sparse=True), nn.Tanh()),
    drawn(lambda g: (torch.randint(0, 4, (6, 5), generator=g),)),
    also={"scripted": PRECISIONS, "compiled": ("fp32",)},
)
DROPOUT_OFF = _green("dropout_off", lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).eval())


class Noisy(nn.Module):
    """It adds noise in train mode, and in eval mode leaves nothing to compile."""

    def forward(self, x):
        return x + torch.randn_like(x) if self.training else x


NOISY = _green("noisy", Noisy, changes_state=("random generator",), also={"compiled": ("fp32",)})
