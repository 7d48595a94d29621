"""The elementwise Functions and their operator twins: derivatives, transforms, scripts."""

import io
import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import zoo
from zoo.functions.cube import CubeBackward

DERIVATIVES = {
    "square": lambda x: 2 * x,
    "exp": math.exp,
    "sinh": math.cosh,
    "cube": lambda x: 3 * x * x,
    "relu_amp": lambda x: float(x > 0),
}
NAMES = tuple(DERIVATIVES)
TWINS = (*(f"{name}_op" for name in NAMES), "exp_fp32_op")
quiet_vmap = pytest.mark.skipif(not hasattr(torch.library, "register_vmap"), reason="torch loops, and warns")


def points():
    return torch.tensor([-1.5, 0.25, 2.0], dtype=torch.float64, requires_grad=True)


def slopes(name, x):
    return torch.tensor([DERIVATIVES[name](v) for v in x.tolist()], dtype=x.dtype)


@pytest.mark.parametrize("name", [*NAMES, *TWINS, "exp_fp32"])
def test_first_and_second_derivatives(name):
    function = zoo.create_model(name)
    assert gradcheck(function, (points(),))
    assert gradgradcheck(function, (points(),))


@pytest.mark.parametrize("name", NAMES)
def test_vmap_and_func_grad(name):
    function, x = zoo.create_model(name), points().detach()
    assert torch.equal(torch.vmap(function)(x), function(x))
    torch.testing.assert_close(torch.vmap(torch.func.grad(function))(x), slopes(name, x))


@quiet_vmap
@pytest.mark.parametrize("name", TWINS)
def test_operators_under_vmap(name):
    twin, x = zoo.create_model(name), torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    mapped = torch.vmap(twin, in_dims=1, out_dims=1)(x)
    assert torch.equal(mapped, twin(x))
    cotangent = torch.randn_like(mapped)
    (one,) = torch.autograd.grad(mapped, x, cotangent)
    (other,) = torch.autograd.grad(twin(x), x, cotangent)
    assert torch.equal(one, other)


@quiet_vmap
@pytest.mark.parametrize("name", NAMES)
def test_operators_under_vmap_of_backward(name):
    x = points()
    y = zoo.create_model(f"{name}_op")(x)
    rows = torch.vmap(lambda cotangent: torch.autograd.grad(y, x, cotangent, retain_graph=True)[0])(
        torch.eye(3, dtype=x.dtype)
    )
    torch.testing.assert_close(rows, torch.diag(slopes(name, x.detach())))


@pytest.mark.parametrize("name", TWINS)
def test_operators_refuse_func_grad(name):
    twin = zoo.create_model(name)
    with pytest.raises(RuntimeError, match="must override the setup_context"):
        torch.func.grad(lambda x: twin(x)[0])(points().detach())


@pytest.mark.parametrize("name", NAMES)
def test_twin_agrees_bit_for_bit(name):
    function, twin = zoo.create_model(name), zoo.create_model(f"{name}_op")
    x, cotangent = points(), torch.randn(3, dtype=torch.float64)
    assert torch.equal(function(x), twin(x))
    (one,) = torch.autograd.grad(function(x), x, cotangent)
    (other,) = torch.autograd.grad(twin(x), x, cotangent)
    assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # by torch 2.15
@pytest.mark.parametrize("name", [*NAMES, "exp_fp32", "cube_backward"])
def test_operators_keep_their_registration_promises(name):
    operator = getattr(torch.ops.torch_conformance, name).default
    shape = (4, 3) if name != "cube_backward" else (3, 4)
    strided = torch.randn(shape).t().requires_grad_()
    args = (strided, strided.detach().clone().requires_grad_()) if name == "cube_backward" else (strided,)
    results = torch.library.opcheck(operator, args)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", TWINS)
def test_operator_scripts_saves_reloads_and_differentiates(name):
    twin = zoo.create_model(name)
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(twin), file)
    file.seek(0)
    reloaded = torch.jit.load(file)
    assert torch.equal(reloaded(points()), twin(points()))
    assert gradgradcheck(reloaded, (points(),))


@pytest.mark.parametrize("name", [*NAMES, *TWINS, "exp_fp32"])
def test_integers_are_refused_by_name(name):
    with pytest.raises(TypeError, match=f"^{name}: x must have a floating dtype, got torch.int64"):
        zoo.create_model(name)(torch.arange(3))


def test_cube_backward_orders_its_gradients_as_its_arguments():
    grad = torch.tensor(5.0, requires_grad=True)
    x = torch.tensor(2.0, requires_grad=True)
    CubeBackward.apply(grad, x).backward()
    assert grad.grad == 12
    assert x.grad == 60
