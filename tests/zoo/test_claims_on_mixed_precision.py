"""False claims about mixed-precision training: docs/where-the-sources-are-wrong/."""

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from zoo.memory import saved_bytes
from zoo.models.checkerboard import Checkerboard, grid
from zoo.models.mlp import mlp
from zoo.ops.ratio import log_clamped

LOW = torch.bfloat16
NO_CUDA = not torch.cuda.is_available()
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(NO_CUDA, reason="needs a CUDA device"))]
each_device = pytest.mark.parametrize("device", DEVICES)


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
    with torch.autocast(device, torch.float16):
        loss = F.linear(torch.ones(1, 1, device=device), weight).float().mean()
    scaler.scale(loss).backward()  # the initial scale, 65536, is inf in float16
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
