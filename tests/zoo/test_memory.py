"""Counts of the bytes that autograd saves."""

import pytest
import torch
from saved_tensor_cases import BREAKS, DEVICES, HIDDEN, leaf, perceptron
from torch import nn

from zoo.memory import SavedBytes, held_bytes, saved_bytes

# saved_bytes


@pytest.mark.parametrize("device", [*DEVICES, "meta"])
def test_a_module_saves_its_hidden_layer_once_beside_input_and_weights(device):
    # the first weight is not saved, because the input needs no gradient
    expected = SavedBytes(saved=4 * HIDDEN, inputs=4 * 8 * 32, parameters=4 * 16 * 64)
    model, x = perceptron(device), torch.ones(8, 32, device=device)
    assert [saved_bytes(model, x) for _ in range(3)] == [expected] * 3
    assert expected.total == 4 * (512 + 256 + 1024)


def test_views_and_repeats_of_one_storage_count_once():
    x = leaf(10, 10)

    def viewed(x):
        y = x.exp()  # saves y
        return y.t().sin() + y[2:].cos().sum() + y.reshape(100).square().sum() * 2  # each op saves a view of y

    assert saved_bytes(viewed, x) == SavedBytes(saved=400, inputs=0, parameters=0)


def test_a_storage_counts_as_a_whole():
    x = torch.ones(100)[:1].requires_grad_()
    assert saved_bytes(torch.sin, x) == SavedBytes(saved=0, inputs=400, parameters=0)


def test_tensors_that_the_result_does_not_hold_do_not_count():
    x = leaf(100)

    def with_a_lost_graph(x):
        x.exp().sin().sum()
        torch.autograd.grad(x.exp().sum(), x)
        return x * 2

    assert saved_bytes(with_a_lost_graph, x).total == 0


def test_tensors_from_elsewhere_are_parameters_if_they_get_a_gradient():
    model, weight, constant = perceptron(), leaf(16), torch.ones(16)
    x = torch.ones(8, 32)
    closed = saved_bytes(lambda x: model(x) * weight, x)
    alone = saved_bytes(model, x)
    assert closed.parameters == alone.parameters + 4 * 16
    assert closed.saved == alone.saved + 4 * 8 * 16
    assert saved_bytes(lambda x: x * constant, leaf(16)) == SavedBytes(saved=64, inputs=0, parameters=0)


def test_buffers_are_counted_with_the_parameters():
    model = nn.BatchNorm1d(8).eval()
    saved = saved_bytes(model, leaf(4, 8))
    assert (saved.saved, saved.inputs, saved.parameters) == (0, 128, 4 * 8 * 3)  # weight, mean, variance


def test_inputs_inside_containers_are_inputs():
    x, y = leaf(6), leaf(6)
    saved = saved_bytes(lambda pair, named: pair[0] * named["y"], [x], {"y": y})
    assert saved == SavedBytes(saved=0, inputs=48, parameters=0)


class Saves(torch.autograd.Function):
    """x squared; a name selects the tensor to save."""

    @staticmethod
    def forward(ctx, x, name):
        y = x * x
        kept = {"input": x, "view of the input": x[1:], "output": y, "fresh": x + 1, "attribute": None}[name]
        ctx.save_for_backward(kept)
        ctx.unseen = x + 1
        return y

    @staticmethod
    def backward(_ctx, grad):
        return grad, None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("input", (0, 40)),
        ("view of the input", (0, 40)),
        ("output", (40, 0)),
        ("fresh", (40, 0)),
        ("attribute", (0, 0)),  # attributes of ctx are not seen
    ],
)
def test_tensors_that_a_function_saves_count(name, expected):
    saved = saved_bytes(Saves.apply, leaf(10), name)
    assert (saved.saved, saved.inputs) == expected


def test_under_autocast_the_cast_copies_are_saved():
    model, x = nn.Linear(32, 16), torch.ones(8, 32, requires_grad=True)

    def cast(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    assert saved_bytes(cast, x) == SavedBytes(saved=2 * (8 * 32 + 16 * 32), inputs=0, parameters=0)


def test_nothing_is_saved_without_gradients():
    model, x = perceptron(), torch.ones(8, 32)
    with torch.no_grad():
        assert saved_bytes(model, x) == SavedBytes(saved=0, inputs=0, parameters=0)


def test_a_scripted_module_is_counted_alike_in_every_run():
    # a script that does not know yet which leaf needs a gradient saves more than eager
    model, x = torch.jit.script(perceptron()), leaf(8, 32)
    first, *others = [saved_bytes(model, x) for _ in range(4)]
    assert others == [first] * 3
    assert (first.saved, first.inputs) == (4 * HIDDEN, 4 * 8 * 32)


@BREAKS
@pytest.mark.parametrize("graph_break", [False, True])
def test_a_compiled_callable_is_counted_without_compiling_it_again(graph_break):
    weight = leaf(32, 32)
    graphs = 0

    def count(graph, _):
        nonlocal graphs
        graphs += 1
        return graph

    def plain(x):
        y = torch.relu(x @ weight)
        if graph_break:
            torch._dynamo.graph_break()
        return y.sin()

    compiled = torch.compile(plain, backend=count)
    x = leaf(8, 32)
    expected = SavedBytes(saved=4 * 8 * 32, inputs=4 * 8 * 32, parameters=4 * 32 * 32)
    assert saved_bytes(plain, x) == expected
    assert [saved_bytes(compiled, x) for _ in range(3)] == [expected] * 3
    assert graphs == 1 + graph_break


def test_a_callable_that_torch_stopped_compiling_is_counted_like_an_eager_one():
    def plain(x):
        return (x * 1).exp().sin()

    compiled, x = torch.compile(plain, backend="eager"), leaf(64)
    held_bytes(compiled, x)  # torch stops compiling it, and from now on tries to compile the hooks that it calls
    assert saved_bytes(compiled, x) == saved_bytes(plain, x) == SavedBytes(saved=256, inputs=0, parameters=0)


def test_counting_leaves_the_graph_usable():
    x = leaf(10)
    kept = []

    def fn(x):
        kept.append(x.exp().sin())
        return kept[-1]

    saved_bytes(fn, x)
    cotangent = torch.randn(10)
    (gradient,) = torch.autograd.grad(kept[-1], x, cotangent)
    torch.testing.assert_close(gradient, cotangent * x.exp().cos() * x.exp())


def test_counting_raises_for_values_that_it_cannot_count():
    with pytest.raises(TypeError, match="saved_bytes: fn must be callable, got int"):
        saved_bytes(3)
    with pytest.raises(TypeError, match="held_bytes: fn must be callable, got int"):
        held_bytes(3)
    with pytest.raises(TypeError, match=r"every saved tensor must have a storage, got layout torch\.sparse_coo"):
        saved_bytes(lambda x: torch.sparse.mm(x.to_sparse(), x), leaf(4, 4))


# held_bytes


@pytest.mark.parametrize("device", [*DEVICES, "meta"])
def test_held_equals_saved_without_inputs_and_parameters(device):
    model, x = perceptron(device), torch.ones(8, 32, device=device)
    held = held_bytes(model, x)
    assert held == {device: 4 * HIDDEN}
    assert held["xpu"] == 0


def test_held_excludes_results_and_earlier_tensors():
    x, state = leaf(10), torch.zeros(10)

    def fn(x):
        state.add_(x.detach())
        return x.exp(), {"view": x[2:]}

    assert held_bytes(fn, x)["cpu"] == 0
    kept = []
    assert held_bytes(lambda x: kept.append(x.detach() * 2), x)["cpu"] == 40
