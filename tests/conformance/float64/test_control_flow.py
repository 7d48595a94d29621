"""`torch.cond` in the oracle: values and gradients as torch gives them, and modes that see what runs."""

import pytest
import torch

from conformance.float64.wide import widen
from conformance.perturb.kinks import KinkWatch

X = torch.linspace(-1.0, 1.0, 6, dtype=torch.float64)


def model(x, weights, *, positive):
    a, b = weights
    return torch.cond(torch.tensor(positive), lambda y: (y * a).relu(), lambda y: (y * b).log(), (x,))


def evaluated(*, positive, context):
    """The output and its gradients."""
    x, *weights = (
        X.clone().requires_grad_(),
        *(torch.full((6,), 2.0, dtype=torch.float64).requires_grad_() for _ in "ab"),
    )
    with context:
        output = model(x, weights, positive=positive)
    return [output.detach(), *torch.autograd.grad(output, [x, *weights], torch.ones_like(output), allow_unused=True)]


@pytest.mark.parametrize("positive", [True, False])
def test_a_branch_gives_what_torch_gives_and_zeros_for_what_only_the_other_uses(positive):
    ours = evaluated(positive=positive, context=widen())
    torch.testing.assert_close(ours, evaluated(positive=positive, context=torch.enable_grad()), equal_nan=True)
    assert not ours[3 if positive else 2].count_nonzero()


def test_a_mode_sees_the_ops_of_a_branch():
    with widen(), KinkWatch() as watch:
        model(X.clone().requires_grad_(), (X, X), positive=True)
    assert watch.kinked


def test_a_branch_without_tensors_of_its_own():
    with widen():
        assert torch.equal(torch.cond(True, lambda y: y + 1, lambda y: y - 1, (X,)), X + 1)
