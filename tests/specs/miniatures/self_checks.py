"""Faults that only a trusted implementation shows, and wrong gradients that hide where autograd sees no path."""

import torch
from miniature_parts import VALUES, Parts, fails, gets, spec_of
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- its usual name

from zoo import Case, Convention

# Rewritten forwards of a trusted module


class Trusted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 5))
        self.register_buffer("mean", torch.zeros(4))

    def finish(self, y):
        self.mean.mul_(0.5).add_(y.detach().float().mean(0), alpha=0.5)
        return y

    def forward(self, x):
        return self.finish(F.linear(x, self.weight))


class CutOff(Trusted):
    def forward(self, x):
        return self.finish(F.linear(x, self.weight.detach()))


class Halved(Trusted):
    def forward(self, x):
        return self.finish(F.linear((x + x.detach()) / 2, self.weight))


class Lifted(Trusted):
    def forward(self, x):
        return super().forward(x).float()


class Forgetful(Trusted):
    def finish(self, y):
        return y


class Constant(Trusted):
    def forward(self, x):
        return super().forward(x).detach()


class Renamed(Trusted):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))


def _trusting(name, build, **fields):
    return spec_of(name, build, reference=Trusted, **fields)


CUT_OFF = _trusting("cut_off", CutOff)
HALVED = _trusting("halved", Halved)
LIFTED_BESIDE = _trusting("lifted_beside_trusted", Lifted)
FORGETFUL = _trusting("forgetful", Forgetful)
CONSTANT = _trusting("constant_output", Constant)
RENAMED = _trusting("renamed", Renamed)
NO_BUILD = spec_of("no_trusted_build", Trusted, reference=lambda: 1 / 0)


# Paths that autograd does not see


class Detached(Parts):
    """The gradient of its gate is None, and its output changes with it."""

    def forward(self, x):
        return self.linear(x) * self.gate.detach()


class _NoneForWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None


class _Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y, z = x * 2, x * 3
        ctx.mark_non_differentiable(z)
        return y, z

    @staticmethod
    def backward(_, g, __):
        return 2 * g


class HalfTeacher(Parts):
    """It updates its state rightly, and detaches a path beside it."""

    def forward(self, x):
        y = self.linear(x)
        with torch.no_grad():
            self.square.mul_(0.75).add_(0.25 * y.square().mean(0))
        return y * y.detach() / self.square.sqrt()


class Rounded(nn.Module):
    """Straight through the rounding of the weight, and a wrong gradient of x."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 5) * 3)

    def forward(self, x):
        weight = self.weight + (self.weight.round() - self.weight).detach()
        return F.linear(x, weight) * x.detach().mean()


class Table(Parts):
    def forward(self, index):
        return torch.cat([self.table[:1].detach(), self.table[1:]])[index] * 1.5


INDEX = Case(name="typical", inputs=lambda _: (torch.arange(7),))
STRAIGHT = Convention(tensor="weight", why="straight-through estimator")
OTHER_ROW = Convention(tensor="table", rows=(3,), zero=True, why="the wrong row")
WRONG_NAME = Convention(tensor="weigth", why="misspelt")

DETACHED = spec_of("detached", lambda: Detached(gate=nn.Parameter(torch.randn(4)), linear=nn.Linear(5, 4)))
NONE_FOR_WEIGHT = spec_of(
    "none_for_weight",
    lambda: _NoneForWeight.apply,
    Case(name="typical", inputs=lambda g: (torch.randn(6, 5, generator=g), torch.randn(5, generator=g))),
)
MARKED = spec_of("marked", lambda: _Marked.apply)
HALF_TEACHER = spec_of("half_teacher", lambda: HalfTeacher(linear=nn.Linear(5, 4), square=torch.ones(4)))
ROUNDED = spec_of("rounded", Rounded, conventions=(STRAIGHT,))
ROUNDED_UNDECLARED = spec_of("rounded_undeclared", Rounded)
TABLE = spec_of("table", lambda: Table(table=nn.Parameter(torch.randn(7, 4))), INDEX, conventions=(OTHER_ROW,))
MISSPELT = spec_of("misspelt", Rounded, conventions=(WRONG_NAME,))


# A graph that refuses float64, and one that torch.compile cannot capture


@torch.jit.script
def only_float32(x):
    if x.dtype != torch.float32:
        raise RuntimeError("this graph knows no float64")
    return x * 2


SCRIPTED_NARROW = spec_of("scripted_narrow", lambda: only_float32)
TRACED = spec_of("traced", lambda: torch.jit.trace(nn.Linear(5, 4), torch.zeros(6, 5)))


class _Rows(torch.autograd.Function):
    """Rows of a table, whose sparse gradient is twice as large as it should be."""

    @staticmethod
    def forward(ctx, table, rows):
        ctx.save_for_backward(rows)
        ctx.shape = table.shape
        return table[rows]

    @staticmethod
    def backward(ctx, g):
        (rows,) = ctx.saved_tensors
        return torch.sparse_coo_tensor(rows[None], 2 * g, ctx.shape), None


class SparseTwice(Parts):
    def forward(self, rows):
        return _Rows.apply(self.table, rows) * 1.5


SPARSE_TWICE = spec_of(
    "sparse_twice",
    lambda: SparseTwice(table=nn.Parameter(torch.randn(4, 5))),
    Case(name="typical", inputs=lambda g: (torch.randint(0, 4, (6,), generator=g),)),
)

MINIATURES = (
    fails(CUT_OFF, "eager", "fp32", "structure", text="gradient of weight.*None"),
    fails(HALVED, "eager", "fp32", *VALUES, text="gradient of x"),
    fails(LIFTED_BESIDE, "eager", "amp_bf16", "dtype", text="float32"),
    fails(FORGETFUL, "eager", "fp32", *VALUES - {"slice"}, text="buffer mean"),
    fails(CONSTANT, "eager", "fp32", "structure", text="requires_grad is False"),
    gets(RENAMED, "eager", "fp32", "INVALID", text="the trusted reference of renamed: .* but it lacks scale"),
    gets(NO_BUILD, "eager", "fp32", "INVALID", text="the trusted reference cannot be built: ZeroDivisionError"),
    gets(
        DETACHED,
        "eager",
        "fp32",
        "INVALID",
        text=r"gate gets no gradient from output, .* at self_checks.py:\d+, .*self.gate.detach",
    ),
    gets(
        NONE_FOR_WEIGHT,
        "eager",
        "fp32",
        "INVALID",
        text="args.1. gets no gradient from output, which changes with it .*does a backward return None",
    ),
    gets(MARKED, "eager", "fp32", "INVALID", text=r"args.0. gets no gradient from output\[1\], .*is the output marked"),
    gets(HALF_TEACHER, "eager", "fp32", "INVALID", text="also wrong: the gradient of linear.weight, linear.bias"),
    gets(ROUNDED, "eager", "fp32", "INVALID", text=r"gradient of x at \(0, 0\) is .*finite differences give"),
    gets(ROUNDED_UNDECLARED, "eager", "fp32", "INVALID", text="Jacobian mismatch: gradient of x at"),
    gets(TABLE, "eager", "fp32", "INVALID", text=r"gradient of table at \(0, 0\) is 0.*padding\?"),
    gets(SPARSE_TWICE, "eager", "fp32", "INVALID", text=r"Jacobian mismatch: gradient of table at \(\d, 0\)"),
    gets(MISSPELT, "eager", "fp32", "INVALID", text="'weigth': no such input"),
    gets(SCRIPTED_NARROW, "eager", "fp32", "INCONCLUSIVE", text="name the eager module as the reference"),
    gets(TRACED, "compiled", "fp32", "ERROR", text="torch.compile captures no TopLevelTracedModule"),
)
