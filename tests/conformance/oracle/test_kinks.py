"""What counts as a kink, and that the judge's own steps never do."""

import pytest
import torch
from torch import nn

import zoo
from conformance.axes import PRECISIONS
from conformance.oracle import sampling
from conformance.oracle.float64 import Oracle
from conformance.oracle.inputs import cotangent, representable, seeded
from conformance.oracle.kinks import KinkWatch
from conformance.oracle.rounding import Rounding
from zoo.case import Case
from zoo.spec import Spec


def spec_of(build, inputs):
    return Spec(
        name="kinky", summary="", source="", build=build, cases=(Case(name="typical", inputs=inputs),), dtypes="input"
    )


def randn(generator):
    return (torch.randn(8, 6, generator=generator),)


@pytest.mark.parametrize(
    ("build", "kinked"),
    [
        (lambda: lambda x: x.exp() * 2, False),
        (lambda: nn.Linear(6, 3), False),
        (lambda: lambda x: x.relu() * 2, True),
        (lambda: lambda x: x.abs().sqrt(), True),
    ],
    ids=["exp", "linear", "relu", "abs"],
)
def test_an_evaluation_is_kinked_where_the_model_is(build, kinked):
    oracle = Oracle(spec_of(build, randn), seed=0)
    question = oracle.question(oracle.spec.cases[0], 0)
    with KinkWatch() as watch:
        oracle.evaluate(question)
    assert watch.kinked is kinked


@pytest.mark.parametrize(("name", "kinked"), [("relu_amp_op", True), ("exp_op", False)])
def test_an_operator_written_in_python_is_looked_into(name, kinked):
    with KinkWatch() as watch:
        zoo.create_model(name)(torch.linspace(-1, 1, 6, dtype=torch.float64, requires_grad=True))
    assert watch.kinked is kinked


def test_cotangents_are_no_kink_and_are_not_perturbed():
    like = torch.zeros(4, 5, dtype=torch.float64)
    plain = cotangent("output", like, (0, "case"))
    with KinkWatch() as watch, Rounding(PRECISIONS["amp_bf16"], seeded("noise")):
        watched = cotangent("output", like, (0, "case"))
    assert not watch.kinked
    assert torch.equal(plain, watched)


@pytest.mark.parametrize("value", [1.0, -65504.0, 1e5, -1e30, float("inf"), float("-inf")])
def test_what_is_representable_stays_inside_the_range_of_float16_or_is_bfloat16s(value):
    (rounded,) = representable(torch.tensor([value]))
    assert rounded == torch.tensor(value).to(torch.bfloat16)


def test_nan_stays_nan():
    assert representable(torch.tensor([float("nan")])).isnan().all()


def test_drawing_the_inputs_is_not_watched():
    def made_with_kinks(generator):
        x = torch.randn(8, 6, generator=generator)
        return ((x - x).relu() + x.abs(),)  # ties and kinks galore, in the making

    oracle = Oracle(spec_of(lambda: lambda x: x.relu() * 2, made_with_kinks), seed=0)
    assert sampling.choose(oracle, oracle.spec.cases[0]) == 0
