"""Right models with modes, flags, numbers and states of which a second look may be wrong."""

import time
from functools import partial

import torch
from correct_parts import Parts, green, rows
from torch import nn

CELLS = []
EAGER = ("fp32", "amp_bf16")
_green = partial(green, CELLS, precisions=EAGER)


class OtherDtype(Parts):
    """A flag, or eval mode, makes it return float64."""

    def forward(self, x):
        y = self.linear(x)
        return y.double() if self.double_output or not self.training else y


class HalfInside(Parts):
    """A flag, or eval mode, makes it compute a part in bfloat16."""

    def forward(self, x):
        y = self.linear(x)
        return y.to(torch.bfloat16).to(x.dtype) if self.half or not self.training else y


class Deployed(Parts):
    """In eval mode, it computes with the sum of its two weights, which train mode computes anew."""

    def train(self, mode=True):  # noqa: FBT002 -- as torch has it
        self.folded = None if mode else (self.one.weight + 0.3 * self.two.weight).detach()
        return super().train(mode)

    def forward(self, x):
        if self.training:
            return self.one(x) + 0.3 * self.two(x)
        return nn.functional.linear(x, self.folded)


class InitialisedByData(Parts):
    """Shifts by the mean of its first batch, which it keeps as a parameter."""

    def forward(self, x):
        if not self.initialised:
            with torch.no_grad():
                self.shift.copy_(x.mean(0))
            self.initialised = True
        return self.linear(x - self.shift)


class Timed(Parts):
    """Notes how long it takes, and the version of its weight."""

    def forward(self, x):
        start = time.perf_counter()
        y = self.linear(x)
        self.seconds += time.perf_counter() - start
        self.version, self.best = self.linear.weight._version, float("nan")
        return y


class Viewed(Parts):
    """A buffer is a view of its weight."""

    def forward(self, x):
        return self.linear(x) + self.diagonal


def _viewed():
    linear = nn.Linear(8, 8)
    return Viewed(linear=linear, diagonal=linear.weight.detach().diagonal())


def _linears(kind, **values):
    return lambda: kind(linear=nn.Linear(8, 8), **values)


FROZEN = {"stops_gradients": True}
OTHER_DTYPE = _green("other_dtype", _linears(OtherDtype, double_output=False))
HALF_INSIDE = _green("half_inside", _linears(HalfInside, half=False))
DEPLOYED = _green(
    "deployed",
    lambda: Deployed(one=nn.Linear(8, 8, bias=False), two=nn.Linear(8, 8, bias=False), folded=None).eval(),
    **FROZEN,
)
BY_DATA = _green(
    "initialised_by_data",
    _linears(InitialisedByData, shift=nn.Parameter(torch.zeros(8)), initialised=False),
    mutates=("shift",),
    **FROZEN,
)
TIMED = _green("timed", _linears(Timed, seconds=0.0, version=0, best=0.0))
VIEWED = _green("viewed", _viewed, rows(6, 8), rows(3, 8, name="fewer"), **FROZEN)
