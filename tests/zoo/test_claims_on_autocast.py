"""False claims about automatic mixed precision, each with a test of the truth: docs/where-the-sources-are-wrong/."""

import pytest
import torch
from torch.amp import GradScaler, custom_bwd, custom_fwd
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

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


@pytest.mark.parametrize(
    "old",
    [
        lambda: torch.cuda.amp.autocast(enabled=False),
        lambda: torch.cuda.amp.GradScaler(enabled=False),
        lambda: torch.cuda.amp.custom_fwd(lambda _ctx, x: x),
        lambda: torch.cuda.amp.custom_bwd(lambda _ctx, grad: grad),
    ],
    ids=["autocast", "GradScaler", "custom_fwd", "custom_bwd"],
)
def test_torch_cuda_amp_is_deprecated(old):
    with pytest.warns(FutureWarning, match=r"`torch\.cuda\.amp\.\w+\(args\.\.\.\)` is deprecated.*`torch\.amp\."):
        old()
