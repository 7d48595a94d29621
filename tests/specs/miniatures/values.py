"""Wrong numbers, types and shapes: each gate alone, gradients, outputs."""

from collections import OrderedDict

import damaging_modes  # noqa: F401 -- registers modes
import torch
from miniature_parts import LINEAR, REVERSED, VALUES, Parts, fails, gets, rows, spec_of
from torch import nn

from zoo import Case


def product(x, w):
    """One rounding for each element."""
    return x * w


def _large_pair(generator):
    return torch.randn(64, 64, generator=generator), torch.randn(64, 64, generator=generator)


def _faint_row_pair(generator):
    x, w = _large_pair(generator)
    x[-1] *= 2.0**-22
    return x, w


class Lifted(Parts):
    """A Linear whose low-precision result is handed out as float32."""

    def forward(self, x):
        return self.linear(x).float() * 1.5


def _norm_after_norm():
    """But for the eps of the second batch norm, the gradient of the weight of the first is zero."""
    return nn.Sequential(OrderedDict(first=nn.BatchNorm1d(6), second=nn.BatchNorm1d(6), end=nn.Sigmoid()))


def _scalar(generator):
    return (torch.rand((), generator=generator) + 1,)


WIDE = spec_of("wide", lambda: nn.Linear(64, 64), rows(64, 64), dtypes="follows")
PRODUCT = spec_of("product", lambda: product, Case(name="typical", inputs=_large_pair), dtypes="float32")
FAINT = spec_of("faint_row", lambda: product, Case(name="typical", inputs=_faint_row_pair), dtypes="float32")
LIFTED = spec_of("lifted", lambda: Lifted(linear=nn.Linear(64, 64)), rows(64, 64), dtypes="float32")
BIG_INTEGERS = spec_of(
    "big_integers",
    lambda: lambda x: x + 1,
    Case(name="typical", inputs=lambda g: (torch.randint(2**60, 2**61, (6, 5), generator=g),)),
    dtypes="int64",
    differentiable=False,
)
UNDIFFERENTIABLE = spec_of("undifferentiable", lambda: lambda x: x.exp(), differentiable=False)
UNDECLARED_DTYPE = spec_of("undeclared_dtype", lambda: nn.Linear(5, 4))
CANCELLING = spec_of("cancelling", lambda: lambda x: (x + 1e7) - 1e7)
NEARLY = spec_of("nearly_cancelling", lambda: lambda x: (x + 4e6) - 4e6, Case(name="typical", inputs=_scalar))
REMAINDER = spec_of("norm_after_norm", _norm_after_norm, rows(16, 6))
SECOND = spec_of("loses_second", lambda: lambda x: x**3, twice_differentiable=True, dtypes="input")

MINIATURES = (
    # Each gate, alone
    fails(LINEAR, "extra_axis", "fp32", "structure", text=r"shape \(1, 6, 4\), the oracle's is \(6, 4\)"),
    fails(LINEAR, "wrong_dtype", "fp32", "dtype", text="float64, should be float32"),
    fails(LINEAR, "nan", "amp_bf16", "class", "gain", text=r"element \(0, 0\) is nan"),
    fails(LINEAR, "inf", "fp32", "class", text=r"element \(0, 0\) is inf"),
    fails(REVERSED, "one_ulp", "fp32", "exact", text="1 of 30 elements differ"),
    fails(PRODUCT, "spread_evenly", "fp32", "norm"),
    fails(FAINT, "row_dropped", "fp32", "slice", text="slice 63 of axis 0"),
    fails(PRODUCT, "five_roundings", "fp32", "gain"),
    fails(PRODUCT, "one_element", "fp32", "pointwise", text=r"element \(3, 5\)"),
    fails(LIFTED, "bfloat16_inside", "amp_fp16", "gain", "precision", text="over 4 draws"),
    # Gates without power
    gets(NEARLY, "eager", "fp32", "INCONCLUSIVE", text="power .* the gates accept .*1.25 times"),
    gets(CANCELLING, "eager", "fp32", "INCONCLUSIVE", text="power  output"),
    # Gradients
    fails(LINEAR, "one_percent", "fp32", *VALUES, text="gradient of input"),
    fails(WIDE, "one_percent", "amp_bf16", "gain", text="gradient of input"),
    fails(LINEAR, "sample_dropped", "fp32", *VALUES),
    fails(LINEAR, "sample_dropped", "amp_bf16", *VALUES),
    fails(LINEAR, "zeros", "amp_bf16", *VALUES),
    fails(LINEAR, "sign", "amp_fp16", *VALUES),
    fails(LINEAR, "rolled", "amp_bf16", *VALUES),
    fails(LINEAR, "gradient_nan", "fp32", "class"),
    fails(REMAINDER, "one_term_left", "fp32", "norm", text="gradient of first.weight.* what cancellation leaves"),
    fails(LINEAR, "no_gradient", "fp32", "structure", text="gradient of input.*None, where the oracle has"),
    fails(SECOND, "graph_lost", "fp32", "structure", text="second gradient of x"),
    fails(SECOND, "second_wrong", "fp32", *VALUES, text="second gradient of x"),
    # Outputs
    fails(LINEAR, "bfloat16_inside", "fp32", *VALUES, "precision"),
    fails(LINEAR, "float16_inside", "fp32", *VALUES, "precision"),
    fails(UNDECLARED_DTYPE, "wrong_dtype", "amp_fp16", "dtype", text="float64, should be float16"),
    fails(UNDIFFERENTIABLE, "tupled", "fp32", "structure", text="output"),
    fails(LINEAR, "detached", "fp32", "structure", text="requires_grad is False, the oracle's is True"),
    fails(BIG_INTEGERS, "plus_one", "fp32", "exact"),
    gets(BIG_INTEGERS, "eager", "fp32", "PASS"),
)
