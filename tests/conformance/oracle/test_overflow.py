"""The scale of the cotangents: gradients inside a model may be much larger than those that it returns."""

import pytest
import torch
from torch import nn

from conformance.axes import PRECISIONS
from conformance.oracle import reference
from conformance.oracle.scaling import HEADROOM, INNER, LEAST, Scale, scale_for
from zoo.case import Case
from zoo.spec import Spec


class Divided(nn.Module):
    """Divides and multiplies by the same number: its backward goes through larger gradients."""

    def __init__(self, number):
        super().__init__()
        self.layer, self.number = nn.Linear(6, 6), number

    def forward(self, x):
        return self.layer(x) / self.number * self.number


def scale(number, precisions=("fp32", "amp_fp16")):
    """The scale of a model."""
    spec = Spec(
        name="divided",
        summary="",
        source="",
        build=lambda: Divided(number),
        cases=(Case(name="typical", inputs=lambda g: (torch.randn(5, 6, generator=g),)),),
    )
    return reference.make(spec, None, 0, [PRECISIONS[name] for name in precisions])["typical"].scale


def test_the_scale_is_lowered_if_a_gradient_inside_the_model_overflows():
    usual = scale(1.0)
    assert scale(4.0) == usual
    lowered = scale(512.0)
    assert LEAST < lowered < usual / 8
    assert scale(512.0, ("fp32", "amp_bf16")) == usual  # nothing else is scaled


def test_the_scale_stays_if_gradients_overflow_with_each():
    assert scale(1e9) == scale(1.0)


@pytest.mark.parametrize(
    ("first", "inner", "fits"),
    [
        (1.0, 3 * INNER, True),
        (1.0, 5 * INNER, False),
        (2 * INNER, 5 * INNER, False),  # the first draw is near the limit already
        (100 * INNER, 300 * INNER, True),  # it did not overflow, so this is no number of float16
        (100 * INNER, 500 * INNER, False),
    ],
)
def test_a_draw_fits_if_its_inner_gradients_do(first, inner, fits):
    gradients = {"gradient of x": torch.ones(3)}
    factor = scale_for(gradients)
    assert Scale(factor, first / factor).fits(gradients, inner / factor) == fits
    assert not Scale(factor, 1.0).fits({"gradient of x": torch.tensor([HEADROOM * 8 / factor])}, 1.0)
