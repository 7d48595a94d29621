"""A trace of dtypes leaves the model, the random generators and autocast as it found them."""

import random

import pytest
import torch
from torch import nn

from zoo.dtypes import trace_dtypes


class Busy(nn.Module):
    """Changes all that a forward can change: buffers, attributes, generators, its mode."""

    def __init__(self, *, fails=False):
        super().__init__()
        self.fails, self.calls, self.seen, self.cache = fails, 0, [], {}
        self.body = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout())
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("rebound", torch.zeros(3))
        self.plain = torch.zeros(3)

    def forward(self, x):
        x = self.body(x)
        self.total += x.detach().sum(0)
        self.plain.add_(1)
        self.rebound, self.late, self.cache["x"] = x.detach()[0], x, x
        self.calls += 1 + int(10 * random.random())
        self.seen.append(x)
        self.eval()
        self.register_forward_hook(lambda *_: None)
        if self.fails:
            raise RuntimeError("as it must")
        return x


def content(model):
    """Everything that a model holds, comparable by ==."""
    return [
        {
            key: value.tolist()
            if isinstance(value, torch.Tensor)
            else dict(value)
            if isinstance(value, dict)
            else value
            for key, value in [*module.__dict__.items(), *module.state_dict().items()]
            if key not in ("_parameters", "_buffers")
        }
        for module in model.modules()
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_and_the_generators_are_as_they_were(fails):
    model = Busy(fails=fails)
    objects = [*model.parameters(), *model.buffers(), model.plain, model.seen, model.cache, model._forward_hooks]
    before, generators = content(model), (torch.get_rng_state(), random.getstate())
    if fails:
        with pytest.raises(RuntimeError, match=r"^as it must$"):
            trace_dtypes(model, torch.randn(4, 3))
    else:
        trace_dtypes(model, torch.ones(4, 3))
        generators_after = (torch.get_rng_state(), random.getstate())
        assert torch.equal(generators_after[0], generators[0])
        assert generators_after[1] == generators[1]
    assert content(model) == before
    after = [*model.parameters(), *model.buffers(), model.plain, model.seen, model.cache, model._forward_hooks]
    assert all(a is b for a, b in zip(objects, after, strict=True))
    assert not hasattr(model, "late")


def test_hooks_of_the_user_stay_and_are_seen():
    model = nn.Sequential(nn.Linear(2, 2))
    handle = model[0].register_forward_hook(lambda _module, _args, output: output.double())
    assert trace_dtypes(model, torch.ones(1, 2)).rows[1].outputs == (torch.float64,)
    assert list(model[0]._forward_hooks) == [handle.id]
    handle.remove()
    assert not model[0]._forward_hooks


def test_buffers_that_did_not_change_can_still_be_used_by_a_backward():
    model = nn.BatchNorm1d(2).eval()
    out = model(torch.randn(3, 2))
    trace_dtypes(model, torch.randn(3, 2))
    out.backward(torch.ones(3, 2))


def test_a_trace_leaves_no_weight_in_the_cache_of_autocast():
    layer = nn.Linear(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        trace_dtypes(layer, torch.ones(1, 2))
        assert torch.is_autocast_cache_enabled()
        with torch.no_grad():
            layer.weight.zero_()
        assert torch.equal(layer(torch.ones(1, 2)), layer.bias.bfloat16().unsqueeze(0))
