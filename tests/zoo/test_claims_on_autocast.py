"""False claims about automatic mixed precision, each with a test of the truth: docs/where-the-sources-are-wrong/."""

import pytest
import torch
from torch import nn
from torch.amp import GradScaler, custom_bwd, custom_fwd
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from zoo.memory import saved_bytes
from zoo.models.checkerboard import Checkerboard, grid
from zoo.models.mlp import mlp
from zoo.ops.ratio import log_clamped

LOW = torch.bfloat16
NO_CUDA = not torch.cuda.is_available()
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(NO_CUDA, reason="needs a CUDA device"))]
each_device = pytest.mark.parametrize("device", DEVICES)


def ambient(device):
    """Return the current autocast dtype; None if autocast is off."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def product(device, log, cast_inputs=None):
    """Return a matrix product as a decorated Function that logs the autocast state in forward and backward."""

    class Product(torch.autograd.Function):
        @staticmethod
        @custom_fwd(device_type=device, cast_inputs=cast_inputs)
        def forward(ctx, a, b):
            log.append(("forward", ambient(device)))
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @custom_bwd(device_type=device)
        def backward(ctx, grad):
            log.append(("backward", ambient(device)))
            a, b = ctx.saved_tensors
            return grad @ b.t(), a.t() @ grad

    return Product.apply


def gradient_error(device, cast_inputs):
    """Return the relative error of the gradient of a, with backward outside the autocast block, and the log."""
    generator = torch.Generator().manual_seed(0)
    a, b, cotangent = (torch.randn(16, 16, generator=generator).to(LOW).to(device) for _ in range(3))
    a, log = a.float().requires_grad_(), []
    with torch.autocast(device, LOW):
        out = product(device, log, cast_inputs)(a, b.float())
    out.backward(cotangent.to(out.dtype))
    true = cotangent.double() @ b.double().t()
    return ((a.grad - true).norm() / true.norm()).item(), log


def test_custom_bwd_takes_neither_inputs_nor_outputs():
    with pytest.raises(TypeError, match="unexpected keyword argument 'args'"):
        custom_bwd(torch.ones(1), torch.ones(1), args=(), device_type="cpu")
    with pytest.raises(TypeError, match="device_type"):
        custom_bwd(lambda _ctx, grad: grad)


@each_device
@pytest.mark.parametrize(("in_forward", "in_backward"), [(True, False), (False, True)])
def test_custom_bwd_restores_the_autocast_state_of_forward(device, in_forward, in_backward):
    log = []
    a, b = (torch.ones(2, 2, device=device, requires_grad=True) for _ in range(2))
    with torch.autocast(device, LOW, enabled=in_forward):
        out = product(device, log)(a, b)
    with torch.autocast(device, LOW, enabled=in_backward):
        out.backward(torch.ones_like(out))
    state = LOW if in_forward else None
    assert log == [("forward", state), ("backward", state)]


@each_device
def test_custom_bwd_needs_custom_fwd(device):
    class Half(torch.autograd.Function):
        forward = staticmethod(lambda _ctx, x: x.exp())
        backward = staticmethod(custom_bwd(lambda _ctx, grad: grad, device_type=device))

    out = Half.apply(torch.ones(2, device=device, requires_grad=True))
    with pytest.raises(AttributeError, match="_fwd_used_autocast"):
        out.backward(torch.ones_like(out))


@each_device
def test_custom_bwd_recomputes_nothing_in_high_precision(device):
    error, log = gradient_error(device, cast_inputs=None)
    assert log == [("forward", LOW), ("backward", LOW)]
    assert 1e-4 < error < 1e-2


@pytest.mark.skipif(not hasattr(torch.amp.autocast_mode, "HAS_NUMPY"), reason="torch 2.4 needs NumPy for cast_inputs")
@each_device
def test_precision_comes_from_cast_inputs(device):
    error, log = gradient_error(device, cast_inputs=torch.float32)
    assert log == [("forward", None), ("backward", None)]
    assert error < 1e-6


@each_device
def test_autocast_computes_low_on_the_cpu_too(device):
    a, b = torch.ones(1, 1, device=device), torch.full((1, 1), 1 + 2**-9, device=device)
    with torch.autocast(device, LOW):
        assert (a @ b).item() == 1
    assert (a @ b).item() == 1 + 2**-9


@pytest.mark.skipif(not NO_CUDA, reason="needs a machine without CUDA")
def test_autocast_for_cuda_without_cuda_warns_and_does_nothing():
    with pytest.warns(UserWarning, match="CUDA is not available"):
        autocast = torch.autocast("cuda")
    with autocast:
        assert (torch.ones(1, 1) @ torch.ones(1, 1)).dtype == torch.float32


@each_device
def test_each_device_has_its_own_list_of_operations(device):
    weight = torch.ones(2, 2, device=device)
    with torch.autocast(device, LOW):
        low = weight @ weight
        seen = [x.dtype for x in (low, low.exp(), low**2, low.sum(), low.softmax(0), torch.mv(weight, weight[0]))]
    high = torch.float32
    assert seen == {"cpu": [LOW, LOW, LOW, LOW, LOW, high], "cuda": [LOW, high, high, high, high, LOW]}[device]


@each_device
def test_autocast_does_not_cast_outputs_back(device):
    x = torch.ones(2, 2, device=device)
    with torch.autocast(device, LOW):
        out = x @ x
    assert x.dtype == torch.float32
    assert out.dtype == LOW
    assert (out + 1).dtype == LOW


def loss_of(weight, factor=1.0):
    with torch.autocast(weight.device.type, torch.float16):
        return F.linear(torch.ones(1, 1, device=weight.device), weight).float().mean() * factor


@each_device
def test_scaled_backward_stands_outside_autocast_and_keeps_small_gradients(device):
    assert not hasattr(torch.amp, "backward")
    weight = torch.ones(1, 1, device=device, requires_grad=True)
    loss_of(weight, factor=1e-8).backward()
    assert weight.grad.item() == 0
    scaler, optimizer = GradScaler(device, init_scale=2.0**14), torch.optim.SGD([weight], lr=1.0)
    optimizer.zero_grad()
    scaler.scale(loss_of(weight, factor=1e-8)).backward()
    scaler.unscale_(optimizer)
    assert weight.grad.item() == pytest.approx(1e-8, rel=1e-3)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@each_device
def test_autocast_around_the_optimizer_changes_nothing(device, optimizer):
    def trained(*, autocast):
        weight = torch.linspace(0.1, 1.3, 9, device=device).requires_grad_()
        steps = optimizer([weight], lr=0.1)
        for factor in (1.0, -0.5):
            weight.grad = torch.linspace(-1, 1, 9, device=device) * factor
            with torch.autocast(device, LOW, enabled=autocast):
                steps.step()
        return weight.detach()

    assert torch.equal(trained(autocast=True), trained(autocast=False))


@each_device
def test_a_weight_stepped_inside_autocast_is_used_stale(device):
    weight = torch.ones(1, 1, device=device, requires_grad=True)
    x, optimizer = torch.ones(1, 1, device=device), torch.optim.SGD([weight], lr=0.5)
    with torch.autocast(device, LOW):
        out = x @ weight
        out.backward(torch.ones_like(out))
        optimizer.step()
        assert weight.item() == 0.5
        assert (x @ weight).item() == 1
    with torch.autocast(device, LOW):
        assert (x @ weight).item() == 0.5


@each_device
@pytest.mark.parametrize(
    ("anew", "weights"), [(False, [1, 0.75, 0.5, 0.25]), (True, [1, 1, 1, 1])], ids=["one-scaler", "new-every-step"]
)
def test_a_new_scaler_every_iteration_forgets_what_it_learned(device, anew, weights):
    weight = torch.ones(1, 1, device=device, requires_grad=True)
    optimizer, scaler, seen = torch.optim.SGD([weight], lr=0.25), GradScaler(device), []
    for _ in range(4):
        scaler = GradScaler(device) if anew else scaler
        optimizer.zero_grad()
        scaler.scale(loss_of(weight)).backward()  # the initial scale, 65536, is inf in float16
        scaler.step(optimizer)
        scaler.update()
        seen.append(weight.item())
    assert seen == weights


@each_device
@pytest.mark.parametrize(("unscale", "stepped"), [(True, [-3, -4]), (False, [-3 / 512, -4 / 512])])
def test_clipping_before_unscale_clips_the_wrong_numbers(device, unscale, stepped):
    assert not hasattr(GradScaler, "unscale")
    weight = torch.zeros(2, device=device, requires_grad=True)
    scaler, optimizer = GradScaler(device, init_scale=1024.0), torch.optim.SGD([weight], lr=1.0)
    scaler.scale(weight @ torch.tensor([3.0, 4.0], device=device)).backward()
    if unscale:
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_([weight], max_norm=10.0)  # the gradient's norm is 5
    scaler.step(optimizer)
    assert weight.tolist() == pytest.approx(stepped)


def test_torch_cuda_amp_is_deprecated():
    for old in (
        lambda: torch.cuda.amp.autocast(enabled=False),
        lambda: torch.cuda.amp.GradScaler(enabled=False),
        lambda: torch.cuda.amp.custom_fwd(lambda _ctx, x: x),
        lambda: torch.cuda.amp.custom_bwd(lambda _ctx, grad: grad),
    ):
        with pytest.warns(FutureWarning, match=r"`torch\.cuda\.amp\.\w+\(args\.\.\.\)` is deprecated.*`torch\.amp\."):
            old()


# training in mixed precision


@each_device
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_relu_keeps_the_dtype_of_its_input_under_autocast(device, low):
    x = torch.tensor([-1.0, 1 + 2**-20], device=device)
    with torch.autocast(device, low):
        assert F.relu(x).dtype == torch.float32
        assert F.relu(x).tolist() == [0, 1 + 2**-20]
        assert F.relu(x.to(low)).dtype == low


def test_autograd_grad_takes_no_args():
    x = torch.tensor(2.0, requires_grad=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'args'"):
        torch.autograd.grad(x * x, x, args=(x,))
    assert torch.autograd.grad(x * x, x, grad_outputs=torch.tensor(0.5))[0] == 2


def test_a_default_cannot_name_another_argument():
    with pytest.raises(NameError, match="'inputs' is not defined"):
        exec("def my_custom_bwd(outputs, inputs, args=(inputs,)): pass", {})


def test_autograd_grad_wants_inputs_that_require_a_gradient():
    x, weight = torch.tensor(2.0), torch.tensor(3.0, requires_grad=True)
    with pytest.raises(RuntimeError, match="One of the differentiated Tensors does not require grad"):
        torch.autograd.grad(weight * x, (weight, x))
    with pytest.raises(RuntimeError, match="does not require grad and does not have a grad_fn"):
        torch.autograd.grad(x * x, weight)
    assert torch.autograd.grad(weight * x, weight)[0] == 2


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_function_records_nothing_in_forward_and_in_backward_only_to_create_a_graph(create_graph):
    seen = []

    class Squared(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            out = x * x
            seen.append((torch.is_grad_enabled(), out.requires_grad))
            return out

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            again = x * x
            seen.append((torch.is_grad_enabled(), again.requires_grad))
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                return torch.autograd.grad(leaf * leaf, leaf, grad)

    x = torch.tensor(3.0, requires_grad=True)
    assert torch.autograd.grad(Squared.apply(x), x, create_graph=create_graph)[0] == 6
    assert seen == [(False, False), (create_graph, create_graph)]


@each_device
def test_the_operation_decides_the_precision_and_only_float64_follows_the_input(device):
    single, double = torch.ones(2, 2, device=device), torch.ones(2, 2, device=device, dtype=torch.float64)
    with torch.autocast(device, LOW):
        assert (single @ single).dtype == LOW
        assert F.mse_loss(single.to(LOW), single.to(LOW)).dtype == torch.float32
        assert (double @ double).dtype == torch.float64
        with pytest.raises(RuntimeError, match="dtype"):
            single @ double


@each_device
@pytest.mark.parametrize("update", [False, True])
@pytest.mark.parametrize(("step", "error"), [(False, "has already been called"), (True, r"is being called after step")])
def test_without_update_a_second_unscale_raises(device, step, error, update):
    weight = torch.ones(1, device=device, requires_grad=True)
    scaler, optimizer = GradScaler(device), torch.optim.SGD([weight], lr=0.25)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    if step:
        scaler.step(optimizer)
    if update:
        scaler.update()
        scaler.unscale_(optimizer)
        return
    with pytest.raises(RuntimeError, match=rf"^unscale_\(\) {error}"):
        scaler.unscale_(optimizer)


@each_device
@pytest.mark.parametrize(("inside", "gradient"), [(False, 1 + 2**-9), (True, 1)])
def test_backward_inside_autocast_rounds_the_gradients_of_a_float32_region(device, inside, gradient):
    x = torch.full((1, 1), 1 + 2**-9, device=device)
    weight = torch.ones(1, 1, device=device, requires_grad=True)
    with torch.autocast(device, LOW, enabled=False):
        out = x @ weight
    with torch.autocast(device, LOW, enabled=inside):
        out.backward(torch.ones_like(out))
    assert weight.grad.dtype == torch.float32
    assert weight.grad.item() == gradient


def cross_entropy_step(device, *, inside):
    """Take the first scaled step of a network that is a matrix; return loss, gradients, weights and the new scale."""
    weight = torch.ones(10, 1, device=device, requires_grad=True)
    scaler, optimizer = GradScaler(device), torch.optim.SGD([weight], lr=0.25)
    labels = torch.zeros(4, dtype=torch.long, device=device)
    with torch.autocast(device, torch.float16):
        logits = F.linear(torch.ones(4, 1, device=device), weight)
    with torch.autocast(device, torch.float16, enabled=inside):
        loss = F.cross_entropy(logits, labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss, weight, scaler.get_scale()


@each_device
def test_a_loss_outside_autocast_is_float16_and_overflows_at_the_initial_scale(device):
    loss, weight, scale = cross_entropy_step(device, inside=True)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(2.302585, abs=1e-6)
    assert weight[0].item() > 1
    assert scale == 65536
    loss, weight, scale = cross_entropy_step(device, inside=False)
    assert loss.dtype == torch.float16
    assert abs(loss.item() - 2.302585) > 1e-4
    assert weight.tolist() == [[1]] * 10
    assert scale == 32768


@each_device
def test_a_squared_error_outside_autocast_overflows(device):
    output, target = (torch.full((2,), x, dtype=torch.float16, device=device) for x in (300.0, 0.0))
    assert F.mse_loss(output, target).isinf()
    with torch.autocast(device, torch.float16):
        assert F.mse_loss(output, target).item() == 90000


@each_device
@pytest.mark.parametrize(("skips", "weight_after"), [(True, 1), (False, -torch.inf)], ids=["scaler-step", "step"])
def test_optimizer_step_goes_past_the_skip_of_the_scaler(device, skips, weight_after):
    weight = torch.ones(1, 1, device=device, requires_grad=True)
    scaler, optimizer = GradScaler(device), torch.optim.SGD([weight], lr=0.25)
    scaler.scale(loss_of(weight)).backward()  # the initial scale, 65536, is inf in float16
    scaler.unscale_(optimizer)
    if skips:
        scaler.step(optimizer)
    else:
        optimizer.step()
    assert weight.item() == weight_after


@each_device
def test_a_nan_loss_skips_every_step_and_halves_the_scale_for_ever(device):
    weight = torch.ones(1, device=device, requires_grad=True)
    scaler, optimizer = GradScaler(device), torch.optim.SGD([weight], lr=0.25)
    for _ in range(40):
        optimizer.zero_grad()
        scaler.scale((weight * torch.nan).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert weight.item() == 1
    assert scaler.get_scale() == 2.0 ** (16 - 40)


@each_device
def test_a_floor_of_1e_8_is_zero_in_float16(device):
    y = torch.zeros(1, dtype=torch.float16, device=device)
    assert y.clamp(min=1e-8).item() == 0
    assert y.clamp(min=1e-8).log().item() == -torch.inf
    assert y.float().clamp(min=1e-8).log().isfinite()
    with pytest.raises(ValueError, match="floor must be at least"):
        log_clamped(y, floor=1e-8)


def layers_with_gradients():
    small, large = torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    small.grad, large.grad = torch.tensor([3e-6, 4e-6]), torch.tensor([30.0, 40.0])
    return small, large


def test_clipping_each_layer_enlarges_no_gradient_and_turns_the_step():
    small, large = layers_with_gradients()
    before = torch.cat([small.grad, large.grad])
    for layer in (small, large):
        nn.utils.clip_grad_norm_([layer], max_norm=1.0)
    assert torch.equal(small.grad, torch.tensor([3e-6, 4e-6]))
    assert large.grad.norm().item() == pytest.approx(1)
    assert (small.grad / before[:2]).mean() > 10 * (large.grad / before[2:]).mean()


def test_clipping_all_layers_together_keeps_the_direction_of_the_step():
    layers = layers_with_gradients()
    before = torch.cat([layer.grad for layer in layers])
    nn.utils.clip_grad_norm_(layers, max_norm=1.0)
    shares = torch.cat([layer.grad for layer in layers]) / before
    assert shares.tolist() == pytest.approx([1 / 50] * 4)


def bytes_saved(model, x, device="cpu"):
    plain = saved_bytes(model, x)
    with torch.autocast(device, torch.float16):
        return plain, saved_bytes(model, x)


def test_autocast_raises_what_a_small_network_saves():
    plain, low = bytes_saved(mlp(), torch.randn(24, 64))
    assert (plain.saved, low.saved) == (3072, 5248)


def test_autocast_lowers_what_a_network_of_large_activations_saves():
    plain, low = bytes_saved(Checkerboard(channels=32), grid(16, 16).unsqueeze(0))
    assert 0.5 * plain.saved < low.saved < 0.6 * plain.saved


def test_parameters_gradients_and_the_state_of_adam_stay_float32():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    with torch.autocast("cpu", LOW):
        loss = model(torch.randn(24, 64)).float().square().mean()
    loss.backward()
    optimizer.step()
    for parameter in model.parameters():
        held = (parameter, parameter.grad, optimizer.state[parameter]["exp_avg"])
        assert [tensor.dtype for tensor in held] == [torch.float32] * 3


@pytest.mark.parametrize("operation", [torch.linalg.det, torch.linalg.slogdet, torch.linalg.lu_factor])
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_the_cpu_has_no_low_precision_determinant(low, operation):
    matrix = torch.eye(2)
    with torch.autocast("cpu", low):
        product = matrix @ matrix
        with pytest.raises(RuntimeError, match=r"(?i)not implemented for|not supported"):
            operation(product)
        operation(product.float())
        assert torch.linalg.inv(product).dtype == torch.float32
