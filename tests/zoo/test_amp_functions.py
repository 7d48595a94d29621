"""The Functions for autocast and their operator twins: dtypes, backward outside the block, saved scripts."""

import io

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import zoo
from zoo.functions.matmul_amp import matmul_amp, matmul_amp_op
from zoo.functions.relu_amp import relu_amp, relu_amp_op

LOWS = (torch.float16, torch.bfloat16)
quiet_vmap = pytest.mark.skipif(not hasattr(torch.library, "register_vmap"), reason="torch loops, and warns")
both_products = pytest.mark.parametrize("product", [matmul_amp, matmul_amp_op], ids=lambda f: f.__name__)


def reload(function):
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(function), file)
    file.seek(0)
    return torch.jit.load(file)


CALL_MODES = {
    "eager": lambda function: function,
    "scripted": torch.jit.script,
    "reloaded": reload,
    "compiled": lambda function: torch.compile(function, backend="aot_eager", fullgraph=True),
}
call_modes = pytest.mark.parametrize("convert", CALL_MODES.values(), ids=CALL_MODES)


def matrices(dtype=torch.float32):
    return torch.randn(3, 4, dtype=dtype, requires_grad=True), torch.randn(4, 2, dtype=dtype, requires_grad=True)


@both_products
@pytest.mark.parametrize("low", LOWS)
def test_matmul_differentiates_outside_the_autocast_block(product, low):
    a, b = matrices()
    with torch.autocast("cpu", dtype=low):
        out = product(a, b)
    assert out.dtype == low
    cotangent = torch.randn(3, 2).to(low)
    out.backward(cotangent)
    assert a.grad.dtype == b.grad.dtype == torch.float32
    assert torch.equal(a.grad, (cotangent @ b.detach().to(low).t()).float())


@both_products
def test_matmul_outside_autocast_keeps_its_precision_in_a_backward_inside(product):
    a, b = matrices()
    cotangent = torch.randn(3, 2)
    out = product(a, b)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (of_a,) = torch.autograd.grad(out, a, cotangent)
    assert torch.equal(of_a, cotangent @ b.detach().t())


@call_modes
def test_the_autocast_kernel_reads_the_dtype_in_every_call(convert):
    product, (a, b) = convert(matmul_amp_op), matrices()
    for low in (torch.float16, torch.bfloat16, torch.float16):
        torch.compiler.reset()  # up to 2.6, torch ran code compiled for one dtype also for the other
        with torch.autocast("cpu", dtype=low):
            out = product(a, b)
        assert out.dtype == low
        assert torch.equal(out, a.detach().to(low) @ b.detach().to(low))
        (of_a,) = torch.autograd.grad(out, a, torch.ones(3, 2, dtype=low))
        assert of_a.dtype == torch.float32
    assert product(a, b).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert product(*matrices(torch.float64)).dtype == torch.float64


@call_modes
@pytest.mark.parametrize("low", LOWS)
def test_exp_operator_casts_a_low_input_to_float32_in_every_mode(convert, low):
    torch.compiler.reset()
    function = convert(zoo.create_model("exp_fp32_op"))
    x = torch.tensor([12.0, -3.0], dtype=low, requires_grad=True)
    with torch.autocast("cpu", dtype=low):
        out = function(x)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, torch.exp(x.detach().double()).float(), rtol=1e-6, atol=0)
    (gradient,) = torch.autograd.grad(out, x, torch.tensor([0.0, 1.0]))
    assert gradient.dtype == low
    assert function(x).dtype == low


@pytest.mark.parametrize("low", LOWS)
def test_exp_fp32_casts_a_low_input_to_float32_only_under_autocast(low):
    function = zoo.create_model("exp_fp32")
    x = torch.tensor([12.0, -3.0], dtype=low, requires_grad=True)
    with torch.autocast("cpu", dtype=low):
        out = function(x)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, torch.exp(x.detach().double()).float(), rtol=1e-6, atol=0)
    (gradient,) = torch.autograd.grad(out, x, torch.tensor([0.0, 1.0]))
    assert gradient.dtype == low
    assert function(x).dtype == low


def test_exp_fp32_raises_under_transforms():
    with pytest.raises(RuntimeError, match="must override the setup_context"):
        torch.vmap(zoo.create_model("exp_fp32"))(torch.ones(3))


@both_products
def test_matmul_derivatives(product):
    assert gradcheck(product, matrices(torch.float64))
    assert gradgradcheck(product, matrices(torch.float64))


def test_matmul_under_transforms():
    a, b = (x.detach() for x in matrices(torch.float64))
    cotangent = torch.randn(3, 2).double()
    stack = torch.randn(5, 3, 4).double()
    assert torch.vmap(matmul_amp, (0, None))(stack, b).shape == (5, 3, 2)
    torch.testing.assert_close(torch.vmap(matmul_amp, (0, None))(stack, b), stack @ b)
    slope = torch.func.grad(lambda a: (matmul_amp(a, b) * cotangent).sum())(a)
    torch.testing.assert_close(slope, cotangent @ b.t())


@quiet_vmap
def test_matmul_operator_under_vmap():
    a, b = torch.randn(3, 5, 4), torch.randn(5, 4, 2)
    torch.testing.assert_close(torch.vmap(matmul_amp_op, (1, 0))(a, b), a.transpose(0, 1) @ b)
    torch.testing.assert_close(torch.vmap(matmul_amp_op, (1, None))(a, b[0]), a.transpose(0, 1) @ b[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.vmap(matmul_amp_op)(a.transpose(0, 1), b).dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # opcheck reads .grad
def test_matmul_operator_keeps_its_registration_promises():
    operator = torch.ops.torch_conformance.matmul_amp.default
    strided = (torch.randn(4, 3).t().requires_grad_(), torch.randn(2, 4).t().requires_grad_())
    assert set(torch.library.opcheck(operator, strided).values()) == {"SUCCESS"}
    with torch.autocast("cpu", dtype=torch.float16):
        assert set(torch.library.opcheck(operator, strided).values()) == {"SUCCESS"}


def test_saved_matmul_operator_differentiates():
    assert gradgradcheck(reload(matmul_amp_op), matrices(torch.float64))


@pytest.mark.parametrize("name", ["matmul_amp", "matmul_amp_op"])
def test_matmul_names_misfits(name):
    product, one = zoo.create_model(name), torch.ones(3, 4)
    with pytest.raises(ValueError, match=rf"^{name}: b must have shape \(4, m\), got \[3, 4\]"):
        product(one, one)
    with pytest.raises(TypeError, match=f"^{name}: a must have a floating dtype, got torch.int64"):
        product(one.long(), one.t())
    with pytest.raises(TypeError, match=f"^{name}: b must have a floating dtype, got torch.int64"):
        product(one, one.t().long())
    with pytest.raises(ValueError, match=f"^{name}: b must be on the device of a, cpu, got meta"):
        product(one, one.t().to("meta"))
    with pytest.raises(
        TypeError, match=r"b must have the dtype of a, torch.float32, outside autocast, got torch.float"
    ):
        product(one, one.t().half())


@pytest.mark.parametrize("function", [relu_amp, relu_amp_op], ids=lambda f: f.__name__)
def test_relu_saves_one_byte_per_element(function):
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        function(torch.randn(10, 100, requires_grad=True))
    assert [t.untyped_storage().nbytes() for t in saved] == [1000]


@pytest.mark.parametrize("function", [relu_amp, relu_amp_op], ids=lambda f: f.__name__)
@pytest.mark.parametrize("low", [*LOWS, None])
def test_relu_keeps_the_dtype_and_differentiates_outside_the_autocast_block(function, low):
    for dtype in (torch.float32, low or torch.float32):
        x = torch.tensor([-1.0, 0.0, 2.0], dtype=dtype, requires_grad=True)
        with torch.autocast("cpu", dtype=low or torch.bfloat16, enabled=low is not None):
            out = function(x)
        assert out.dtype == dtype
        assert out.tolist() == [0, 0, 2]
        (gradient,) = torch.autograd.grad(out, x, torch.tensor([3.0, 5.0, 7.0], dtype=dtype))
        assert gradient.dtype == dtype
        assert gradient.tolist() == [0, 0, 7]
