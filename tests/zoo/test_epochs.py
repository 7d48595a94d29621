"""Epochs over a loader, the fits of a line and a parabola, and checkpoints."""

import copy
import random
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset, TensorDataset

from zoo.models.line import Affine, Line
from zoo.models.quadratic import Quadratic
from zoo.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from zoo.training.epochs import train
from zoo.training.line import fit_line, line_points
from zoo.training.quadratic import fit_quadratic
from zoo.training.step import fit, squared_error, train_step
from zoo.training.weight_average import averaged

# what a step uses, what follows it, when the run ends, and what is refused


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
    assert run(net(), DataLoader(data(), batch_size=4), accumulate=4).losses.shape == (2,)  # two batches are left over


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


def overflowing():
    model = net()
    model[0].weight.register_hook(lambda gradient: torch.full_like(gradient, torch.inf))
    return model


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_nan_many_skipped_steps_and_a_small_scale_end_the_run(precision):
    rows = data()
    rows.tensors[0][13] = float("nan")
    with pytest.raises(FloatingPointError, match=r"^train: epoch 1, step 4: the loss is nan$"):
        run(net(), DataLoader(rows, batch_size=4), epochs=3, precision=precision)
    loader = DataLoader(data(), batch_size=4)
    finite = "steps in a row were skipped, because their gradients were not finite"
    with pytest.raises(FloatingPointError, match=rf"^train: epoch 1, step 3: 3 {finite}$"):
        run(overflowing(), loader, precision=precision, max_skips=3)
    if precision == "amp_fp16":
        scaler = GradScaler("cpu", init_scale=2.0**10)
        text = rf"^train: epoch 2, step 8: 8 {finite}, and the scale fell to 4, below min_scale=8$"
        with pytest.raises(FloatingPointError, match=text):
            run(overflowing(), loader, epochs=9, precision=precision, scaler=scaler, min_scale=8)


LOADER = DataLoader(data(), batch_size=8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loader": net()}, "loader must give batches, got Sequential"),
        ({"loader": []}, "loader gave no batch in epoch 1"),
        ({"loader": DataLoader(data(0))}, "loader gave no batch in epoch 1"),
        ({"loader": [torch.ones(8)]}, "batch must be a tuple of tensors, first inputs, last the target, got Tensor"),
        ({"loader": [[[1.0], torch.ones(1)]]}, r"batch\[0\] must be a tensor, got list"),
        ({"loader": [(torch.ones(8), torch.tensor(1.0))]}, r"the target of a batch must have shape .*, got \[\]"),
        (
            {"loader": (rows for rows in LOADER), "epochs": 2},
            "loader must give its batches again in each of 2 epochs, as a DataLoader or a list does, got generator, .*",
        ),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"precision": "half"}, "precision must be one of fp32, amp_fp16, amp_bf16, got 'half'"),
        ({"optimizer": None}, "optimizer must be a torch.optim.Optimizer, got NoneType"),
        ({"scheduler": 0.9}, "scheduler must be a torch.optim LRScheduler, got float"),
        (
            {"scheduler": ReduceLROnPlateau(SGD([torch.ones(1)], lr=0.1))},
            "scheduler must step without a metric, got ReduceLROnPlateau",
        ),
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


# the loop on one batch, and the recipes of the line and the parabola


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(32, 8, generator=generator), torch.randn(32, 4, generator=generator)


class Batches:
    """A loader of another library."""

    def __iter__(self):
        yield batch()


def test_a_fit_sends_a_loader_to_train_and_ends_at_a_loss_that_is_nan():
    model, (x, y) = net(), batch()
    for loader in (DataLoader(TensorDataset(x, y)), Batches()):
        message = f"got {type(loader).__name__}; zoo.training.epochs.train takes a loader$"
        with pytest.raises(TypeError, match=message):
            fit(model, squared_error, loader, SGD(model.parameters(), lr=1.0), steps=1)
    x[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match=r"^fit: step 1: the loss is nan$"):
        fit(model, squared_error, (x, y), SGD(model.parameters(), lr=0.1), steps=9)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("build", [Affine, Line])
def test_the_line_is_found(build, precision):
    torch.manual_seed(3)
    model = build()
    done = fit_line(model, steps=300, lr=0.5, precision=precision)
    slope, offset = (p.item() for p in model.parameters())
    assert slope == pytest.approx(5, abs=0.1)
    assert offset == pytest.approx(3.15, abs=0.1)  # the mean of the noise is 0.15
    assert done.losses.shape == (300,)
    assert done.losses[-1] < 0.02
    assert done.seconds > 0


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_recipe_of_the_parabolas_source_finds_all_but_the_offset(precision):
    torch.manual_seed(0)
    model = Quadratic()
    done = fit_quadratic(model, precision=precision)
    square, number, offset = model.w.flatten().tolist()
    assert square == pytest.approx(5, abs=0.05)
    assert number == pytest.approx(0, abs=0.05)
    assert 0.05 < abs(offset - 3) < 1
    assert done.losses.shape == (1000,)


@pytest.mark.slow
def test_the_line_is_found_by_the_recipe_of_its_source_and_three_times_the_steps_find_the_parabolas_offset_too():
    torch.manual_seed(3)
    line = Affine()
    fit_line(line, seed=2)
    x, y = line_points(torch.Generator().manual_seed(2))
    best = torch.linalg.lstsq(torch.stack((x, torch.ones_like(x)), 1), y[:, None]).solution
    assert [p.item() for p in line.parameters()] == pytest.approx(best.flatten().tolist(), abs=1e-3)
    assert best.flatten().tolist() == pytest.approx([5, 3.15], abs=0.05)
    torch.manual_seed(0)
    parabola = Quadratic()
    fit_quadratic(parabola, steps=3000)
    assert parabola.w.flatten().tolist() == pytest.approx([5, 0, 3], abs=1e-3)


# a run that stops and goes on equals one without a stop; damaged files give one line


class Noisy(Dataset):
    """Draws from torch's and Python's generators for each sample, as augmentations do."""

    def __len__(self):
        return 22

    def __getitem__(self, index):
        return torch.full((8,), index / 22) + torch.rand(8) * random.random(), torch.full((4,), random.random())


class StoppedError(Exception):
    """What ends a run at a step."""


def run_with_all(precision, *, path=None, stop_at=None, generator=None, epochs=3):
    """Train with all that a checkpoint holds; return the losses and the state of all parts."""
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 4))
    optimizer = Adam(model.parameters(), lr=0.05)
    scaler = GradScaler("cpu", init_scale=2.0**24, growth_interval=3, enabled=precision == "amp_fp16")
    schedule, average = CosineAnnealingLR(optimizer, T_max=20), averaged(model, 0.5)
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True, generator=generator)

    def progress(number, _):
        if number == stop_at:
            raise StoppedError

    done = train(
        model, squared_error, loader, optimizer, epochs=epochs, precision=precision, scaler=scaler, accumulate=2,
        clip=1.0, scheduler=schedule, average=average, checkpoint=path, save_every=path and 2, progress=progress,
    )  # fmt: skip
    states = [part.state_dict() for part in (model, optimizer, scaler, schedule, average)]
    return [done.losses, done.skipped, torch.get_rng_state(), random.random(), *states]


def same(one, two):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two


def seed(number):
    torch.manual_seed(number)
    random.seed(number)
    return torch.Generator().manual_seed(number)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("stop_at", "own"), [(3, False), (5, False), (5, True), (7, False)])
def test_a_run_that_stops_and_goes_on_is_the_whole_run_bit_for_bit(tmp_path, precision, stop_at, own):
    """An epoch has 3 steps; a checkpoint is written after steps 2, 4, 6, 8 and after each epoch."""

    def seeded(number):
        generator = seed(number)
        return generator if own else None

    whole = run_with_all(precision, generator=seeded(1))
    path = tmp_path / "run.pt"
    with pytest.raises(StoppedError):
        run_with_all(precision, path=path, stop_at=stop_at, generator=seeded(1))
    rest = run_with_all(precision, path=path, generator=seeded(99))
    assert same(whole, rest)
    assert (whole[1] > 0) == (precision == "amp_fp16")


def test_a_finished_run_is_not_run_again_and_can_be_made_longer(tmp_path):
    seed(1)
    whole = run_with_all("fp32", epochs=4)
    seed(1)
    short = run_with_all("fp32", path=tmp_path / "run.pt")
    again = run_with_all("fp32", path=tmp_path / "run.pt", stop_at=1)
    longer = run_with_all("fp32", path=tmp_path / "run.pt", epochs=4)
    assert torch.equal(short[0], again[0])
    assert same(whole, longer)
    found = torch.load(tmp_path / "run.pt", weights_only=True)
    names = ["average", "generators", "model", "optimizer", "place", "scaler", "scheduler"]
    assert sorted(found["parts"]) == names


def test_a_loader_that_became_shorter_is_named(tmp_path):
    model, path = nn.Linear(8, 4), tmp_path / "run.pt"

    def trained(rows, stop_at=None):
        def progress(number, _):
            if number == stop_at:
                raise StoppedError

        loader = DataLoader(TensorDataset(torch.ones(rows, 8), torch.ones(rows, 4)), batch_size=2)
        options = {"epochs": 1, "checkpoint": path, "save_every": 1, "progress": progress}
        train(model, squared_error, loader, Adam(model.parameters()), **options)

    with pytest.raises(StoppedError):
        trained(20, stop_at=4)
    with pytest.raises(CheckpointError, match=r"^the run stood after batch 4, but the loader gives only 3$"):
        trained(6)


KILLED = """
import os, signal, sys, torch
from zoo.training import checkpoint
class Dies:
    def state_dict(self):
        return {"weight": torch.ones(1000, 1000)}
save = torch.save
def half(value, file):
    save(value, file)
    file.truncate(file.tell() // 2)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
torch.save = half
checkpoint.save_checkpoint(sys.argv[1], model=Dies())
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_a_kill_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "run.pt"
    save_checkpoint(path, model=nn.Linear(2, 2))
    before = path.read_bytes()
    died = subprocess.run([sys.executable, "-W", "ignore", "-c", KILLED, path], check=False)
    assert died.returncode == -signal.SIGKILL
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2  # the unfinished one, which the next write replaces
    save_checkpoint(path, model=nn.Linear(2, 2))
    assert [found.name for found in tmp_path.iterdir()] == ["run.pt"]


def flipped(content):
    middle = content.index(b"\x00\x00\x00\x3f" * 64)
    return content[:middle] + b"\x01" + content[middle + 1 :]


@pytest.mark.parametrize(
    "damage",
    [lambda content: content[: len(content) // 2], lambda _: b"", lambda _: b"no checkpoint at all", flipped],
    ids=["half", "empty", "text", "one byte"],
)
def test_a_damaged_file_gives_one_line(tmp_path, damage):
    model, path = nn.Linear(8, 8), tmp_path / "run.pt"
    nn.init.constant_(model.weight, 0.5)
    save_checkpoint(path, model=model)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=r"^run.pt is damaged or no checkpoint: .") as caught:
        load_checkpoint(path, model=model)
    assert "\n" not in str(caught.value)


def test_a_foreign_file_gives_one_line(tmp_path):
    path = tmp_path / "run.pt"
    torch.save(nn.Linear(2, 2).state_dict(), path)
    with pytest.raises(CheckpointError, match=r"^run.pt is no checkpoint of save_checkpoint$"):
        load_checkpoint(path, model=nn.Linear(2, 2))
    save_checkpoint(path, model=nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match=r"^run.pt holds model, but model, optimizer are to be loaded$"):
        load_checkpoint(path, model=nn.Linear(2, 2), optimizer=Adam([torch.ones(1)]))
    with pytest.raises(CheckpointError, match=r"^run.pt: the state of model does not fit: RuntimeError: .*") as caught:
        load_checkpoint(path, model=nn.Linear(3, 2))
    assert "\n" not in str(caught.value)


def test_a_part_without_a_state_that_weights_only_reads_is_named(tmp_path):
    class Odd:
        def state_dict(self):
            return {"kept": [{"path": tmp_path}]}

    with pytest.raises(CheckpointError, match=r"^save_checkpoint: odd holds a PosixPath, which weights_only does not"):
        save_checkpoint(tmp_path / "run.pt", odd=Odd())
    with pytest.raises(CheckpointError, match=r"^save_checkpoint: odd must have a state_dict, got dict$"):
        save_checkpoint(tmp_path / "run.pt", odd={"a": 1})
    assert not list(tmp_path.iterdir())
