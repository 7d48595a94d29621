"""Epochs over a loader: what a step uses, what follows it, when the run ends, and what is refused."""

import copy

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

from zoo.training.epochs import train
from zoo.training.step import squared_error, train_step
from zoo.training.weight_average import averaged

PRECISIONS = ("fp32", "amp_fp16", "amp_bf16")


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def data(rows=22):
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(rows, 8, generator=generator), torch.randn(rows, 4, generator=generator))


def run(model, loader, **options):
    return train(model, squared_error, loader, SGD(model.parameters(), lr=0.1), **{"epochs": 1, **options})


@pytest.mark.parametrize("precision", PRECISIONS)
def test_it_is_the_loop_that_one_would_write(precision):
    loader = DataLoader(data(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(5))
    model, other = net(), net()
    done = run(model, loader, epochs=2, precision=precision)
    optimizer = SGD(other.parameters(), lr=0.1)
    scaler = GradScaler("cpu", enabled=precision == "amp_fp16")
    loader.generator.manual_seed(5)
    losses = [
        train_step(other, squared_error, batch, optimizer, precision, scaler).loss for _ in range(2) for batch in loader
    ]
    assert torch.equal(done.losses, torch.stack(losses))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


def test_accumulated_batches_give_the_gradient_of_all_their_samples():
    """The batches have 8, 8 and 6 rows: a mean of their means would weigh the rows of the last one more."""
    model, other = net().double(), net().double()
    wide = TensorDataset(*(t.double() for t in data().tensors))
    small = run(model, DataLoader(wide, batch_size=8), accumulate=3)
    whole = run(other, DataLoader(wide, batch_size=22))
    assert small.losses.tolist() == pytest.approx(whole.losses.tolist(), rel=1e-12)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(one.grad, two.grad, rtol=1e-12)


def test_batches_that_are_left_over_make_a_step():
    assert run(net(), DataLoader(data(), batch_size=4), accumulate=4).losses.shape == (2,)


def test_a_loader_gives_new_data_in_each_epoch():
    seen = []

    def loss_fn(output, target):
        seen.append(target)
        return squared_error(output, target)

    model = net()
    loader = DataLoader(data(), batch_size=22, shuffle=True)
    train(model, loss_fn, loader, SGD(model.parameters(), lr=0.1), epochs=2)
    assert not torch.equal(*seen)


def test_what_follows_a_step_does_not_follow_one_that_was_skipped():
    model = net()
    optimizer = SGD(model.parameters(), lr=1.0)
    schedule, average = ExponentialLR(optimizer, gamma=0.5), averaged(model, 0.5)
    scaler = GradScaler("cpu", init_scale=2.0**40)
    progress = []
    done = train(
        model, squared_error, DataLoader(data(), batch_size=2), optimizer, epochs=4, precision="amp_fp16",
        scaler=scaler, scheduler=schedule, average=average, max_skips=30, progress=lambda n, _: progress.append(n),
    )  # fmt: skip
    assert 0 < done.skipped < 44
    assert progress == list(range(1, 45))
    assert average.n_averaged.item() == 44 - done.skipped
    assert schedule.last_epoch == 44 - done.skipped


def test_clipping_bounds_the_step():
    model, before = net(), net()
    run(model, DataLoader(data(), batch_size=22), clip=0.01)
    moved = [p - q for p, q in zip(model.parameters(), before.parameters(), strict=True)]
    assert torch.cat([m.detach().flatten() for m in moved]).norm().item() == pytest.approx(0.001, rel=1e-3)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_loss_that_is_nan_ends_the_run(precision):
    rows = data()
    rows.tensors[0][13] = float("nan")
    with pytest.raises(FloatingPointError, match=r"^train: epoch 1, step 4: the loss is nan$"):
        run(net(), DataLoader(rows, batch_size=4), epochs=3, precision=precision)


def overflowing():
    model = net()
    model[0].weight.register_hook(lambda gradient: torch.full_like(gradient, torch.inf))
    return model


def test_a_scale_below_its_bound_ends_the_run():
    text = (
        r"^train: epoch 2, step 8: 8 steps in a row were skipped, because their gradients were not finite, "
        r"and the scale fell to 4, below min_scale=8$"
    )
    scaler = GradScaler("cpu", init_scale=2.0**10)
    with pytest.raises(FloatingPointError, match=text):
        run(overflowing(), DataLoader(data(), batch_size=4), epochs=9, precision="amp_fp16", scaler=scaler, min_scale=8)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_steps_that_are_skipped_in_a_row_end_the_run(precision):
    text = r"^train: epoch 1, step 3: 3 steps in a row were skipped, because their gradients were not finite$"
    with pytest.raises(FloatingPointError, match=text):
        run(overflowing(), DataLoader(data(), batch_size=4), precision=precision, max_skips=3)


LOADER = DataLoader(data(), batch_size=8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loader": net()}, "loader must give batches, got Sequential"),
        ({"loader": None}, "loader must give batches, got NoneType"),
        ({"loader": []}, "loader gave no batch"),
        ({"loader": DataLoader(data(0))}, "loader gave no batch"),
        ({"loader": [torch.ones(8)]}, "batch must be a tuple of tensors, first inputs, last the target, got Tensor"),
        ({"loader": [[[1.0], torch.ones(1)]]}, r"batch\[0\] must be a tensor, got list"),
        ({"loader": [(torch.ones(8), torch.tensor(1.0))]}, r"the target of a batch must have shape .*, got \[\]"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"epochs": None}, "epochs must be an integer, got None"),
        ({"accumulate": -1}, "accumulate must be at least 1, got -1"),
        ({"precision": "half"}, "precision must be one of fp32, amp_fp16, amp_bf16, got 'half'"),
        ({"model": [1]}, "model must be callable, got list"),
        ({"optimizer": None}, "optimizer must be a torch.optim.Optimizer, got NoneType"),
        ({"scheduler": 0.9}, "scheduler must be a torch.optim LRScheduler, got float"),
        ({"average": net()}, "average must be an AveragedModel, got Sequential"),
        ({"save_every": 5}, "save_every needs a checkpoint, got None"),
        ({"checkpoint": 5}, "checkpoint must be a path, got int"),
    ],
)
def test_bad_arguments_are_named(changes, message):
    model = net()
    before = copy.deepcopy(model.state_dict())
    optimizer = SGD(model.parameters(), lr=0.1)
    arguments = {"model": model, "loss_fn": squared_error, "loader": LOADER, "optimizer": optimizer, "epochs": 1}
    with pytest.raises((TypeError, ValueError), match=f"^train: {message}$"):
        train(**{**arguments, **changes})
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_schedule_that_wants_a_metric_is_refused():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"^train: scheduler must step without a metric, got ReduceLROnPlateau$"):
        train(model, squared_error, LOADER, optimizer, epochs=1, scheduler=ReduceLROnPlateau(optimizer))
