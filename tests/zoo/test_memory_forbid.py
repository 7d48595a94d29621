"""The effects of forbidding hooks on saved tensors."""

import pytest
import torch
from torch import nn

from zoo.memory import compress, forbid_saved_tensor_hooks, held_bytes, offload_to_cpu, recompute, saved_bytes


def leaf(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


@pytest.mark.parametrize("tool", [offload_to_cpu, compress])
def test_forbidden_hooks_raise_the_message(tool):
    with (
        forbid_saved_tensor_hooks("not in this region"),
        pytest.raises(RuntimeError, match=r"^not in this region$"),
        tool(),
    ):
        pass
    with tool():
        assert (leaf(3) * 1).exp().requires_grad


def test_forbidden_hooks_break_recompute_and_counting():
    x = leaf(3)
    with forbid_saved_tensor_hooks("not in this region"):
        with pytest.raises(RuntimeError, match="not in this region"):
            recompute(torch.sin, x)
        with pytest.raises(RuntimeError, match="not in this region"):
            saved_bytes(torch.sin, x)


def test_forbidding_saves_no_memory_and_leaves_gradients_as_they_are():
    model, x = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16)), leaf(8, 32)

    def forbidden(x):
        with forbid_saved_tensor_hooks("no"):
            return model(x)

    assert held_bytes(forbidden, x) == held_bytes(model, x) == {"cpu": 4 * 8 * 64}
    cotangent = torch.randn(8, 16)
    found = torch.autograd.grad(forbidden(x), list(model.parameters()), cotangent)
    wanted = torch.autograd.grad(model(x), list(model.parameters()), cotangent)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_forbidding_nests_and_ends():
    with forbid_saved_tensor_hooks("outer"):
        with forbid_saved_tensor_hooks("inner"), pytest.raises(RuntimeError, match="inner"), compress():
            pass
        with pytest.raises(RuntimeError, match="outer"), compress():
            pass
    with compress():
        pass


def test_forbidding_inside_active_hooks_is_an_error():
    with compress(), pytest.raises(RuntimeError), forbid_saved_tensor_hooks("too late"):
        pass


@pytest.mark.parametrize(("message", "error"), [(None, TypeError), (3, TypeError), ("", ValueError)])
def test_forbidding_needs_a_message(message, error):
    with pytest.raises(error, match="forbid_saved_tensor_hooks: message must"):
        forbid_saved_tensor_hooks(message)
