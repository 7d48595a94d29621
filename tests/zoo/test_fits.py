"""The loop on one batch, and the fits of the line and the parabola with the recipes of their source."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from zoo.models.line import Affine, Line
from zoo.models.quadratic import Quadratic
from zoo.training.line import fit_line
from zoo.training.quadratic import fit_quadratic
from zoo.training.step import fit, squared_error

PRECISIONS = ("fp32", "amp_fp16", "amp_bf16")


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(32, 8, generator=generator), torch.randn(32, 4, generator=generator)


class Batches:
    """A loader of another library."""

    def __iter__(self):
        yield batch()


def test_a_fit_needs_a_step():
    model = net()
    with pytest.raises(ValueError, match=r"^fit: steps must be at least 1, got 0"):
        fit(model, squared_error, batch(), torch.optim.SGD(model.parameters(), lr=1.0), steps=0)


@pytest.mark.parametrize("loader", [DataLoader(TensorDataset(*batch())), Batches()])
def test_a_fit_sends_a_loader_to_train(loader):
    model = net()
    message = f"got {type(loader).__name__}; zoo.training.epochs.train takes a loader$"
    with pytest.raises(TypeError, match=message):
        fit(model, squared_error, loader, torch.optim.SGD(model.parameters(), lr=1.0), steps=1)


def test_a_fit_ends_at_a_loss_that_is_nan():
    model, (x, y) = net(), batch()
    x[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match=r"^fit: step 1: the loss is nan$"):
        fit(model, squared_error, (x, y), torch.optim.SGD(model.parameters(), lr=0.1), steps=9)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("build", [Affine, Line])
def test_the_line_is_found(build, precision):
    torch.manual_seed(3)
    model = build()
    done = fit_line(model, steps=300, lr=0.5, precision=precision)
    slope, offset = (p.item() for p in model.parameters())
    assert slope == pytest.approx(5, abs=0.1)
    assert offset == pytest.approx(3, abs=0.1)
    assert done.losses.shape == (300,)
    assert done.losses[-1] < 0.02
    assert done.seconds > 0


def test_the_line_is_found_by_the_recipe_of_its_source():
    torch.manual_seed(3)
    model = Affine()
    fit_line(model)
    assert [p.item() for p in model.parameters()] == pytest.approx([5, 3], abs=1e-3)


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


def test_three_times_the_steps_find_the_offset_too():
    torch.manual_seed(0)
    model = Quadratic()
    fit_quadratic(model, steps=3000)
    assert model.w.flatten().tolist() == pytest.approx([5, 0, 3], abs=1e-3)


def test_a_fit_without_steps_is_refused():
    with pytest.raises(ValueError, match=r"^fit_line: steps must be at least 1, got 0$"):
        fit_line(Affine(), steps=0)
    with pytest.raises(TypeError, match=r"^fit_quadratic: steps must be an integer, got None$"):
        fit_quadratic(Quadratic(), steps=None)
