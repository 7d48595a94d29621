"""Checkpoints: a run that stops and goes on equals one without a stop, bit for bit; damaged files give one line."""

import random
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Adam
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

from zoo.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from zoo.training.epochs import train
from zoo.training.step import squared_error
from zoo.training.weight_average import averaged

PRECISIONS = ("fp32", "amp_fp16", "amp_bf16")


class Noisy(Dataset):
    """Draws from torch's and Python's generators for each sample, as augmentations do."""

    def __len__(self):
        return 22

    def __getitem__(self, index):
        return torch.full((8,), index / 22) + torch.rand(8) * random.random(), torch.full((4,), random.random())


class StoppedError(Exception):
    """What ends a run at a step."""


def run(precision, *, path=None, stop_at=None, generator=None, epochs=3):
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

    whole = run(precision, generator=seeded(1))
    path = tmp_path / "run.pt"
    with pytest.raises(StoppedError):
        run(precision, path=path, stop_at=stop_at, generator=seeded(1))
    rest = run(precision, path=path, generator=seeded(99))
    assert same(whole, rest)
    assert (whole[1] > 0) == (precision == "amp_fp16")


def test_a_finished_run_is_not_run_again_and_can_be_made_longer(tmp_path):
    seed(1)
    whole = run("fp32", epochs=4)
    seed(1)
    short = run("fp32", path=tmp_path / "run.pt")
    again = run("fp32", path=tmp_path / "run.pt", stop_at=1)
    longer = run("fp32", path=tmp_path / "run.pt", epochs=4)
    assert torch.equal(short[0], again[0])
    assert same(whole, longer)


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


def test_weights_only_reads_the_file(tmp_path):
    run("amp_fp16", path=tmp_path / "run.pt")
    found = torch.load(tmp_path / "run.pt", weights_only=True)
    names = ["average", "generators", "model", "optimizer", "place", "scaler", "scheduler"]
    assert sorted(found["parts"]) == names


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


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"a": 1}, r"save_checkpoint: odd must have a state_dict, got dict"),
        (None, r"save_checkpoint: odd must have a state_dict, got NoneType"),
    ],
)
def test_a_part_without_a_state_is_named(tmp_path, part, message):
    with pytest.raises(CheckpointError, match=f"^{message}$"):
        save_checkpoint(tmp_path / "run.pt", odd=part)
    assert not list(tmp_path.iterdir())


def test_a_state_that_weights_only_does_not_read_is_named(tmp_path):
    class Odd:
        def state_dict(self):
            return {"kept": [{"path": tmp_path}]}

    with pytest.raises(CheckpointError, match=r"^save_checkpoint: odd holds a PosixPath, which weights_only does not"):
        save_checkpoint(tmp_path / "run.pt", odd=Odd())
    assert not list(tmp_path.iterdir())
