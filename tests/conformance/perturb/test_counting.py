"""Small whole numbers round nothing; all others do."""

import pytest
import torch

from conformance.axes import PRECISIONS
from conformance.evaluate.inputs import seed_generator
from conformance.perturb.rounding import Rounding

WHOLE = torch.arange(12, dtype=torch.float64).reshape(3, 4)
HALVES = WHOLE / 2 + 0.5


def perturbed(function, x):
    with Rounding(PRECISIONS["amp_bf16"], seed_generator("run")):
        return function(x)


OPS = [
    lambda x: x + 1,
    lambda x: x * 2.0 - x,
    lambda x: x // 3 + x % 5 - x.fmod(7),
    lambda x: torch.div(x, 2, rounding_mode="trunc") - x.div(4, rounding_mode="floor"),
    lambda x: x.sum(0),
    lambda x: x.cumsum(1),
    lambda x: (x > 3).to(x.dtype).t() @ torch.ones(3, 2, dtype=x.dtype) + x[:1].t(),
    lambda x: torch.zeros(3, 4, dtype=x.dtype).index_add_(0, torch.tensor([0, 0, 1]), x),
]


@pytest.mark.parametrize("op", OPS)
def test_small_whole_numbers_round_nothing(op):
    assert torch.equal(perturbed(op, WHOLE), op(WHOLE))


@pytest.mark.parametrize("op", OPS)
def test_other_numbers_round(op):
    assert not torch.equal(perturbed(op, HALVES), op(HALVES))


@pytest.mark.parametrize(
    "op",
    [
        lambda x: x * 100,
        lambda x: x + 250.0,
        lambda x: x * 0.5,
        lambda x: x / 1.0,
        lambda x: x % 0.7,
        lambda x: x.exp(),
    ],
    ids=["large", "sum", "fraction", "division", "remainder", "exp"],
)
def test_what_a_low_precision_may_round_is_perturbed(op):
    assert not torch.equal(perturbed(op, WHOLE), op(WHOLE))


def test_a_sum_of_both_signs_may_round_on_its_way():
    x = torch.tensor([200.0, 201.0, -200.0, -200.0], dtype=torch.float64)
    assert not torch.equal(perturbed(torch.sum, x), x.sum())
