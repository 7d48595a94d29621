"""Ops whose results have many roundings inside, and ops that refuse what noise could make of their inputs."""

import pytest
import torch
from torch.nn import functional

from conformance.axes import PRECISIONS
from conformance.evaluate.inputs import seed_generator
from conformance.gates.budget import NOISE
from conformance.perturb.rounding import Rounding

FP32, BF16 = PRECISIONS["fp32"], PRECISIONS["amp_bf16"]
MATRIX = torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) + 4 * torch.eye(8)


def strayed(function, precision, runs=8):
    """How far perturbed runs stray, relative to the result, the farthest."""
    truth, far = function(), 0.0
    for run in range(runs):
        with Rounding(precision, seed_generator("terms", run)):
            far = max(far, float((function() - truth).norm() / truth.norm()))
    return far


@pytest.mark.parametrize(
    "decomposed",
    [torch.linalg.svdvals, torch.linalg.inv, torch.linalg.matrix_exp, torch.linalg.det, lambda x: torch.linalg.qr(x).R],
    ids=["svdvals", "inv", "matrix_exp", "det", "qr"],
)
def test_what_is_computed_from_a_whole_matrix_strays_more_than_one_rounding(decomposed):
    assert NOISE * FP32.unit < strayed(lambda: decomposed(MATRIX), FP32) < 2000 * FP32.unit
    single = decomposed(MATRIX.float()).double()
    truth = decomposed(MATRIX)
    assert (single - truth).norm() <= 1.5 * strayed(lambda: decomposed(MATRIX), FP32) * truth.norm()


@pytest.mark.parametrize("precision", [FP32, BF16], ids=["fp32", "amp_bf16"])
def test_noise_moves_no_probability_out_of_its_range(precision):
    target = torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    probability = torch.tensor([0.0, 1.0, 0.7, 0.2], dtype=torch.float64, requires_grad=True)

    def gradient():
        return torch.autograd.grad(functional.binary_cross_entropy(probability, target), probability)[0][2:]

    assert 0 < strayed(gradient, precision) < 4 * NOISE * precision.unit


@pytest.mark.parametrize("precision", [FP32, BF16], ids=["fp32", "amp_bf16"])
def test_noise_leaves_the_mask_of_a_loss_as_it_is(precision):
    """`multilabel_margin_loss` hands it to its backward, which refuses any number but 0 and 1."""
    labels = torch.tensor([[3, 0, -1, 1], [1, -1, 2, 0]])
    scores = torch.tensor([[0.3, -1.2, 0.9, 0.1], [2.0, 0.4, -0.3, 0.7]], dtype=torch.float64, requires_grad=True)

    def gradient():
        return torch.autograd.grad(functional.multilabel_margin_loss(scores, labels), scores)[0]

    assert 0 < strayed(gradient, precision) < 4 * NOISE * precision.unit
