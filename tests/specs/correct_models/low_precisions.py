"""Right models whose roundings in a low precision are large, rare or alike."""

from functools import partial

import torch
from correct_parts import Parts, drawn, green, rows
from torch import nn

CELLS = []
LOW = ("amp_fp16", "amp_bf16")
_green = partial(green, CELLS, precisions=LOW)


class LayerScale(Parts):
    """A branch whose share is tiny at first, beside loud inputs: its gradients are near float16's smallest number."""

    def forward(self, x):
        branch = self.down(nn.functional.gelu(self.up(x)))
        return self.head(x + self.share * branch), 2.0**8 * x


class Embedding(Parts):
    """Drops elements as GPT-2 does: of float32 numbers first, then of low ones, each time before a norm.

    The 1 / 0.9 in a mask is 0.16 % too small in bfloat16. If both masks were low, the norm would divide it out.
    """

    def forward(self, x):
        x = self.drop(x)
        return self.last(x + self.drop(self.narrow(nn.functional.gelu(self.wide(self.first(x))))))


class FaintBias(Parts):
    """A branch with a tiny share: its bias adds up, for many rows, gradients near float16's smallest number."""

    def forward(self, x):
        branch = self.branch(x)
        return self.head(x + self.share * branch), 2.0**10 * x


class PooledNorm(Parts):
    """A mean over rows after a layer norm: all rows have the same gradient, so all have the same rounding."""

    def forward(self, x):
        return self.head(self.norm(self.embed(x)).mean(1))


class RareUnits(Parts):
    """Units that are on for few rows: a rounding switches one on that is off in all draws of the oracle."""

    def forward(self, x):
        return self.head(torch.relu(self.wide(x) - 1.25))


class ZeroGain(Parts):
    """A branch with standardised weights that is off at first: its gradients are zeros of either sign."""

    def forward(self, x):
        flat = self.kernel.reshape(1, 4, -1)
        standardised = nn.functional.batch_norm(flat, None, None, torch.ones(4), training=True).view_as(self.kernel)
        return 1.0 + self.gain * nn.functional.conv2d(nn.functional.gelu(x), standardised)


class LargeInside(Parts):
    """Divides and multiplies by the same number: the gradients between are as many times as large."""

    def forward(self, x):
        return self.layer(x) / 512.0 * 512.0


LAYER_SCALE = _green(
    "layer_scale",
    lambda: LayerScale(
        up=nn.Linear(16, 32),
        down=nn.Linear(32, 16),
        head=nn.Linear(16, 4),
        share=nn.Parameter(torch.full((16,), 2.0**-20)),
    ),
    rows(6, 16),
)
FAINT_BIAS = _green(
    "faint_bias",
    lambda: FaintBias(branch=nn.Linear(16, 16), head=nn.Linear(16, 4), share=nn.Parameter(torch.full((16,), 2.0**-20))),
    rows(512, 16),
)
POOLED_NORM = _green(
    "pooled_norm",
    lambda: PooledNorm(embed=nn.Linear(32, 32), norm=nn.LayerNorm(32), head=nn.Linear(32, 10)),
    rows(2, 64, 32),
)
RARE_UNITS = _green("rare_units", lambda: RareUnits(wide=nn.Linear(8, 1024), head=nn.Linear(1024, 10)), rows(2, 8))
ZERO_GAIN = _green(
    "zero_gain",
    lambda: ZeroGain(kernel=nn.Parameter(torch.randn(4, 3, 3, 3)), gain=nn.Parameter(torch.zeros(()))),
    rows(2, 3, 8, 8),
)
LARGE_INSIDE = _green("large_gradients_inside", lambda: LargeInside(layer=nn.Linear(8, 8)))
HEAVY_TAILS = _green(  # some draws have far larger gradients than others
    "heavy_tails",
    partial(nn.Linear, 1, 1),
    drawn(lambda g: (torch.randn(8, 1, generator=g).clamp(-3.0, 3.0) ** 7,)),
)
EMBEDDING = _green(
    "dropping_before_a_norm",
    lambda: Embedding(
        first=nn.LayerNorm(32),
        last=nn.LayerNorm(32),
        wide=nn.Linear(32, 128),
        narrow=nn.Linear(128, 32),
        drop=nn.Dropout(0.1),
    ),
    rows(32, 16, 32),
    changes_state=("random generator",),
)
