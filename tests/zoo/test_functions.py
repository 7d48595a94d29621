"""The elementwise Functions, those for autocast, and their operator twins: derivatives, transforms, dtypes, scripts."""

import io
import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import zoo
from zoo.functions.cube import CubeBackward
from zoo.functions.matmul_amp import matmul_amp, matmul_amp_op
from zoo.functions.relu_amp import relu_amp, relu_amp_op

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


def test_cube_backward_orders_its_gradients_as_its_arguments():
    grad = torch.tensor(5.0, requires_grad=True)
    x = torch.tensor(2.0, requires_grad=True)
    CubeBackward.apply(grad, x).backward()
    assert grad.grad == 12
    assert x.grad == 60


# under autocast


LOWS = (torch.float16, torch.bfloat16)
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
