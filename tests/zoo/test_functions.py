"""The custom Functions and their operator twins: derivatives, transforms, scripts, bytes, dtypes under autocast."""

import io
import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional

import zoo
from zoo.functions.batch_norm2d import batch_norm2d, batch_norm2d_op
from zoo.functions.conv2d import conv2d
from zoo.functions.fused_conv_bn2d import fused_conv_bn2d, fused_conv_bn2d_op
from zoo.functions.matmul_amp import matmul_amp, matmul_amp_op
from zoo.functions.relu_amp import relu_amp, relu_amp_op
from zoo.models.clipped_relu import ClippedReLU

SLOPES = {
    "square": lambda x: 2 * x,
    "exp": math.exp,
    "sinh": math.cosh,
    "cube": lambda x: 3 * x * x,
    "relu_amp": lambda x: float(x > 0),
}
ONCE = ("conv2d", "batch_norm2d", "fused_conv_bn2d")  # differentiable once
FUNCTIONS = (*SLOPES, "matmul_amp", *ONCE)
TWINS = tuple(f"{name}_op" for name in FUNCTIONS)
CONVOLUTIONS = ("conv2d", "conv2d_op", "fused_conv_bn2d", "fused_conv_bn2d_op")
LOWS = (torch.float16, torch.bfloat16)
OPERATORS = torch.ops.torch_conformance
quiet_vmap = pytest.mark.skipif(not hasattr(torch.library, "register_vmap"), reason="torch loops, and warns")
# opcheck reads .grad
quiet_grad = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


def name_of(function):
    return getattr(function, "__name__", type(function).__name__)


def inputs(name, dtype=torch.float64):
    shapes = [(3, 4), (4, 2)] if "matmul" in name else [(2, 2, 4, 3)] if "2d" in name else [(3, 4)]
    shapes += [(3, 2, 2, 2)] if "conv" in name else []
    return tuple(torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)


def gradients(out, args, cotangent=None):
    """The gradients for a cotangent, or for one that is the same in each call."""
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(out.shape, generator=generator).to(out.dtype) if cotangent is None else cotangent
    return torch.autograd.grad(out, args, cotangent, retain_graph=True)


def plain(name):
    """Return the same function in differentiable torch calls."""

    def norm(x):
        std, mean = torch.std_mean(x, dim=(0, 2, 3), keepdim=True)
        return (x - mean) / (std + 1e-3)

    layers = {"conv2d": functional.conv2d, "batch_norm2d": norm, "matmul_amp": torch.mm}
    return layers.get(name.removesuffix("_op"), lambda x, weight: norm(functional.conv2d(x, weight)))


def reload(function):
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(function), file)
    file.seek(0)
    return torch.jit.load(file)


@pytest.mark.parametrize("name", [*FUNCTIONS, *TWINS, "exp_fp32", "exp_fp32_op"])
def test_derivatives(name):
    function = zoo.create_model(name)
    assert gradcheck(function, inputs(name))
    assert "2d" in name or gradgradcheck(function, inputs(name))


@pytest.mark.parametrize("name", SLOPES)
def test_func_grad_under_vmap_is_the_derivative(name):
    function, x = zoo.create_model(name), torch.tensor([-1.5, 0.25, 2.0], dtype=torch.float64)
    wanted = torch.tensor([SLOPES[name](v) for v in x.tolist()], dtype=x.dtype)
    torch.testing.assert_close(torch.vmap(torch.func.grad(function))(x), wanted)


@pytest.mark.parametrize("name", ["matmul_amp", *ONCE])
def test_func_grad_is_the_gradient(name):
    function, (x, *rest) = zoo.create_model(name), [t.detach() for t in inputs(name)]
    cotangent = torch.randn_like(function(x, *rest))
    slopes = [torch.func.grad(lambda x, f=f: (f(x, *rest) * cotangent).sum())(x) for f in (function, plain(name))]
    torch.testing.assert_close(*slopes)
    per_sample = torch.vmap(torch.func.grad(lambda x: (function(x, *rest) * cotangent).sum()))(torch.stack([x, 2 * x]))
    torch.testing.assert_close(per_sample[0], slopes[1])


@pytest.mark.parametrize("name", [*FUNCTIONS, *(pytest.param(n, marks=quiet_vmap) for n in (*TWINS, "exp_fp32_op"))])
def test_vmap_is_a_loop(name):
    function, args = zoo.create_model(name), [torch.stack([t, 3 * t], dim=1).detach() for t in inputs(name)]
    x = args[0].requires_grad_()
    loop = torch.stack([function(*(t[:, i] for t in args)) for i in range(2)])
    mapped = torch.vmap(function, in_dims=1)(*args)
    torch.testing.assert_close(mapped, loop)
    cotangent = torch.randn_like(loop)
    torch.testing.assert_close(
        *(torch.autograd.grad(out, x, cotangent, retain_graph=True)[0] for out in (mapped, loop))
    )
    shared = torch.vmap(function, (1, *[None] * (len(args) - 1)))(x, *(t[:, 0] for t in args[1:]))
    torch.testing.assert_close(shared[0], loop[0])


@quiet_vmap
@pytest.mark.parametrize("name", [*SLOPES, "matmul_amp"])
def test_operators_under_vmap_of_backward(name):
    args = inputs(name)
    y = zoo.create_model(f"{name}_op")(*args)
    cotangents = torch.randn(3, *y.shape, dtype=y.dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.vmap(matmul_amp_op)(torch.randn(5, 3, 4), torch.randn(5, 4, 2)).dtype == torch.bfloat16
    rows = torch.vmap(lambda cotangent: torch.autograd.grad(y, args[0], cotangent, retain_graph=True)[0])(cotangents)
    torch.testing.assert_close(rows, torch.stack([gradients(y, args, cotangent)[0] for cotangent in cotangents]))


@pytest.mark.parametrize("name", ["exp_fp32", *(f"{name}_op" for name in (*SLOPES, "exp_fp32"))])
def test_operators_and_exp_fp32_refuse_func_grad(name):
    function = zoo.create_model(name)
    with pytest.raises(RuntimeError, match="must override the setup_context"):
        torch.func.grad(lambda x: function(x).sum())(inputs(name)[0].detach())
    if name == "exp_fp32":
        with pytest.raises(RuntimeError, match="must override the setup_context"):
            torch.vmap(function)(torch.ones(3))


@pytest.mark.parametrize("name", [*ONCE, *(f"{name}_op" for name in ONCE)])
def test_a_second_derivative_is_refused_even_where_the_cotangent_is_constant(name):
    function, args = zoo.create_model(name), inputs(name)
    out = function(*args)
    gradients = torch.autograd.grad(out, args, torch.randn_like(out), create_graph=True)
    refusal = "once only" if name in ONCE else "no autograd formula was registered"
    for gradient in gradients:
        with pytest.raises(RuntimeError, match=refusal):
            torch.autograd.grad(gradient, args, torch.randn_like(gradient), retain_graph=True)
    if name in ONCE:
        x, *rest = (t.detach() for t in args)
        slope = torch.func.grad(lambda x: function(x, *rest).pow(3).mean())
        with pytest.raises(RuntimeError, match=f"^{name}: can be differentiated once only"):
            torch.func.grad(lambda x: slope(x).pow(2).mean())(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_twin_agrees_bit_for_bit(name, dtype):
    args = inputs(name, dtype)
    one, other = zoo.create_model(name)(*args), zoo.create_model(f"{name}_op")(*args)
    assert torch.equal(one, other)
    assert all(map(torch.equal, gradients(one, args), gradients(other, args)))


def strided(tensors):
    """The same tensors, in memory with their last two axes exchanged; leaves that require a gradient."""
    return [t.detach().transpose(-1, -2).contiguous().transpose(-1, -2).requires_grad_() for t in tensors]


@quiet_grad
@pytest.mark.parametrize("name", [*FUNCTIONS, "exp_fp32"])
def test_operators_keep_their_registration_promises(name):
    args, eps = strided(inputs(name, torch.float32)), (1e-3,) if "norm" in name or "bn" in name else ()
    for low in (False, True) if name == "matmul_amp" else (False,):
        with torch.autocast("cpu", dtype=torch.float16, enabled=low):
            found = torch.library.opcheck(getattr(OPERATORS, name).default, (*args, *eps))
        assert set(found.values()) == {"SUCCESS"}
    if name == "cube":
        given = strided([*args, *inputs(name, torch.float32)])
        assert set(torch.library.opcheck(OPERATORS.cube_backward.default, given).values()) == {"SUCCESS"}
    if name in ONCE:
        (grad,) = strided([torch.randn_like(zoo.create_model(name)(*args))])
        given = (*(t.detach() for t in (grad, *args)), *eps)
        backward = getattr(OPERATORS, f"{name}_backward").default
        assert set(torch.library.opcheck(backward, given).values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", [*TWINS, "exp_fp32_op"])
def test_operator_scripts_saves_reloads_and_differentiates(name):
    twin, args = zoo.create_model(name), inputs(name)
    reloaded, eps = reload(twin), (1e-3,) if "norm" in name or "bn" in name else ()
    assert torch.equal(reloaded(*args, *eps), twin(*args))
    if "2d" not in name:
        assert gradgradcheck(reloaded, args)
        return
    assert gradcheck(reloaded, (*args, *eps), fast_mode=True)
    for low in LOWS if "conv" in name else ():
        with torch.autocast("cpu", dtype=low):
            assert reloaded(*(t.float() for t in args), *eps).dtype == low


# under autocast


@pytest.mark.parametrize("low", LOWS)
@pytest.mark.parametrize("name", ["matmul_amp", "matmul_amp_op", *CONVOLUTIONS])
def test_autocast_lowers_the_output_and_spares_the_gradients(name, low):
    function, args = zoo.create_model(name), inputs(name, torch.float32)
    with torch.autocast("cpu", dtype=low):
        out = function(*args)
        assert function(args[0].to(low), args[1]).dtype == low
        assert function(*inputs(name)).dtype == torch.float64
    assert out.dtype == low
    cotangent = torch.randn_like(out)
    exact = [t.detach().double().requires_grad_() for t in args]
    truth = torch.autograd.grad(plain(name)(*exact), exact, cotangent.double())
    for gradient, true in zip(torch.autograd.grad(out, args, cotangent), truth, strict=True):
        assert gradient.dtype == torch.float32
        assert (gradient - true).norm() < 0.03 * true.norm()


@pytest.mark.parametrize("name", [n for n in (*FUNCTIONS, *TWINS) if "2d" in n or "matmul" in n])
def test_backward_keeps_the_precision_of_forward_inside_an_autocast_block(name):
    args = inputs(name, torch.float32)
    out = zoo.create_model(name)(*args)
    outside = gradients(out, args)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(map(torch.equal, outside, gradients(out, args)))


@pytest.mark.parametrize("product", [matmul_amp, matmul_amp_op], ids=name_of)
@pytest.mark.parametrize("low", LOWS)
def test_the_gradient_of_a_low_product_is_a_low_product(product, low):
    a, b = inputs("matmul", torch.float32)
    with torch.autocast("cpu", dtype=low):
        out = product(a, b)
    cotangent = torch.randn(3, 2).to(low)
    assert torch.equal(gradients(out, a, cotangent)[0], (cotangent @ b.detach().to(low).t()).float())


CALL_MODES = {
    "eager": lambda function: function,
    "scripted": torch.jit.script,
    "reloaded": reload,
    "compiled": lambda function: torch.compile(function, backend="aot_eager", fullgraph=True),
}


@pytest.mark.parametrize("convert", CALL_MODES.values(), ids=CALL_MODES)
def test_the_autocast_kernel_reads_the_dtype_in_every_call(convert):
    product, (a, b) = convert(matmul_amp_op), inputs("matmul", torch.float32)
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
        assert product(*inputs("matmul")).dtype == torch.float64


@pytest.mark.parametrize(("name", "mode"), [("exp_fp32", "eager"), *(("exp_fp32_op", mode) for mode in CALL_MODES)])
@pytest.mark.parametrize("low", LOWS)
def test_exp_casts_a_low_input_to_float32_only_under_autocast(name, mode, low):
    torch.compiler.reset()
    function = CALL_MODES[mode](zoo.create_model(name))
    x = torch.tensor([12.0, -3.0], dtype=low, requires_grad=True)
    with torch.autocast("cpu", dtype=low):
        out = function(x)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, torch.exp(x.detach().double()).float(), rtol=1e-6, atol=0)
    (gradient,) = torch.autograd.grad(out, x, torch.tensor([0.0, 1.0]))
    assert gradient.dtype == low
    assert function(x).dtype == low


@pytest.mark.parametrize("function", [relu_amp, relu_amp_op, ClippedReLU()], ids=name_of)
def test_relu_saves_one_byte_per_element(function):
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        function(torch.randn(10, 100, requires_grad=True))
    assert [t.untyped_storage().nbytes() for t in saved] == [1000]


@pytest.mark.parametrize("function", [relu_amp, relu_amp_op], ids=name_of)
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


# the norm of the tutorial, alone and fused: values, and constant channels

both_norms = pytest.mark.parametrize("norm", [batch_norm2d, batch_norm2d_op], ids=name_of)


def images_and_filters(dtype=torch.float32):
    images = torch.randn(8, 3, 32, 32, dtype=dtype, requires_grad=True)
    return images, torch.randn(16, 3, 3, 3, dtype=dtype, requires_grad=True)


@both_norms
def test_a_constant_channel_has_its_true_derivative(norm):
    x = torch.randn(2, 3, 2, 2, dtype=torch.float64)
    x[:, 1] = 0
    assert gradcheck(norm, (x.requires_grad_(),), eps=1e-10, atol=1e-4)  # a step far below the 1e-3 of the norm
    grad = torch.randn_like(x)
    (gradient,) = torch.autograd.grad(norm(x), x, grad)
    torch.testing.assert_close(gradient[:, 1], 1000 * (grad[:, 1] - grad[:, 1].mean()))


@both_norms
@pytest.mark.parametrize("value", [0.1, 1e-30, 3e4])
def test_a_constant_channel_of_any_value_stays_finite(norm, value):
    x = torch.full((3, 2, 5, 7), value, requires_grad=True)
    out = norm(x)
    assert out.abs().max() < 0.01 * max(1.0, value)
    (gradient,) = torch.autograd.grad(out, x, torch.randn_like(x))
    assert gradient.isfinite().all()


@pytest.mark.parametrize("fused", [fused_conv_bn2d, fused_conv_bn2d_op], ids=name_of)
def test_the_fused_layer_equals_convolution_then_norm_and_a_dead_filter_gives_finite_gradients(fused):
    args = images_and_filters(torch.float64)
    one, other = fused(*args), batch_norm2d(conv2d(*args))
    assert torch.equal(one, other)
    cotangent = torch.randn_like(one)
    torch.testing.assert_close(*(torch.autograd.grad(out, args, cotangent) for out in (one, other)))
    x, weight = images_and_filters()
    with torch.no_grad():
        weight[3] = 0
    out = fused(x, weight)
    assert out[:, 3].eq(0).all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(out, (x, weight), torch.randn_like(out)))
