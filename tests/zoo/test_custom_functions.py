"""Every custom Function and its operator twin: derivatives, transforms, scripts."""

import io
import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import zoo
from zoo.functions.cube import CubeBackward
from zoo.functions.matmul_amp import matmul_amp

DERIVATIVES = {
    "square": lambda x: 2 * x,
    "exp": math.exp,
    "sinh": math.cosh,
    "cube": lambda x: 3 * x * x,
}
NAMES = tuple(DERIVATIVES)


def points():
    return torch.tensor([-1.5, 0.25, 2.0], dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("name", [*NAMES, *(f"{n}_op" for n in NAMES), "exp_fp32"])
def test_first_and_second_derivatives(name):
    function = zoo.create_model(name)
    assert gradcheck(function, (points(),))
    assert gradgradcheck(function, (points(),))


@pytest.mark.parametrize("name", NAMES)
def test_vmap_and_func_grad(name):
    function, x = zoo.create_model(name), points().detach()
    assert torch.equal(torch.vmap(function)(x), function(x))
    slopes = torch.vmap(torch.func.grad(function))(x)
    torch.testing.assert_close(slopes, torch.tensor([DERIVATIVES[name](v) for v in x.tolist()]).double())


@pytest.mark.parametrize("name", NAMES)
def test_twin_agrees_bit_for_bit(name):
    function, twin = zoo.create_model(name), zoo.create_model(f"{name}_op")
    x = points()
    assert torch.equal(function(x), twin(x))
    (one,) = torch.autograd.grad(function(x).sum(), x)
    (other,) = torch.autograd.grad(twin(x).sum(), x)
    assert torch.equal(one, other)


@pytest.mark.parametrize("name", [*NAMES, "cube_backward"])
def test_operators_keep_their_registration_promises(name):
    operator = getattr(torch.ops.torch_conformance, name).default
    shape = (4, 3) if name != "cube_backward" else (3, 4)
    strided = torch.randn(shape).t().requires_grad_()
    args = (strided, strided.detach().clone().requires_grad_()) if name == "cube_backward" else (strided,)
    results = torch.library.opcheck(operator, args)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", NAMES)
def test_operator_scripts_saves_reloads_and_differentiates(name):
    twin = zoo.create_model(f"{name}_op")
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(twin), file)
    file.seek(0)
    reloaded = torch.jit.load(file)
    assert torch.equal(reloaded(points()), twin(points()))
    assert gradgradcheck(reloaded, (points(),))


@pytest.mark.parametrize("name", [*NAMES, *(f"{n}_op" for n in NAMES), "exp_fp32"])
def test_integers_are_refused_by_name(name):
    with pytest.raises(TypeError, match=f"^{name}: x must have a floating dtype, got torch.int64"):
        zoo.create_model(name)(torch.arange(3))


def test_cube_backward_orders_its_gradients_as_its_arguments():
    grad = torch.tensor(5.0, requires_grad=True)
    x = torch.tensor(2.0, requires_grad=True)
    CubeBackward.apply(grad, x).backward()
    assert grad.grad == 12
    assert x.grad == 60


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_matmul_amp_differentiates_outside_the_autocast_block(low):
    a, b = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    with torch.autocast("cpu", dtype=low):
        out = matmul_amp(a, b)
    assert out.dtype == low
    cotangent = torch.randn(3, 2).to(low)
    out.backward(cotangent)
    assert a.grad.dtype == b.grad.dtype == torch.float32
    assert torch.equal(a.grad, (cotangent @ b.detach().to(low).t()).float())


def test_matmul_amp_names_misfits():
    with pytest.raises(ValueError, match=r"\(n, k\) and \(k, m\), got \[3, 4\] and \[3, 4\]"):
        matmul_amp(torch.ones(3, 4), torch.ones(3, 4))


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_exp_fp32_lifts_a_low_input_under_autocast_only(low):
    function = zoo.create_model("exp_fp32")
    x = torch.tensor([12.0, -3.0], dtype=low, requires_grad=True)
    with torch.autocast("cpu", dtype=low):
        out = function(x)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, torch.exp(x.detach().float()))
    (gradient,) = torch.autograd.grad(out, x, torch.tensor([0.0, 1.0]))
    assert gradient.dtype == low
    assert function(x).dtype == low
