"""Right models that are cast to a narrow dtype as a whole, or that are in one themselves."""

from functools import partial

import torch
from correct_parts import Parts, drawn, function, green, rows
from torch import nn

from zoo import Case

CELLS = []
CAST = ("fp16", "bf16")
_green = partial(green, CELLS, precisions=CAST)


class Block(Parts):
    """Attention and a feed-forward part, each with a norm before it."""

    def forward(self, x):
        query, key, value = self.into(self.first(x)).chunk(3, -1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Recurrent(Parts):
    """One weight that is used in every step, so its gradient adds up one term for each."""

    def forward(self, x):
        state = torch.zeros_like(x)
        for _ in range(24):
            state = torch.tanh(self.step(state) + x)
        return state


class MixedNorm(Parts):
    """A model in bfloat16 whose norm stays in float32."""

    def forward(self, x):
        return self.out(self.norm(self.into(x).float()).bfloat16())


def _gathered(generator):
    return torch.randn(6, 8, generator=generator), torch.randint(8, (6, 1000), generator=generator)


def _added(generator):
    return torch.randn(1500, 4, generator=generator), torch.randint(3, (1500,), generator=generator)


def _half_rows(generator):
    return (torch.randn(6, 8, generator=generator).bfloat16(),)


BLOCK = _green(
    "block_cast",
    lambda: Block(
        first=nn.LayerNorm(16),
        second=nn.LayerNorm(16),
        into=nn.Linear(16, 48),
        out=nn.Linear(16, 16),
        up=nn.Linear(16, 32),
        down=nn.Linear(32, 16),
    ),
    rows(3, 6, 16),
    also={"scripted": CAST, "compiled": ("bf16",)},
)
CONV = _green(
    "conv_cast",
    lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)),
    rows(8, 2, 6, 6, rowwise=True),
    also={"scripted": CAST},
)
COUNTED = _green(  # a table of few rows that many tokens read: each row's gradient adds up many narrow terms
    "counted_cast", lambda: nn.Embedding(4, 8), drawn(lambda g: (torch.randint(4, (1000,), generator=g),))
)
RECURRENT = _green("recurrent_cast", lambda: Recurrent(step=nn.Linear(8, 8)), rows(16, 8), also={"scripted": CAST})
GATHERED = _green("gathered_cast", function(lambda x, i: x.gather(1, i)), drawn(_gathered))
ADDED = _green("added_cast", function(lambda x, i: x.new_zeros(3, 4).index_add(0, i, x)), drawn(_added))
SUMMED = _green("summed_cast", function(lambda x: (x.sum(-1), x.cumsum(-1), x.mean(), x.var(-1))), rows(4, 1000))
SOFTMAX = _green("softmax_cast", function(lambda x: (x.softmax(-1), x.logsumexp(-1))), rows(8, 512))
LOSS = _green(
    "loss_cast",
    function(nn.functional.cross_entropy),
    drawn(lambda g: (torch.randn(64, 10, generator=g), torch.randint(10, (64,), generator=g))),
)
FAINT = _green("faint_cast", lambda: nn.Linear(32, 32), drawn(lambda g: (torch.randn(64, 32, generator=g) * 2.0**-20,)))
OWN = green(
    CELLS,
    "in_bfloat16",
    lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).bfloat16(),
    Case(name="typical", inputs=_half_rows),
    dtype="bfloat16",
    precisions=("bf16", "amp_bf16"),
    also={"scripted": ("bf16",), "compiled": ("bf16",)},
)
MIXED = green(
    CELLS,
    "mixed_norm",
    lambda: MixedNorm(into=nn.Linear(8, 16).bfloat16(), norm=nn.LayerNorm(16), out=nn.Linear(16, 4).bfloat16()),
    Case(name="typical", inputs=_half_rows),
    dtype="bfloat16",
    precisions=("bf16",),
)
