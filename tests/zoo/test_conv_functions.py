"""`conv2d`, `batch_norm2d`, `fused_conv_bn2d` and their operator twins."""

import io
import re

import pytest
import torch
from torch.autograd import gradcheck
from torch.autograd.function import once_differentiable
from torch.nn import functional

import zoo
from zoo.functions.batch_norm2d import batch_norm2d, batch_norm2d_op
from zoo.functions.conv2d import conv2d
from zoo.functions.fused_conv_bn2d import fused_conv_bn2d, fused_conv_bn2d_op

FUNCTIONS = ("conv2d", "batch_norm2d", "fused_conv_bn2d")
TWINS = tuple(f"{name}_op" for name in FUNCTIONS)
CONVOLUTIONS = ("conv2d", "conv2d_op", "fused_conv_bn2d", "fused_conv_bn2d_op")
NORMS = ("batch_norm2d", "batch_norm2d_op", "fused_conv_bn2d", "fused_conv_bn2d_op")
LOWS = (torch.float16, torch.bfloat16)
quiet_vmap = pytest.mark.skipif(not hasattr(torch.library, "register_vmap"), reason="torch loops and warns")


def inputs(name, dtype=torch.float64):
    x = torch.randn(2, 2, 4, 3, dtype=dtype, requires_grad=True)
    return (x,) if "conv" not in name else (x, torch.randn(3, 2, 2, 2, dtype=dtype, requires_grad=True))


def plain(name):
    """Return the same function in differentiable torch calls."""

    def norm(x):
        std, mean = torch.std_mean(x, dim=(0, 2, 3), keepdim=True)
        return (x - mean) / (std + 1e-3)

    layers = {"conv2d": functional.conv2d, "batch_norm2d": norm}
    return layers.get(name.removesuffix("_op"), lambda x, weight: norm(functional.conv2d(x, weight)))


@pytest.mark.parametrize("name", [*FUNCTIONS, *TWINS])
def test_first_derivatives(name):
    assert gradcheck(zoo.create_model(name), inputs(name))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_func_grad_is_the_gradient(name):
    function, (x, *rest) = zoo.create_model(name), [t.detach() for t in inputs(name)]
    cotangent = torch.randn_like(function(x, *rest))
    slopes = [torch.func.grad(lambda x, f=f: (f(x, *rest) * cotangent).sum())(x) for f in (function, plain(name))]
    torch.testing.assert_close(*slopes)
    per_sample = torch.vmap(torch.func.grad(lambda x: (function(x, *rest) * cotangent).sum()))(torch.stack([x, 2 * x]))
    torch.testing.assert_close(per_sample[0], slopes[1])


@pytest.mark.parametrize("name", [*FUNCTIONS, *(pytest.param(name, marks=quiet_vmap) for name in TWINS)])
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


@pytest.mark.parametrize("name", [*FUNCTIONS, *TWINS])
def test_a_second_derivative_is_refused_even_where_the_cotangent_is_constant(name):
    function, args = zoo.create_model(name), inputs(name)
    out = function(*args)
    gradients = torch.autograd.grad(out, args, torch.randn_like(out), create_graph=True)
    refusal = "once only" if name in FUNCTIONS else "no autograd formula was registered"
    for gradient in gradients:
        with pytest.raises(RuntimeError, match=refusal):
            torch.autograd.grad(gradient, args, torch.randn_like(gradient), retain_graph=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_second_derivative_is_refused_under_func_grad(name):
    function, (x, *rest) = zoo.create_model(name), [t.detach() for t in inputs(name)]
    slope = torch.func.grad(lambda x: function(x, *rest).pow(3).mean())
    with pytest.raises(RuntimeError, match=f"^{name}: can be differentiated once only"):
        torch.func.grad(lambda x: slope(x).pow(2).mean())(x)


def test_once_differentiable_would_let_both_pass():
    """Show why none of the three uses once_differentiable."""

    class Cubed(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):  # noqa: ARG004
            ctx.save_for_backward(*inputs)

        @staticmethod
        @once_differentiable
        def backward(ctx, grad):
            return 3 * ctx.saved_tensors[0] ** 2 * grad

    x = torch.tensor(2.0, requires_grad=True)
    (slope,) = torch.autograd.grad(Cubed.apply(x), x, create_graph=True)
    assert not slope.requires_grad  # so a penalty on it adds nothing to the gradient of a loss
    assert torch.func.grad(torch.func.grad(Cubed.apply))(x.detach()) == 0  # 12 is right


@pytest.mark.parametrize("name", FUNCTIONS)
def test_twin_agrees_bit_for_bit(name):
    function, twin, args = zoo.create_model(name), zoo.create_model(f"{name}_op"), inputs(name, torch.float32)
    one, other = function(*args), twin(*args)
    assert torch.equal(one, other)
    cotangent = torch.randn_like(one)
    for mine, its in zip(
        torch.autograd.grad(one, args, cotangent), torch.autograd.grad(other, args, cotangent), strict=True
    ):
        assert torch.equal(mine, its)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # by torch 2.15
@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators_keep_their_registration_promises(name):
    x, *rest = inputs(name, torch.float32)
    args = (x.detach().transpose(2, 3).requires_grad_(), *rest)
    eps = () if name == "conv2d" else (1e-3,)
    operators = torch.ops.torch_conformance
    results = torch.library.opcheck(getattr(operators, name).default, (*args, *eps))
    assert set(results.values()) == {"SUCCESS"}
    grad = torch.randn_like(zoo.create_model(name)(*args)).transpose(2, 3).contiguous().transpose(2, 3)
    backward = getattr(operators, f"{name}_backward").default
    results = torch.library.opcheck(backward, (grad, *(t.detach() for t in args), *eps))
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", TWINS)
def test_operator_scripts_saves_reloads_and_differentiates(name):
    twin, args = zoo.create_model(name), inputs(name)
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(twin), file)
    file.seek(0)
    reloaded, eps = torch.jit.load(file), () if name == "conv2d_op" else (1e-3,)
    assert torch.equal(reloaded(*args, *eps), twin(*args))
    assert gradcheck(reloaded, (*args, *eps), fast_mode=True)
    if len(args) > 1:
        for low in LOWS:
            with torch.autocast("cpu", dtype=low):
                assert reloaded(*(t.float() for t in args), *eps).dtype == low


@pytest.mark.parametrize("low", LOWS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
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


@pytest.mark.parametrize("name", [*FUNCTIONS, *TWINS])
def test_backward_keeps_the_precision_of_forward_inside_an_autocast_block(name):
    function, args = zoo.create_model(name), inputs(name, torch.float32)
    cotangent = torch.randn_like(function(*args))
    outside = torch.autograd.grad(function(*args), args, cotangent)
    out = function(*args)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = torch.autograd.grad(out, args, cotangent)
    assert all(torch.equal(one, other) for one, other in zip(outside, inside, strict=True))


X, W = torch.ones(2, 3, 5, 5), torch.ones(4, 3, 3, 3)
MISFITS = {
    "integer x": ((X.long(), W), TypeError, "x must have a floating dtype, got torch.int64"),
    "integer weight": ((X, W.long()), TypeError, "weight must have a floating dtype, got torch.int64"),
    "device": ((X, W.to("meta")), ValueError, "weight must be on the device of x, cpu, got meta"),
    "rank of x": ((X[0], W), ValueError, "x must have shape (batch, channels, height, width), got [3, 5, 5]"),
    "rank of weight": ((X, W[0]), ValueError, "weight must have shape (filters, 3, rows, columns), got [3, 3, 3]"),
    "channels": ((X, W[:, :2]), ValueError, "weight must have shape (filters, 3, rows, columns), got [4, 2, 3, 3]"),
    "no filter": ((X, W[:0]), ValueError, "weight must have shape (filters, 3, rows, columns), got [0, 3, 3, 3]"),
    "kernel": ((X[..., :2], W), ValueError, "kernel of at most 5 x 2, the image of x, got 3 x 3"),
    "dtype": ((X, W.double()), TypeError, "dtype of x, torch.float32, outside autocast, got torch.float64"),
}


@pytest.mark.parametrize("misfit", MISFITS)
@pytest.mark.parametrize(
    ("name", "scripted"), [*((name, False) for name in CONVOLUTIONS), *((name, True) for name in CONVOLUTIONS[1::2])]
)
def test_misfits_are_named(name, misfit, scripted):
    args, error, message = MISFITS[misfit]
    function = torch.jit.script(zoo.create_model(name)) if scripted else zoo.create_model(name)
    owner = name.removesuffix("_op") if misfit == "dtype" else name
    if scripted:  # TorchScript raises torch.jit.Error, or RuntimeError in an operator, and prints dtypes as numbers
        error, message = (torch.jit.Error, RuntimeError), message.partition(", got torch.")[0]
    with pytest.raises(error, match=f"{owner}: .*{re.escape(message)}"):
        function(*args)


@pytest.mark.parametrize("name", NORMS)
def test_one_value_has_no_variance(name):
    args = (X[:1, :, :1, :1],) if "conv" not in name else (X[:1], torch.ones(4, 3, 5, 5))
    with pytest.raises(ValueError, match=rf"^{name}: x must (hold|give) at least 2 values per .* got shape \[1, 3, "):
        zoo.create_model(name)(*args)


@pytest.mark.parametrize("eps", [0.0, -1.0, float("nan")])
@pytest.mark.parametrize("name", NORMS)
def test_eps_must_be_positive(name, eps):
    with pytest.raises(ValueError, match=f"^{name}: eps must be positive, got {eps}"):
        zoo.create_model(name)(*((X, W) if "conv" in name else (X,)), eps)


@pytest.mark.parametrize("name", NORMS[:2])
def test_batch_norm_names_other_misfits(name):
    with pytest.raises(TypeError, match=f"^{name}: x must have a floating dtype, got torch.int64"):
        zoo.create_model(name)(X.long())
    with pytest.raises(ValueError, match=rf"^{name}: x must have shape \(batch, .*, got \[3, 5, 5\]"):
        zoo.create_model(name)(X[0])


# the norm of the tutorial, alone and fused: values, and constant channels


both_fused = pytest.mark.parametrize("fused", [fused_conv_bn2d, fused_conv_bn2d_op], ids=lambda f: f.__name__)
both_norms = pytest.mark.parametrize("norm", [batch_norm2d, batch_norm2d_op], ids=lambda f: f.__name__)


def images_and_filters(dtype=torch.float32):
    images = torch.randn(8, 3, 32, 32, dtype=dtype, requires_grad=True)
    return images, torch.randn(16, 3, 3, 3, dtype=dtype, requires_grad=True)


def test_eps_is_outside_the_root_of_an_unbiased_variance():
    x = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64).reshape(1, 1, 1, 3)
    assert batch_norm2d(x, 1.0).flatten().tolist() == [-0.5, 0.0, 0.5]
    assert functional.batch_norm(x, None, None, training=True, eps=1.0)[0, 0, 0, 2] == pytest.approx((3 / 5) ** 0.5)


def test_it_differs_from_torch_by_design():
    x = torch.randn(16, 4, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    difference = (batch_norm2d(x) - functional.batch_norm(x, None, None, training=True, eps=1e-3)).abs().max()
    assert 1e-3 < difference < 1e-2


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


@both_fused
def test_a_dead_filter_gives_finite_gradients(fused):
    x, weight = images_and_filters()
    with torch.no_grad():
        weight[3] = 0
    out = fused(x, weight)
    assert out[:, 3].eq(0).all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(out, (x, weight), torch.randn_like(out)))


@both_fused
def test_the_fused_layer_equals_convolution_then_norm(fused):
    args = images_and_filters(torch.float64)
    one, other = fused(*args), batch_norm2d(conv2d(*args))
    assert torch.equal(one, other)
    cotangent = torch.randn_like(one)
    for mine, its in zip(
        torch.autograd.grad(one, args, cotangent), torch.autograd.grad(other, args, cotangent), strict=True
    ):
        torch.testing.assert_close(mine, its)
