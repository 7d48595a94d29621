"""Right models that a careless check of the oracle accuses: conventions, state, ties, graphs, another order of sums."""

from functools import partial

import torch
from correct_parts import Parts, drawn, function, green, rows
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- its usual name

from zoo import Convention

CELLS = []
_green = partial(green, CELLS, precisions=("fp32",))


# Gradients that are by design no derivatives


class Padded(nn.Module):
    """The row of the padding index has no gradient."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4, padding_idx=0)
        self.head = nn.Linear(4, 4)
        nn.init.normal_(self.embed.weight)

    def forward(self, index):
        return self.head(self.embed(index))


class PaddedByHand(Parts):
    def forward(self, index):
        return torch.cat([self.table[:1].detach(), self.table[1:]])[index] * 1.5


class FakeQuantized(Parts):
    def forward(self, x):
        return F.linear(x, torch.fake_quantize_per_tensor_affine(self.weight, 0.125, 0, -128, 127), self.bias)


class Metrics(Parts):
    """Its second output is only to be looked at."""

    def forward(self, x):
        y = self.linear(x)
        return y, y.detach() * 2


class Choosy(Parts):
    """Its threshold takes part in a comparison alone, and one parameter in nothing."""

    def forward(self, x):
        y = self.linear(x * (x > self.threshold) + x)
        return y, y.argmax(-1)


def _ties(x):
    return x.abs() + x.sign() * x.square() + (x + 0.5).round() * x + x[:, :1].maximum(x)


def _padding_index(generator):
    return (torch.cat([torch.zeros(2, dtype=torch.long), torch.randint(1, 7, (6,), generator=generator)]),)


PADDED = _green("padded", Padded, drawn(_padding_index))
PADDED_BY_HAND = _green(
    "padded_by_hand",
    lambda: PaddedByHand(table=nn.Parameter(torch.randn(7, 4))),
    drawn(_padding_index),
    conventions=(Convention(tensor="table", rows=(0,), zero=True, why="row 0 is padding"),),
)
FAKE_QUANTIZED = _green(
    "fake_quantized",
    lambda: FakeQuantized(weight=nn.Parameter(torch.randn(4, 8)), bias=nn.Parameter(torch.randn(4))),
    conventions=(Convention(tensor="weight", why="straight-through estimator"),),
)
METRICS = _green(
    "metrics",
    lambda: Metrics(linear=nn.Linear(8, 4)),
    conventions=(Convention(tensor="output[1]", why="a metric, never trained on"),),
)
CHOOSY = _green(
    "choosy",
    lambda: Choosy(threshold=nn.Parameter(torch.zeros(8)), unused=nn.Parameter(torch.ones(3)), linear=nn.Linear(8, 4)),
)
TIES = _green("ties", function(_ties), drawn(lambda g: (torch.randint(-2, 3, (6, 5), generator=g).float(),)))


# State that forward updates, and that autograd takes as constant


class RunningScale(Parts):
    """Divides by an average that it has updated just before, in place or by assignment."""

    def forward(self, x):
        y = self.linear(x)
        new = 0.75 * self.square + 0.25 * y.detach().float().square().mean(0)
        if self.assigns:
            self.square = new
        else:
            self.square.copy_(new)
        return y / self.square.sqrt()


class Teacher(Parts):
    """Its second head follows the first one's weights by momentum, and saves them for backward."""

    def forward(self, x):
        with torch.no_grad():
            self.teacher.mul_(0.75).add_(self.student.weight, alpha=0.25)
        return self.student(x) * F.linear(x, self.teacher)


class TwoTeachers(Parts):
    """Moves two buffers by one op, which is given a list of them."""

    def forward(self, x):
        with torch.no_grad():
            torch._foreach_lerp_([self.weight, self.bias], [self.student.weight, self.student.bias], 0.25)
        return self.student(x) * F.linear(x, self.weight, self.bias)


SPECTRAL = _green("spectral", lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 4))))
RUNNING = _green("running_scale", lambda: RunningScale(assigns=False, linear=nn.Linear(8, 4), square=torch.ones(4)))
ASSIGNED = _green("assigned_scale", lambda: RunningScale(assigns=True, linear=nn.Linear(8, 4), square=torch.ones(4)))
TEACHER = _green("teacher", lambda: Teacher(student=nn.Linear(8, 4), teacher=torch.randn(4, 8)))
TWO_TEACHERS = _green(
    "two_teachers", lambda: TwoTeachers(student=nn.Linear(8, 4), weight=torch.randn(4, 8), bias=torch.randn(4))
)
NORMED = _green(  # its batch statistics are differentiated, and its running ones are not used
    "normed", lambda: nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Tanh())
)


# Models that are graphs


class Casting(nn.Module):
    """Its casts and constants are float32, as the source says."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("shift", torch.randn(4))

    def forward(self, x):
        y = self.linear(x).float() * torch.ones(4, dtype=torch.float32) + torch.full((4,), 0.25)
        return torch.softmax(y @ torch.tensor([[1.0, 0.5, 0.25, 2.0]] * 4), -1, dtype=torch.float32) + self.shift


@torch.jit.script
def gelu_like(x: Tensor, slope: float = 1.5) -> Tensor:
    wide = x.float()
    return (wide * torch.sigmoid(wide * slope)).to(torch.float32)


class Fused(Parts):
    """Python code around a scripted function."""

    def forward(self, x):
        return gelu_like(self.linear(x))


class FusedElsewhere(Fused):
    """The same, where nothing but a call tells that a script runs."""

    def forward(self, x):
        return _activated(self.linear(x))


def _activated(x):
    return gelu_like(x)


EXAMPLE = torch.randn(6, 8)
SCRIPTED = _green(
    "built_scripted", lambda: torch.jit.script(Casting()), also={"eager": ("fp32",), "scripted": ("fp32",)}
)
TRACED = _green("built_traced", lambda: torch.jit.trace(Casting(), EXAMPLE))
EXPORTED = _green("built_exported", lambda: torch.export.export(Casting(), (EXAMPLE,)).module())
FUNCTION = _green("scripted_function", function(gelu_like), also={"scripted": ("fp32",)})
FUSED = _green("fused", lambda: Fused(linear=nn.Linear(8, 4)))
FUSED_ELSEWHERE = _green("fused_elsewhere", lambda: FusedElsewhere(linear=nn.Linear(8, 4)))


# Held to a trusted implementation


class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 8))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.count += 1
        y = F.linear(x, self.weight)
        return y, y.float().exp()


class Columns(Product):
    """The same sums in another order, and other names of the arguments."""

    def forward(self, columns):
        self.count.add_(1)
        halves = [F.linear(columns[:, part], self.weight[:, part]) for part in (slice(4, 8), slice(4))]
        y = halves[0] + halves[1]
        return y, y.float().exp()


TRUSTED = _green(
    "columns",
    Columns,
    rows(6, 8),
    precisions=("fp32", "amp_bf16"),
    also={"compiled": ("fp32",)},
    twice_differentiable=True,
    reference=Product,
)
