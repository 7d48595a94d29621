"""Merge, its tiled twin, and the plain baseline."""

import pytest
import torch
from torch import nn

import zoo
from zoo.models.merge import Merge, MergeTiled


@pytest.mark.parametrize("build", [Merge, MergeTiled])
@pytest.mark.parametrize(
    ("lead1", "lead2", "lead"),
    [((5, 3), (5, 1), (5, 3)), ((4, 1), (1, 7), (4, 7)), ((), (2, 3), (2, 3)), ((0, 3), (1, 1), (0, 3))],
)
def test_leading_shapes_broadcast(build, lead1, lead2, lead):
    model = build(5, 6, 10)
    assert model(torch.ones(*lead1, 5), torch.ones(*lead2, 6)).shape == (*lead, 10)


def test_activation_is_applied_to_the_sum():
    model = Merge(5, 6, 10, activation=nn.Tanh())
    x1, x2 = zoo.example_inputs("merge")
    torch.testing.assert_close(model(x1, x2), torch.tanh(model.linear1(x1) + model.linear2(x2)))


@pytest.mark.parametrize("build", [Merge, MergeTiled])
@pytest.mark.parametrize("scripted", [False, True])
def test_a_wrong_trailing_size_names_the_argument(build, scripted):
    model = torch.jit.script(build(5, 6, 10)) if scripted else build(5, 6, 10)
    error = torch.jit.Error if scripted else ValueError
    with pytest.raises(error, match=r"x1 must have trailing size 5, got shape \[2, 6\]"):
        model(torch.ones(2, 6), torch.ones(2, 6))
    with pytest.raises(error, match=r"x2 must have trailing size 6, got shape \[\]"):
        model(torch.ones(2, 5), torch.tensor(1.0))


@pytest.mark.parametrize("build", [Merge, MergeTiled])
@pytest.mark.parametrize("scripted", [False, True])
def test_integers_are_refused_by_name(build, scripted):
    model = torch.jit.script(build(5, 6, 10)) if scripted else build(5, 6, 10)
    message = f"{build.__name__}: x1 and x2 must have a floating dtype, got "
    with pytest.raises(torch.jit.Error if scripted else TypeError, match=message):
        model(torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 6))
    with pytest.raises(torch.jit.Error if scripted else TypeError, match=message):
        model(torch.ones(2, 5), torch.ones(2, 6, dtype=torch.int64))


@pytest.mark.parametrize("build", [Merge, MergeTiled])
def test_leading_shapes_that_do_not_broadcast_are_both_named(build):
    with pytest.raises(RuntimeError, match=r"size of tensor a \(3\) must match the size of tensor b \(2\)"):
        build(5, 6, 10)(torch.ones(3, 5), torch.ones(2, 6))


def test_tiled_twin_shares_parameters_and_gradients():
    model, twin = Merge(5, 6, 10).double(), MergeTiled(5, 6, 10).double()
    twin.load_state_dict(model.state_dict())
    x1, x2 = (x.double().requires_grad_() for x in zoo.example_inputs("merge"))
    one, other = model(x1, x2), twin(x1, x2)
    torch.testing.assert_close(one, other)
    cotangent = torch.randn_like(one)
    for mine, its in zip(
        torch.autograd.grad(one, (x1, x2, *model.parameters()), cotangent),
        torch.autograd.grad(other, (x1, x2, *twin.parameters()), cotangent),
        strict=True,
    ):
        torch.testing.assert_close(mine, its)


def test_scripted_merge_is_float32_where_eager_is_low():
    x1, x2 = zoo.example_inputs("merge")
    eager = zoo.create_model("merge")
    scripted = torch.jit.script(eager)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert eager(x1, x2).dtype == torch.bfloat16
        assert [scripted(x1, x2).dtype for _ in range(4)][-1] == torch.float32


def test_mlp_has_the_sizes_of_its_source():
    shapes = [tuple(p.shape) for p in zoo.create_model("mlp").parameters()]
    assert shapes == [(32, 64), (32,), (10, 32), (10,)]


def test_mlp_names_a_wrong_trailing_size():
    with pytest.raises(RuntimeError, match=r"\(3x63 and 64x32\)"):
        zoo.create_model("mlp")(torch.ones(3, 63))
