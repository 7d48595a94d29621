"""The tools that offload, recompute and compress saved tensors, and the one that forbids hooks on them."""

import gc
from functools import partial

import pytest
import torch
from saved_tensor_cases import BREAKS, DEVICES, HIDDEN, leaf, perceptron, within
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from zoo.memory import (
    SavedBytes,
    compress,
    forbid_saved_tensor_hooks,
    held_bytes,
    offload_to_cpu,
    recompute,
    saved_bytes,
)
from zoo.memory.replaced import Replaced

# the checkpoint of torch 2.4 uses torch.cpu.amp.autocast
pytestmark = pytest.mark.filterwarnings("ignore:`torch.cpu.amp.autocast:FutureWarning")

# offload_to_cpu, recompute and compress: gradients, bytes


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tool", ["offload", "recompute"])
def test_offload_and_recompute_change_no_bit_of_the_gradients(tool, device):
    model, x = perceptron(device), leaf(8, 32, device=device)
    variant = within(offload_to_cpu, model) if tool == "offload" else lambda x: recompute(model, x)
    cotangent = torch.randn(8, 16, device=device)
    wanted = torch.autograd.grad(model(x), [x, *model.parameters()], cotangent)
    found = torch.autograd.grad(variant(x), [x, *model.parameters()], cotangent)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="offloading needs a device to offload from")
def test_offload_moves_the_hidden_layer_and_leaves_the_weights():
    model, x = perceptron("cuda"), leaf(8, 32, device="cuda")
    assert held_bytes(within(offload_to_cpu, model), x) == {"cuda": 0, "cpu": 4 * (HIDDEN)}


def test_recompute_holds_its_input_only_and_offload_does_not_copy_tensors_on_the_cpu():
    model, x = perceptron(), leaf(8, 32)
    assert held_bytes(lambda x: recompute(model, x), x)["cpu"] == 0
    assert saved_bytes(lambda x: recompute(model, x), x) == SavedBytes(saved=0, inputs=4 * 8 * 32, parameters=0)
    assert held_bytes(within(offload_to_cpu, model), x) == held_bytes(model, x) == {"cpu": 4 * HIDDEN}


def test_recompute_draws_the_same_random_numbers_and_can_be_differentiated_twice():
    x = leaf(1000)
    y = recompute(lambda x: nn.functional.dropout(x.exp(), 0.5), x)
    (gradient,) = torch.autograd.grad(y, x, torch.ones(1000))
    assert torch.equal(gradient, y.detach())  # equal if both calls draw the same mask: exp is its own derivative
    assert 300 < int((y == 0).sum()) < 700
    x = leaf(5, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(lambda x: recompute(lambda x: x.exp().sin(), x), (x,))


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 4), (torch.float64, 8)])
def test_compress_holds_the_hidden_layer_once_in_two_bytes(dtype, width):
    model, x = perceptron(dtype=dtype), torch.ones(8, 32, dtype=dtype)
    # ReLU and the second layer both save the hidden layer; compress also copies the input
    assert held_bytes(model, x)["cpu"] == width * HIDDEN
    assert held_bytes(within(compress, model), x)["cpu"] == 2 * (HIDDEN + 8 * 32)


def test_gradients_under_compress_are_rounded_like_bfloat16():
    model, exact = perceptron(), perceptron(dtype=torch.float64)
    x = leaf(8, 32)
    cotangent = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    truth = torch.autograd.grad(exact(x.double()), list(exact.parameters()), cotangent.double())

    def error(fn):
        found = torch.autograd.grad(fn(x), list(model.parameters()), cotangent)
        gap = torch.cat([(one.double() - other).flatten() for one, other in zip(found, truth, strict=True)])
        return (gap.norm() / torch.cat([other.flatten() for other in truth]).norm()).item()

    assert error(model) < 2**-20
    assert 2**-11 < error(within(compress, model)) < 2**-8
    assert torch.equal(within(compress, model)(x), model(x))  # the forward pass is exact


def test_compress_keeps_tensors_that_are_not_wide_and_floating():
    index, mask = torch.tensor([2, 0]), torch.tensor([True, False, True])

    def fn(x):
        return x[index].sum() + torch.where(mask, x, 0).sum()

    x = leaf(3)
    assert saved_bytes(fn, x).total > 0
    assert held_bytes(within(compress, fn), x) == held_bytes(fn, x)
    half, complex_ = leaf(10, dtype=torch.float16), torch.randn(10, dtype=torch.complex128, requires_grad=True)
    for x in (half, complex_):
        (found,) = torch.autograd.grad(within(compress, lambda x: x.exp().sum().abs())(x), x)
        (wanted,) = torch.autograd.grad(x.exp().sum().abs(), x)
        assert torch.equal(found, wanted)


def test_compress_keeps_parameters_and_their_views_exact():
    weight, x = leaf(32, 16), torch.randn(8, 32)
    y = x.clone().requires_grad_()
    with compress():
        result = (y * 1) @ weight.t().t()
    (of_y,) = torch.autograd.grad(result, y, cotangent := torch.randn(8, 16))
    assert torch.equal(of_y, cotangent @ weight.t())
    held = held_bytes(within(compress, lambda y: y @ weight), leaf(8, 32))
    assert held == {"cpu": 0}


def test_compress_can_be_differentiated_twice():
    x = leaf(50)
    with compress():
        y = (x * 1).sin().square()
    cotangent = torch.randn(50)
    (first,) = torch.autograd.grad(y, x, cotangent, create_graph=True)
    (second,) = torch.autograd.grad(first, x, torch.ones(50))
    torch.testing.assert_close(second, 2 * cotangent * (2 * x).cos(), rtol=0, atol=0.1)
    assert not torch.equal(second, torch.zeros(50))


# faults of plain hooks


@pytest.mark.parametrize("tool", [offload_to_cpu, compress, torch.autograd.graph.save_on_cpu])
def test_saved_tensors_are_freed_with_the_result(tool):
    """A plain pair of hooks keeps its output for ever: why `offload_to_cpu` does not use `save_on_cpu` of torch."""
    with tool():
        y = leaf(10).exp()  # saves its own output
    storage = StorageWeakRef(y.untyped_storage())
    del y
    if tool is torch.autograd.graph.save_on_cpu:
        gc.collect()
    assert storage.expired() is (tool is not torch.autograd.graph.save_on_cpu)


@pytest.mark.parametrize("tool", [offload_to_cpu, compress])
def test_a_parameter_changed_before_backward_is_an_error(tool):
    weight, x = leaf(4, 4), leaf(2, 4)
    with tool():
        y = x @ weight
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match=rf"{tool.__name__}: a tensor of shape \[4, 4\], .* changed in place"):
        torch.autograd.grad(y, x, torch.ones(2, 4))


def test_a_replaced_tensor_may_be_changed_before_backward():
    x = leaf(10)
    with Replaced("clone", lambda tensor: tensor.clone()):
        y = x * 2
        z = y * y
        y.detach().zero_()
        z = z + y * y  # saves the zeros, not the earlier copy
    (gradient,) = torch.autograd.grad(z, x, torch.ones(10))
    torch.testing.assert_close(gradient, 8 * x.detach())


def test_a_new_tensor_at_an_old_address_is_not_taken_for_the_old():
    x, results = leaf(1000), []
    with Replaced("clone", lambda tensor: tensor.clone()):
        results += [torch.sin(x * i) for i in range(20)]  # each x * i is freed at once, but its copy stays
    for i, result in enumerate(results):
        (gradient,) = torch.autograd.grad(result, x, torch.ones(1000))
        torch.testing.assert_close(gradient, i * torch.cos(x.detach() * i))


def test_different_views_are_replaced_separately():
    x = leaf(6, 6)

    def fn(x):
        y = x * 1
        z = torch.view_as_complex(y.reshape(6, 3, 2))
        return (y * y.t()).sum() + (y[:3] * y[3:]).sum() + z.imag * z.conj().imag.sin() + (z * z.conj().exp()).real

    with Replaced("clone", lambda tensor: tensor.clone()):
        replaced = fn(x)
    cotangent = torch.randn(6, 3)
    (found,) = torch.autograd.grad(replaced, x, cotangent)
    (wanted,) = torch.autograd.grad(fn(x), x, cotangent)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("tool", [offload_to_cpu, compress])
def test_sparse_tensors_stay(tool):
    x = leaf(4, 4)

    def fn(x):
        return torch.sparse.mm(x.to_sparse(), torch.ones(4, 2))

    cotangent = torch.randn(4, 2)
    (found,) = torch.autograd.grad(within(tool, fn)(x), x, cotangent)
    (wanted,) = torch.autograd.grad(fn(x), x, cotangent)
    assert torch.equal(found.to_dense(), wanted.to_dense())


@BREAKS
@pytest.mark.parametrize("order", ["tool around compiled", "tool around given up"])
def test_compress_around_compiled_code_with_a_graph_break(order):
    traced = []

    def note(graph, _):
        traced.append(graph.code)
        return graph

    def plain(x):
        y = (x * 1).sin().exp()
        torch._dynamo.graph_break()
        return y.sin().exp()  # sin of exp would magnify rounding errors

    x, cotangent = leaf(64), torch.randn(64)
    (wanted,) = torch.autograd.grad(plain(x), x, cotangent)
    compiled = torch.compile(plain, backend=note)
    held_bytes(compiled, x) if order == "tool around given up" else compiled(x)
    (found,) = torch.autograd.grad(within(compress, compiled)(x), x, cotangent)
    assert 2**-12 < ((found - wanted).norm() / wanted.norm()).item() < 0.05
    assert not any("bfloat16" in code for code in traced)  # torch.compile did not trace the hooks


# forbid_saved_tensor_hooks


@pytest.mark.parametrize("tool", [offload_to_cpu, compress])
def test_forbidden_hooks_raise_the_message_and_forbidding_inside_active_hooks_is_an_error(tool):
    with forbid_saved_tensor_hooks("not in this region"):
        for use in (tool().__enter__, partial(recompute, torch.sin, leaf(3)), partial(saved_bytes, torch.sin, leaf(3))):
            with pytest.raises(RuntimeError, match=r"^not in this region$"):
                use()
    with tool():
        assert (leaf(3) * 1).exp().requires_grad
        with pytest.raises(RuntimeError), forbid_saved_tensor_hooks("too late"):
            pass


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
