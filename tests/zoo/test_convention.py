"""Conventions and trusted references: what a record accepts, and what it refuses."""

from dataclasses import replace
from functools import partial

import pytest
from torch import nn

import zoo
from zoo import Convention, SpecError


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"tensor": "", "why": "w"}, "name of a tensor"),
        ({"tensor": "x", "why": ""}, "needs a reason"),
        ({"tensor": "x", "why": "w", "rows": (-1,)}, "rows must be"),
        ({"tensor": "x", "why": "w", "rows": [1]}, "rows must be"),
    ],
)
def test_a_malformed_convention_is_refused(fields, complaint):
    with pytest.raises(SpecError, match=complaint):
        Convention(**fields)


def test_only_a_star_is_a_pattern():
    assert Convention(tensor="encoder.*", why="w").concerns("encoder.0.weight")
    assert Convention(tensor="output[1]", why="w").concerns("output[1]")
    assert not Convention(tensor="output[1]", why="w").concerns("output1")


@pytest.mark.parametrize("reference", [nn.Identity, partial(nn.Linear, 3, 4), lambda: nn.Linear(3, 4)])
def test_a_builder_is_a_trusted_implementation(reference):
    assert replace(zoo.get_spec("square"), reference=reference).trusts_model


@pytest.mark.parametrize("reference", [lambda _, x: x, lambda *inputs: inputs, max])
def test_a_function_of_the_model_is_a_formula(reference):
    assert not replace(zoo.get_spec("square"), reference=reference).trusts_model


def test_a_module_is_no_reference():
    with pytest.raises(SpecError, match="want its class"):
        replace(zoo.get_spec("square"), reference=nn.Identity())
