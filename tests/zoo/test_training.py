"""The training step: its autocast region, skipped steps, the scaler and clipping; the fit of the board; techniques."""

import copy

import pytest
import torch
from PIL import Image
from torch import nn
from torch.amp import GradScaler
from torch.optim import SGD, Adam
from torch.utils._python_dispatch import TorchDispatchMode

from zoo.memory import saved_bytes
from zoo.models.checkerboard import Checkerboard, scripted_checkerboard
from zoo.training import __main__ as command
from zoo.training import checkerboard
from zoo.training.activation_checkpointing import normed_net, run_segment
from zoo.training.checkerboard import fit_checkerboard
from zoo.training.epochs import train
from zoo.training.gradient_penalty import penalised_step
from zoo.training.several_losses import several_losses_step, size_of
from zoo.training.step import squared_error, train_step
from zoo.training.weight_average import averaged

PRECISIONS = ("fp32", "amp_fp16", "amp_bf16")
SHARED = torch.ones(1)  # a parameter of two optimizers


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batch(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(32, 8, generator=generator), torch.randn(32, 4, generator=generator)


def scaler_for(precision, scale=2.0**10):
    return GradScaler("cpu", init_scale=scale) if precision == "amp_fp16" else None


@pytest.mark.parametrize("precision", PRECISIONS)
def test_autocast_covers_forward_and_loss_and_nothing_else(precision):
    model, seen = net(), {}
    optimizer = SGD(model.parameters(), lr=0.1)

    def note(when):
        def hook(*_):
            seen[when] = torch.is_autocast_enabled("cpu")

        return hook

    model[0].register_forward_hook(note("forward"))
    model[0].weight.register_hook(note("backward"))
    optimizer.register_step_pre_hook(note("step"))

    def loss_fn(output, target):
        note("loss")()
        return squared_error(output, target)

    train_step(model, loss_fn, batch(), optimizer, precision, scaler_for(precision))
    low = precision != "fp32"
    assert seen == {"forward": low, "loss": low, "backward": False, "step": False}


def gradients_of(precision, scale):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.0)
    done = train_step(model, squared_error, batch(), optimizer, precision, scaler_for(precision, scale))
    assert not done.skipped
    return [p.grad.clone() for p in model.parameters()]


def test_gradients_come_unscaled_and_clipping_sees_their_norm():
    for scale in (2.0**4, 2.0**12):
        for low, wide in zip(gradients_of("amp_fp16", scale), gradients_of("fp32", 1.0), strict=True):
            assert (low - wide).norm() < 0.01 * wide.norm()
        model, before = net(), net()
        scaler = scaler_for("amp_fp16", scale)
        train_step(model, squared_error, batch(), SGD(model.parameters(), lr=1.0), "amp_fp16", scaler, clip=0.01)
        moved = [(p - q).detach().flatten() for p, q in zip(model.parameters(), before.parameters(), strict=True)]
        assert torch.cat(moved).norm().item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("poison", [float("inf"), float("nan")])
def test_a_step_with_gradients_that_are_not_finite_is_skipped_and_reported(precision, poison):
    model = net()
    before = copy.deepcopy(model.state_dict())
    optimizer = Adam(model.parameters(), lr=0.1)
    scaler = scaler_for(precision)
    x, y = batch()
    model[0].weight.register_hook(lambda g: torch.full_like(g, poison))
    done = train_step(model, squared_error, (x, y), optimizer, precision, scaler, clip=1.0)
    assert done.skipped
    assert done.loss.isfinite()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not optimizer.state
    if scaler is not None:
        assert scaler.get_scale() == 2.0**9


class DeviceReads(TorchDispatchMode):
    """Counts how often the host waits for a number of a tensor."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("precision", "reads"), [("fp32", 1), ("amp_bf16", 1), ("amp_fp16", 2)])
@pytest.mark.parametrize("layers", [1, 4])
def test_a_step_asks_once_whether_its_gradients_are_finite(precision, reads, layers):
    """The count does not depend on the number of parameters; in float16 the scaler reads once more."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers)))
    optimizer = SGD(model.parameters(), lr=0.1)
    x = batch()[0]
    with DeviceReads() as counted:
        done = train_step(model, squared_error, (x, x), optimizer, precision, scaler_for(precision))
    assert not done.skipped
    assert counted.count == reads


@pytest.mark.parametrize("number", [0, 3])
def test_one_gradient_of_many_that_is_not_finite_is_enough_to_skip(number):
    model = net()
    list(model.parameters())[number].register_hook(lambda g: g.index_fill(0, torch.tensor([1]), float("nan")))
    optimizer = SGD(model.parameters(), lr=0.1)
    assert train_step(model, squared_error, batch(), optimizer, "fp32").skipped


def steps(model, loss_fn, optimizer, precision):
    """Every function that takes a step, ready to be called, by its name."""
    rows, scaler = batch(), scaler_for(precision)
    some = (model, loss_fn, rows, optimizer, precision, scaler)
    several = (model, [loss_fn], rows, [optimizer], precision, scaler)
    return {
        "train_step": lambda: train_step(*some),
        "penalised_step": lambda: penalised_step(*some, penalty=0.1),
        "several_losses_step": lambda: several_losses_step(*several),
        "train": lambda: train(model, loss_fn, [rows], optimizer, epochs=1, precision=precision, scaler=scaler),
    }


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", steps(None, None, None, "fp32"))
def test_an_optimizer_of_another_model_and_a_loss_that_is_none_are_refused(name, precision):
    model = net()
    own, other = SGD(model.parameters(), lr=0.1), SGD(net().parameters(), lr=0.1)
    text = (
        rf"^{name}: optimizer(s\[0\])? must hold a parameter that the loss depends on; make it of model.parameters\(\)$"
    )
    with pytest.raises(ValueError, match=text):
        steps(model, squared_error, other, precision)[name]()
    for loss_fn, error, said in (
        (lambda a, b: (a - b).square(), ValueError, r"loss_fn must return a scalar, .*, got shape \[32, 4\]"),
        (lambda a, b: squared_error(a, b).item(), TypeError, "loss_fn must return a floating tensor, got float"),
        (lambda a, b: (a > b).sum(), TypeError, "loss_fn must return a floating tensor, got torch.int64"),
        (lambda a, b: squared_error(a, b).detach(), ValueError, "the loss must depend on a parameter, got one .*"),
    ):
        with pytest.raises(error, match=f"^{name}: {said}$"):
            steps(model, loss_fn, own, precision)[name]()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), net().parameters(), strict=True))
    steps(model, squared_error, own, precision)[name]()  # it does work


def test_a_parameter_without_a_gradient_does_not_stop_a_step():
    for name in steps(None, None, None, "fp32"):
        model, unused = net(), nn.Parameter(torch.ones(2))
        steps(model, squared_error, SGD([*model.parameters(), unused], lr=0.1), "fp32")[name]()
        assert unused.tolist() == [1, 1]
        assert not torch.equal(model[0].weight, net()[0].weight)


def test_a_target_of_another_shape_is_not_broadcast():
    with pytest.raises(ValueError, match=r"^squared_error: target must have the shape of output, \[4, 1\], got \[4\]$"):
        squared_error(torch.ones(4, 1), torch.ones(4))
    with pytest.raises(TypeError, match=r"^squared_error: target must have a floating dtype, got torch.int64$"):
        squared_error(torch.ones(4), torch.ones(4).long())


def test_an_overflowing_scale_is_halved_until_steps_are_taken():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.01)
    scaler = scaler_for("amp_fp16", 2.0**24)
    skipped = [train_step(model, squared_error, batch(), optimizer, "amp_fp16", scaler).skipped for _ in range(16)]
    assert skipped[0]
    assert not skipped[-1]
    assert scaler.get_scale() == 2.0 ** (24 - sum(skipped))


def test_a_restored_scaler_continues_the_same_run():
    def run(*, interrupted):
        model = net()
        optimizer = SGD(model.parameters(), lr=0.05)
        scaler = GradScaler("cpu", init_scale=2.0**23, growth_interval=3)
        losses = []
        for number in range(14):
            if interrupted and number == 7:
                kept = scaler.state_dict()
                scaler = GradScaler("cpu", growth_interval=3)
                scaler.load_state_dict(kept)
            done = train_step(model, squared_error, batch(), optimizer, "amp_fp16", scaler)
            losses.append((done.loss.item(), done.skipped, scaler.get_scale()))
        return losses

    whole = run(interrupted=False)
    assert run(interrupted=True) == whole
    assert len({scale for _, _, scale in whole}) > 2


def test_small_gradients_vanish_in_float16_without_a_scaler_and_survive_with_one():
    def first_gradient(precision, scaler):
        model = net()
        optimizer = SGD(model.parameters(), lr=0.0)

        def tiny(output, target):
            return 2.0**-20 * squared_error(output, target)

        train_step(model, tiny, batch(), optimizer, precision, scaler)
        return model[0].weight.grad

    truth = first_gradient("fp32", None)
    assert torch.count_nonzero(truth) == truth.numel()
    assert torch.count_nonzero(first_gradient("amp_fp16", GradScaler("cpu", enabled=False))) == 0
    saved = first_gradient("amp_fp16", GradScaler("cpu", init_scale=2.0**20))
    assert (saved - truth).norm() < 0.01 * truth.norm()
    kept = first_gradient("amp_bf16", None)
    assert (kept - truth).norm() < 0.05 * truth.norm()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "fp16"}, "precision must be one of fp32, amp_fp16, amp_bf16, got 'fp16'"),
        ({"precision": "amp_fp16"}, "scaler must be a torch.amp.GradScaler for amp_fp16, got None"),
        ({"scaler": 1024.0}, "scaler must be a torch.amp.GradScaler, got float"),
        ({"clip": 0.0}, "clip must be a positive norm, got 0.0"),
        ({"clip": "1"}, "clip must be a number, got str"),
        ({"optimizer": net()}, "optimizer must be a torch.optim.Optimizer, got Sequential"),
        ({"batch": batch()[0]}, "batch must be a tuple of tensors, first inputs, last the target, got Tensor"),
        ({"batch": batch()[:1]}, "batch must be a tuple of tensors, first inputs, last the target, got 1 of them"),
        ({"batch": ([1.0, 2.0], torch.ones(2))}, r"batch\[0\] must be a tensor, got list"),
        ({"batch": (torch.ones(2), None)}, r"batch\[1\] must be a tensor, got None"),
    ],
)
def test_bad_arguments_are_named_and_nothing_moves(changes, message):
    model = net()
    before = copy.deepcopy(model.state_dict())
    optimizer = SGD(model.parameters(), lr=1.0)
    arguments = {"model": model, "loss_fn": squared_error, "batch": batch(), "optimizer": optimizer}
    with pytest.raises((TypeError, ValueError), match=f"^train_step: {message}$"):
        train_step(**{**arguments, "precision": "fp32", **changes})
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("build", [Checkerboard, scripted_checkerboard])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_board_is_learnt_in_eager_and_in_script(build, precision):
    """With the source's loss; an output of 1/2 everywhere has the loss 1/4."""
    torch.manual_seed(0)
    numbers = []
    done = fit_checkerboard(
        build(channels=128), size=16, steps=60, precision=precision, progress=lambda number, _: numbers.append(number)
    )
    assert done.losses[0] > 0.25
    assert done.losses[-1] < 0.18
    assert numbers == list(range(1, 61))


def test_a_training_of_the_board_goes_on_from_its_checkpoint(tmp_path):
    def fitted(steps, checkpoint=None):
        torch.manual_seed(0)
        return fit_checkerboard(
            Checkerboard(channels=8), size=8, steps=steps, precision="amp_fp16", checkpoint=checkpoint
        )

    begun = fitted(3, tmp_path / "run.pt")
    resumed = fitted(6, tmp_path / "run.pt")
    assert torch.equal(resumed.losses, fitted(6).losses)
    assert resumed.seconds > begun.seconds


def test_drawing_leaves_the_network_as_it_was():
    model = Checkerboard(channels=4)
    before = copy.deepcopy(model.state_dict())
    checkerboard.drawn_by(model, 8)
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("size", [0, -8, 12])
def test_a_board_that_does_not_fit_its_squares_is_refused(size):
    wanted = "a multiple of 8" if size > 0 else "at least 1"
    with pytest.raises(ValueError, match=rf"^fit_checkerboard: size must be {wanted}, got {size}$"):
        fit_checkerboard(Checkerboard(channels=4), size=size, steps=1)


def test_the_command_trains_in_each_precision_and_draws(tmp_path, capsys):
    picture = tmp_path / "board.png"
    command.main(["--size", "8", "--steps", "2", "--png", str(picture), "--checkpoints", str(tmp_path / "new")])
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["fp32", "amp_fp16"]
    assert sorted(path.name for path in tmp_path.glob("new/*.pt")) == ["eager-amp_fp16.pt", "eager-fp32.pt"]
    with Image.open(picture) as image:
        assert image.size == (24, 8)
        right = [image.getpixel((16 + x, y)) for y in range(8) for x in range(8)]
    assert right == [255 * ((x + y) % 2) for y in range(8) for x in range(8)]
    assert err == ""


# several optimizers, a gradient penalty, activation checkpointing, averaged weights


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
        ({"optimizers": [SGD([SHARED]), Adam([SHARED])]}, "two optimizers hold the same parameter.*"),
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


def test_a_segment_saves_its_input_alone_and_can_be_differentiated_twice():
    model, x = normed_net(), torch.randn(8, 16, requires_grad=True)
    assert saved_bytes(run_segment, model, x).saved == 0
    assert saved_bytes(model, x).saved > 0
    x = torch.tensor([0.5, 1.0], requires_grad=True)
    (first,) = torch.autograd.grad(run_segment(lambda t: t.pow(3).sum(), x), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == [3.0, 6.0]


def test_buffers_are_copied_and_weights_averaged():
    model = normed_net()
    average = averaged(model, decay=0.5)
    for _ in range(3):
        model(torch.randn(8, 16))
        average.update_parameters(model)
    assert torch.equal(average.module[1].running_mean, model[1].running_mean)
    assert average.module[1].num_batches_tracked == 3
