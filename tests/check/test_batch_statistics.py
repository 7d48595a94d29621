"""Batch norms of new architectures get the statistics of a batch, so that deep ones keep their activations."""

import copy

import pytest
import torch
from torch import nn

from conformance.own.libraries import settle_statistics

DEPTH = 30


def deep(**options):
    torch.manual_seed(0)
    layers = [
        (nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4, **options), nn.ReLU()) for _ in range(DEPTH)
    ]
    return nn.Sequential(*(layer for three in layers for layer in three), nn.Dropout(0.5))


def batch(count=8):
    return torch.randn(count, 4, 16, 16, generator=torch.Generator().manual_seed(1))


def test_activations_of_a_deep_network_do_not_vanish_in_eval_mode():
    with torch.no_grad():
        assert float(deep().eval()(batch()).std()) < 1e-5
        assert 0.1 < float(settle_statistics(deep(), batch()).eval()(batch()).std()) < 10.0


def test_any_number_of_threads_gives_the_same_statistics():
    before, states = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        states.append(settle_statistics(deep(), batch()).state_dict())
    torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*(s.values() for s in states), strict=True))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_all_else_is_as_before(momentum):
    model = deep(momentum=momentum).train()
    model[-1].eval()
    before = copy.deepcopy(model)
    assert settle_statistics(model, batch()) is model
    assert [m.training for m in model.modules()] == [m.training for m in before.modules()]
    assert all(m.momentum == momentum for m in model if isinstance(m, nn.BatchNorm2d))
    pairs = zip(model.named_parameters(), before.parameters(), strict=True)
    assert all(torch.equal(mine, theirs) and mine.dtype == torch.float32 for (_, mine), theirs in pairs)


def test_a_model_without_such_statistics_does_not_run():
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(5, track_running_stats=False))
    assert settle_statistics(model, batch()) is model
