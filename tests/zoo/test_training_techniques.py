"""Several optimizers with one scaler, a gradient penalty, activation checkpointing, an average of the weights."""

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import SGD, Adam

from zoo.memory import saved_bytes
from zoo.training.activation_checkpointing import normed_net, run_segment
from zoo.training.gradient_penalty import penalised_step
from zoo.training.several_losses import several_losses_step, size_of
from zoo.training.step import squared_error
from zoo.training.weight_average import averaged

PRECISIONS = ("fp32", "amp_fp16", "amp_bf16")


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(32, 8, generator=generator), torch.randn(32, 4, generator=generator)


def gradients(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def two(model, **options):
    optimizers = [SGD(model[0].parameters(), lr=0.1), SGD(model[2].parameters(), lr=0.1)]
    scaler = GradScaler("cpu", init_scale=2.0**10)
    arguments = {"optimizers": optimizers, "scaler": scaler, "precision": "amp_fp16", **options}
    return several_losses_step(model, [squared_error, size_of], batch(), **arguments), scaler


def test_each_optimizer_skips_by_its_own_gradients_and_the_scale_changes_once():
    model = net()
    before = [p.detach().clone() for p in model.parameters()]
    model[0].weight.register_hook(lambda gradient: gradient * torch.inf)
    done, scaler = two(model)
    assert done.skipped == (True, False)
    assert done.losses.shape == (2,)
    moved = [not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True)]
    assert moved == [False, False, True, True]
    assert scaler.get_scale() == 2.0**9


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_gradients_are_those_of_the_sum_of_the_losses(precision):
    model, other = net(), net().double()
    two(model, precision=precision)
    x, y = (t.double() for t in batch())
    output = other(x)
    (squared_error(output, y) + size_of(output, y)).backward()
    assert (gradients(model) - gradients(other)).norm() < 0.02 * gradients(other).norm()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizers": SGD([torch.ones(1)])}, "optimizers must be a list, got SGD"),
        ({"optimizers": []}, "optimizers must not be empty"),
        ({"optimizers": [None]}, "optimizer must be a torch.optim.Optimizer, got NoneType"),
        ({"loss_fns": squared_error}, "loss_fns must be a list, got function"),
        ({"loss_fns": [3]}, r"loss_fns\[0\] must be callable, got int"),
        ({"batch": [[1.0], [2.0]]}, r"batch\[0\] must be a tensor, got list"),
        ({"precision": "amp_fp16"}, "scaler must be a torch.amp.GradScaler for amp_fp16, got None"),
    ],
)
def test_bad_arguments_of_several_losses_are_named(changes, message):
    model = net()
    arguments = {"loss_fns": [squared_error], "batch": batch(), "optimizers": [SGD(model.parameters())]}
    with pytest.raises((TypeError, ValueError), match=f"^several_losses_step: {message}$"):
        several_losses_step(model, **{**arguments, "precision": "fp32", **changes})


def test_two_optimizers_of_one_parameter_are_refused():
    model = net()
    both = [SGD(model.parameters()), Adam(model[0].parameters())]
    with pytest.raises(ValueError, match="two optimizers hold the same parameter"):
        several_losses_step(model, [squared_error], batch(), both, "fp32")


def penalised(precision, scale=1.0, penalty=2.0):
    model = net()
    scaler = GradScaler("cpu", init_scale=scale) if precision == "amp_fp16" else None
    optimizer = SGD(model.parameters(), lr=0.0)
    done = penalised_step(model, squared_error, batch(), optimizer, precision, scaler, penalty=penalty)
    return done.loss, gradients(model)


@pytest.mark.parametrize("scale", [1.0, 2.0**6, 2.0**12])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_penalty_is_that_of_the_unscaled_gradients(precision, scale):
    other, (x, y) = net().double(), batch()
    loss = squared_error(other(x.double()), y.double())
    first = torch.autograd.grad(loss, list(other.parameters()), create_graph=True)
    true = loss + 2.0 * sum(g.square().sum() for g in first)
    true.backward()
    found, gradient = penalised(precision, scale)
    assert found.item() == pytest.approx(true.item(), rel=0.02)
    assert (gradient - gradients(other)).norm() < 0.03 * gradients(other).norm()
    assert (penalised("fp32", penalty=1e-9)[1] - gradients(other)).norm() > 0.2 * gradients(other).norm()


@pytest.mark.parametrize("penalty", [0.0, -1.0, None, float("nan")])
def test_a_penalty_that_is_not_positive_is_refused(penalty):
    with pytest.raises((TypeError, ValueError), match=r"^penalised_step: penalty must be a (positive )?number, got"):
        penalised("fp32", penalty=penalty)


def segment_run(run, model, low):
    """Return output, gradients and buffers of one call in training."""
    torch.manual_seed(7)
    with torch.autocast("cpu", dtype=low, enabled=low is not None):
        output = run(model, torch.linspace(-1, 1, 128).reshape(8, 16))
    output.square().sum().backward()
    return output, gradients(model), [buffer.clone() for buffer in model.buffers()], torch.rand(1)


@pytest.mark.parametrize("low", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("early", [nn.Dropout(0.5), nn.Identity()])
def test_dropout_and_batch_norm_in_a_segment_are_as_without_checkpointing(early, low):
    results = []
    for run in (lambda model, x: model(x), run_segment):
        torch.manual_seed(0)
        results.append(segment_run(run, nn.Sequential(early, *normed_net()), low))
    (output, gradient, buffers, after), (output2, gradient2, buffers2, after2) = results
    assert torch.equal(output, output2)
    assert torch.equal(gradient, gradient2)
    assert torch.equal(after, after2)
    assert all(torch.equal(one, other) for one, other in zip(buffers, buffers2, strict=True))
    assert buffers2[-1].item() == 1  # num_batches_tracked


def test_a_segment_saves_its_input_alone():
    model, x = normed_net(), torch.randn(8, 16, requires_grad=True)
    assert saved_bytes(run_segment, model, x).saved == 0
    assert saved_bytes(model, x).saved > 0


def test_second_derivatives_go_through_a_segment():
    x = torch.tensor([0.5, 1.0], requires_grad=True)
    (first,) = torch.autograd.grad(run_segment(lambda t: t.pow(3).sum(), x), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == [3.0, 6.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((None, torch.ones(1)), "segment must be callable, got None")],
)
def test_a_segment_that_cannot_be_called_is_refused(arguments, message):
    with pytest.raises(TypeError, match=f"^run_segment: {message}$"):
        run_segment(*arguments)
    with pytest.raises(TypeError, match=r"^run_segment: owner must be a Module, got list$"):
        run_segment(torch.sin, torch.ones(1), owner=[])


def test_buffers_are_copied_and_weights_averaged():
    model = normed_net()
    average = averaged(model, decay=0.5)
    for _ in range(3):
        model(torch.randn(8, 16))
        average.update_parameters(model)
    assert torch.equal(average.module[1].running_mean, model[1].running_mean)
    assert average.module[1].num_batches_tracked == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1], 0.5), "model must be a Module, got list"),
        ((nn.Linear(1, 1), 1.0), "decay must be at least 0 and below 1, got 1.0"),
        ((nn.Linear(1, 1), -0.1), "decay must be at least 0 and below 1, got -0.1"),
        ((nn.Linear(1, 1), None), "decay must be a number, got None"),
    ],
)
def test_bad_arguments_of_the_average_are_named(arguments, message):
    with pytest.raises((TypeError, ValueError), match=f"^averaged: {message}$"):
        averaged(*arguments)
