"""Specs that state what is not so, and models without a float64 oracle."""

import torch
from miniature_parts import gets, spec_of
from torch import nn

from zoo import Case


class _WrongSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2.02 * ctx.saved_tensors[0] * g


def _checked_softmax(x):
    """Float32 and float64 pass the check, and what is perturbed a little more does not."""
    y = x.softmax(-1)
    if bool(((y.sum(-1) - 1).abs() > 1e-9 + 2 * torch.finfo(y.dtype).eps).any()):
        raise ValueError("probabilities must add up to one")
    return y


class _WrongTwice(_WrongSquare):
    """The right gradient, which hides from autograd how it depends on x."""

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0].detach() * g


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.round()

    @staticmethod
    def backward(_, g):
        return g


def _only_float32(x):
    if x.dtype == torch.float64:
        raise RuntimeError("this kernel knows no float64")
    return x * 2


WRONG_REFERENCE = spec_of("wrong_reference", lambda: nn.Linear(5, 4), reference=lambda m, x: x @ m.weight.t())
WRONG_SHAPE_REFERENCE = spec_of("wrong_shape_reference", lambda: lambda x: x * 2, reference=lambda _, x: (2 * x)[None])
WRONG_BACKWARD = spec_of("wrong_backward", lambda: _WrongSquare.apply)
WRONG_SECOND = spec_of("wrong_second", lambda: _WrongTwice.apply, twice_differentiable=True)
STRAIGHT_UNDECLARED = spec_of("straight_undeclared", lambda: _Straight.apply)
STRAIGHT_MISDECLARED = spec_of("straight_misdeclared", lambda: _Straight.apply, surrogate_gradient=lambda _, x: 2 * x)
WRONG_TWIN = spec_of("wrong_twin", lambda: lambda x: 3 * x, twin="square")
NO_TENSOR = spec_of("no_tensor", lambda: lambda _: (object(), object()))
ALWAYS_RAISES = spec_of("always_raises", lambda: lambda x: x @ x)
NO_TUPLE = spec_of("no_tuple", lambda: lambda x: x, Case(name="typical", inputs=lambda g: torch.randn(3, generator=g)))
TIE = spec_of("tie", lambda: lambda x: torch.relu(x * 3 - x - x * 2))
CHECKS_SUMS = spec_of("checks_sums", lambda: _checked_softmax)
CONSTANT = spec_of("misspelt_constant", lambda: lambda x: x * 2, constants=("target",))
NO_FLOAT64 = spec_of("no_float64", lambda: _only_float32)

MINIATURES = (
    gets(WRONG_REFERENCE, "eager", "fp32", "INVALID", text="differs from the spec's reference"),
    gets(WRONG_SHAPE_REFERENCE, "eager", "fp32", "INVALID", text=r"gives shape \(1, 6, 5\)"),
    gets(WRONG_BACKWARD, "eager", "fp32", "INVALID", text="gradcheck in float64: Jacobian mismatch"),
    gets(WRONG_SECOND, "eager", "fp32", "INVALID", text="gradgradcheck in float64"),
    gets(STRAIGHT_UNDECLARED, "eager", "fp32", "INVALID", text="declare surrogate_gradient"),
    gets(STRAIGHT_MISDECLARED, "eager", "fp32", "INVALID", text="differs from the declared surrogate_gradient"),
    gets(WRONG_TWIN, "eager", "fp32", "INVALID", text="differs from its twin square"),
    gets(NO_TENSOR, "eager", "fp32", "INVALID", text=r"output\[0\] is of type object"),
    gets(ALWAYS_RAISES, "eager", "fp32", "INVALID", text="case typical: RuntimeError: (mm: )?mat1 and mat2"),
    gets(NO_TUPLE, "eager", "fp32", "INVALID", text="must return a tuple of arguments or a Call, got Tensor"),
    gets(TIE, "eager", "fp32", "INVALID", text="sit exactly on a kink"),
    gets(
        CHECKS_SUMS, "eager", "fp32", "INVALID", text="roundings as large as those of fp32, the model raises ValueErr"
    ),
    gets(CONSTANT, "eager", "fp32", "INVALID", text="constants: no input is named 'target', but x"),
    gets(NO_FLOAT64, "eager", "fp32", "INCONCLUSIVE", text="runs in float32 but not in float64"),
)
