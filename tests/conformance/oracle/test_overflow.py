"""The scale of the cotangents: gradients inside a model may be much larger than those that it returns."""

import pytest
import torch
from harness.oracles import reference_of
from torch import nn

from conformance.oracle import overflow
from conformance.oracle.overflow import HEADROOM, LEAST, Scale, scale_for
from conformance.records.observation import TensorName

GRADIENT = TensorName("gradient", "x")


class Divided(nn.Module):
    """Divides and multiplies by the same number: its backward goes through larger gradients."""

    def __init__(self, number):
        super().__init__()
        self.layer, self.number = nn.Linear(6, 6), number

    def forward(self, x):
        return self.layer(x) / self.number * self.number


def scale(number, precisions=("fp32", "amp_fp16")):
    """The scale of a model."""
    return reference_of(lambda: Divided(number), precisions).scale


def test_the_scale_is_lowered_if_a_gradient_inside_the_model_overflows():
    usual = scale(1.0)
    assert scale(4.0) == usual
    lowered = scale(512.0)
    assert LEAST < lowered < usual / 8
    assert scale(512.0, ("fp32", "amp_bf16")) == usual  # nothing else is scaled


def test_the_scale_stays_if_gradients_overflow_with_each():
    assert scale(1e9) == scale(1.0)


class InFloat32(Divided):
    """The same, but in float32 under autocast too."""

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.float())


def test_the_scale_stays_if_the_large_gradients_are_in_float32(monkeypatch):
    usual = scale(512.0)
    monkeypatch.setattr(f"{__name__}.Divided", InFloat32)
    assert scale(512.0) == scale(1.0) > usual


def test_a_draw_fits_if_its_gradients_do():
    gradients = {GRADIENT: torch.ones(3)}
    factor = scale_for(gradients)
    assert Scale(factor, 10.0).fits(gradients, 9.0)
    assert not Scale(factor, 10.0).fits(gradients, 11.0)
    assert not Scale(factor, 10.0).fits({GRADIENT: torch.tensor([HEADROOM * 8 / factor])}, 1.0)


class Full(Divided):
    """A model for which there is no memory."""

    def forward(self, _):
        raise MemoryError


def test_full_memory_is_not_taken_for_a_finite_gradient(monkeypatch):
    monkeypatch.setattr(overflow, "prepared_model", lambda *_: Full(1.0))
    with pytest.raises(MemoryError):
        scale(512.0)
