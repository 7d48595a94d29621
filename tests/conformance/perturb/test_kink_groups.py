"""Kinks of ops that keep the best of each group of numbers."""

import warnings

import pytest
import torch

from conformance.perturb.kinks import KinkWatch


@pytest.mark.parametrize("of", ["scatter", "index"])
@pytest.mark.parametrize("selects", [True, False])
def test_the_best_of_each_group_is_a_kink(of, selects):
    x = torch.tensor([[1.0, 2.0], [3.0, 2.0], [0.5, 7.0]], dtype=torch.float64, requires_grad=True)
    groups, target = torch.tensor([0, 0, 1]), torch.zeros(2, 2, dtype=torch.float64)
    with KinkWatch(selections=True) as watch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # index_reduce is in beta
        if of == "scatter":
            index = groups[:, None].expand(-1, 2)
            target.scatter_reduce(0, index, x, "amax" if selects else "sum", include_self=False)
        else:
            target.index_reduce(0, groups, x, "amax" if selects else "mean", include_self=False)
    assert watch.kinked == selects
    if selects:
        assert watch.margin == pytest.approx(2.0 / float(x.detach().square().mean().sqrt()))
        assert watch.equals[0].tolist() == [[False, True], [False, False]]  # two elements are 2.0
