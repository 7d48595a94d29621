"""False claims about data, data sets and the fits of a line and a parabola: docs/where-the-sources-are-wrong/."""

import itertools
import random
import tarfile

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from zoo.data.tar_files import tar_files
from zoo.models.checkerboard import checker


def test_a_module_without_parameters_cannot_be_optimised():
    with pytest.raises(ValueError, match="empty parameter list"):
        torch.optim.Adam(nn.ReLU().parameters())


def test_the_first_argument_of_numpy_normal_is_the_mean():
    numpy = pytest.importorskip("numpy")
    assert numpy.random.normal([3, 5]).shape == (2,)
    assert numpy.random.normal(size=[3, 5]).shape == (3, 5)


def test_torch_tensor_of_a_tensor_warns():
    source = torch.ones(2)
    with pytest.warns(UserWarning, match="copy construct from a tensor"):
        torch.tensor(source, requires_grad=True)
    leaf = source.clone().detach().requires_grad_()
    assert leaf.is_leaf


def parabola(generator):
    """Draw 100 points of 5x² + 3 with x in [-10, 10): the features (x², x, 1), and y."""
    x = torch.rand(100, generator=generator) * 20 - 10
    return torch.stack([x * x, x, torch.ones_like(x)], 1), 5 * x * x + 3


def test_1000_steps_of_adam_do_not_find_the_offset_of_the_parabola():
    generator = torch.Generator().manual_seed(0)
    w = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([w], lr=0.1)
    for _ in range(1000):
        features, y = parabola(generator)
        optimizer.zero_grad()
        F.mse_loss(features @ w, y).backward()
        optimizer.step()
    assert w[:2].tolist() == pytest.approx([5, 0], abs=0.02)
    assert 3.3 < w[2].item() < 3.6


def test_least_squares_find_the_offset_of_the_parabola():
    features, y = parabola(torch.Generator().manual_seed(0))
    assert torch.linalg.lstsq(features, y.unsqueeze(1)).solution[2].item() == pytest.approx(3, abs=1e-3)


def board(width, height, freq, white):
    """Return the board of the source, with `white` as its comparison with one half."""
    columns, rows = (white(torch.arange(n).mul(freq / n / 2.0).fmod(1.0), 0.5) for n in (width, height))
    return columns.logical_xor(rows.unsqueeze(1)).float().unsqueeze(0)


def test_a_board_by_greater_than_one_half_has_squares_of_two_sizes():
    wrong = board(512, 512, 8, torch.gt)
    sizes = [len(list(square)) for _, square in itertools.groupby(wrong[0, 0].tolist())]
    assert sizes == [65, 63] * 4
    assert (wrong != checker(512, 512, 8)).sum() == 4064
    assert torch.equal(board(512, 512, 8, torch.ge), checker(512, 512, 8))


def test_a_board_by_greater_than_one_half_is_blank_if_a_square_is_a_pixel():
    assert board(8, 8, 8, torch.gt).eq(0).all()
    assert torch.equal(board(8, 8, 8, torch.ge), checker(8, 8, 8))
    assert checker(8, 8, 8).sum() == 32


def test_float32_misplaces_an_edge_of_a_board_of_other_sizes():
    assert not torch.equal(board(44, 1, 26, torch.ge), checker(44, 1, 26)[:, :1])


class RandomChoice:
    """A data set of 100 items that ignores the index, with the other faults of the source mended."""

    def __init__(self):
        self.paths = range(100)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return random.choice(self.paths)


def test_a_random_choice_loses_items_and_repeats_others():
    random.seed(0)
    images = RandomChoice()
    epoch = [images[index] for index in range(len(images))]
    assert len(set(epoch)) < 80


class WithoutSelf:
    def __init__(self):
        self.paths = ["a.jpg"]

    def __getitem__(self, index):
        return paths[index]  # noqa: F821 - the fault


def test_an_attribute_is_not_a_name():
    with pytest.raises(NameError, match="'paths' is not defined"):
        WithoutSelf()[0]


def tar_image_iterator(path):
    tar = tarfile.open(self.path, "r")  # noqa: F821, SIM115 - the fault
    yield from tar


def test_a_function_has_no_self():
    with pytest.raises(NameError, match="'self' is not defined"):
        next(tar_image_iterator("a.tar"))


def test_a_folder_in_an_archive_has_no_file_to_read(tmp_path):
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        folder = tarfile.TarInfo("images")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    with tarfile.open(archive) as tar:
        assert tar.extractfile(tar.next()) is None
    assert list(tar_files(archive)) == []
