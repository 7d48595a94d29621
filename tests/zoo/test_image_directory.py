"""A folder as a data set: its order, its index and its errors."""

import os
import re

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from zoo.data import ImageDirectoryDataset, ResizeCenterCrop

pytestmark = pytest.mark.filterwarnings(
    "ignore:.* use of fork\\(\\) may lead to deadlocks:DeprecationWarning"
)  # from Python 3.12 on


@pytest.fixture
def folder(tmp_path):
    """Return a folder of images, written in an order that is not sorted; red is the number of an image."""
    for red, name in enumerate(["b.png", "a10.png", "sub/z.png", "a2.png", "a/b.png", "B.png", "c.bmp"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 2), (red, 0, 9)).save(tmp_path / name)
    return tmp_path


def names(dataset, folder):
    return [path.relative_to(folder).as_posix() for path in dataset.paths]


def reds(images):
    return [int(image[0, 0, 0]) for image in images]


def test_files_come_sorted_by_code_point_and_folders_do_not_count(folder):
    dataset = ImageDirectoryDataset(folder)
    assert names(dataset, folder) == ["B.png", "a10.png", "a2.png", "b.png", "c.bmp"]
    assert reds(dataset) == [5, 1, 3, 0, 6]


def test_a_slash_sorts_as_a_slash(tmp_path):
    for name in ("a2.png", "a/b.png", "a.png", "B.png", "a10.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    dataset = ImageDirectoryDataset(tmp_path, "**/*.png")
    assert names(dataset, tmp_path) == ["B.png", "a.png", "a/b.png", "a10.png", "a2.png"]


def test_the_order_is_not_the_file_systems(folder, monkeypatch):
    listed = type(folder).glob
    monkeypatch.setattr(type(folder), "glob", lambda path, pattern: reversed(list(listed(path, pattern))))
    backwards = names(ImageDirectoryDataset(folder), folder)
    monkeypatch.undo()
    assert backwards == names(ImageDirectoryDataset(folder), folder) == ["B.png", "a10.png", "a2.png", "b.png", "c.bmp"]


def test_the_pattern_selects_files_and_may_include_subfolders(folder):
    assert names(ImageDirectoryDataset(folder, "*.bmp"), folder) == ["c.bmp"]
    deep = ["B.png", "a/b.png", "a10.png", "a2.png", "b.png", "sub/z.png"]
    assert names(ImageDirectoryDataset(str(folder), "**/*.png"), folder) == deep


def test_the_index_works_as_in_a_list(folder):
    dataset = ImageDirectoryDataset(folder)
    assert len(dataset) == 5
    assert reds([dataset[0], dataset[4], dataset[-1], dataset[-5], dataset[torch.tensor(1)]]) == [5, 6, 6, 5, 1]
    assert (dataset[0].shape, dataset[0].dtype) == ((3, 2, 4), torch.uint8)
    for bad in (5, -6, 100):
        with pytest.raises(IndexError, match=rf"index must lie in \[-5, 5\), got {bad}$"):
            dataset[bad]
    for bad in (1.0, slice(2), "1"):
        with pytest.raises(
            TypeError, match=rf"^ImageDirectoryDataset: index must be an integer, got {type(bad).__name__}$"
        ):
            dataset[bad]


@pytest.mark.parametrize("missing", ["nowhere", "b.png"])
def test_a_path_that_is_not_a_folder_is_named(folder, missing):
    message = rf"path must be a folder, got {re.escape(str(folder / missing))} \(pattern '\*\.png'\)"
    with pytest.raises(FileNotFoundError, match=message):
        ImageDirectoryDataset(folder / missing, "*.png")


def test_an_empty_match_names_folder_and_pattern(folder):
    with pytest.raises(
        FileNotFoundError, match=rf"no file in folder {re.escape(str(folder))} matches pattern '\*\.gif'"
    ):
        ImageDirectoryDataset(folder, "*.gif")
    with pytest.raises(FileNotFoundError, match="matches pattern 'su"):
        ImageDirectoryDataset(folder, "su*")  # matches only a folder


def test_an_unreadable_image_is_named_and_the_others_are_read(folder):
    (folder / "a2.png").write_bytes((folder / "a2.png").read_bytes()[:40])
    (folder / "notes.txt").write_text("no image")
    (folder / "lost.png").symlink_to(folder / "removed.png")
    dataset = ImageDirectoryDataset(folder)
    assert len(dataset) == 7
    with pytest.raises(ValueError, match=r"a2\.png: not readable as an image"):
        dataset[2]
    with pytest.raises(ValueError, match=r"notes\.txt: not readable as an image"):
        dataset[-1]
    with pytest.raises(FileNotFoundError, match=r"lost\.png"):
        dataset[-2]
    assert reds([dataset[0], dataset[3]]) == [5, 0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_each_image_once_per_epoch(folder, workers):
    dataset = ImageDirectoryDataset(folder, "**/*")
    seed = torch.Generator().manual_seed(0)
    loader = DataLoader(
        dataset, batch_size=2, shuffle=True, generator=seed, num_workers=workers, persistent_workers=workers > 0
    )
    epochs = [[red for batch in loader for red in reds(batch)] for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [[0, 1, 2, 3, 4, 5, 6]] * 2
    assert epochs[0] != epochs[1]


def test_a_workers_error_names_the_file(folder):
    os.truncate(folder / "b.png", 30)
    images = iter(DataLoader(ImageDirectoryDataset(folder), batch_size=None, num_workers=1))
    with pytest.raises(ValueError, match=r"b\.png: not readable as an image"):
        list(images)
    images._shutdown_workers()  # the garbage collector would take 5 seconds


def test_a_transform_makes_the_item(folder):
    dataset = ImageDirectoryDataset(folder, transform=lambda image: (image[0, 0, 0].item(), image.dtype))
    assert list(dataset) == [(5, torch.uint8), (1, torch.uint8), (3, torch.uint8), (0, torch.uint8), (6, torch.uint8)]


def refuse_a2(image):
    if image[0, 0, 0] == 3:
        raise KeyError("no such class")
    return image


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_transform_names_the_file(folder, workers):
    dataset = ImageDirectoryDataset(folder, transform=refuse_a2)
    images = iter(DataLoader(dataset, batch_size=None, num_workers=workers))
    line = rf"ImageDirectoryDataset: {re.escape(str(folder / 'a2.png'))}: transform raised KeyError: 'no such class'"
    with pytest.raises(RuntimeError, match=line):
        list(images)
    if workers:
        images._shutdown_workers()  # the garbage collector would take 5 seconds


@pytest.mark.parametrize("workers", [0, 2])
def test_images_of_two_sizes_are_batched_with_a_transform(folder, workers):
    for name, size in (("long.png", (30, 5)), ("tall.png", (3, 50))):
        Image.new("RGB", size, (9, 0, 9)).save(folder / name)
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        next(iter(DataLoader(ImageDirectoryDataset(folder), batch_size=7)))
    dataset = ImageDirectoryDataset(folder, transform=ResizeCenterCrop(8, 6))
    batches = list(DataLoader(dataset, batch_size=4, num_workers=workers))
    assert [tuple(batch.shape) for batch in batches] == [(4, 3, 8, 6), (3, 3, 8, 6)]
    assert [red for batch in batches for red in reds(batch)] == [5, 1, 3, 0, 6, 9, 9]


@pytest.mark.parametrize(
    ("arguments", "error", "line"),
    [
        ({"path": None}, TypeError, "path must be a path, got None"),
        ({"path": ["."]}, TypeError, "path must be a path, got list"),
        ({"pattern": None}, TypeError, "pattern must be a string, got None"),
        ({"pattern": ""}, ValueError, "pattern must be relative to the folder, got ''"),
        ({"pattern": "/*.png"}, ValueError, "pattern must be relative to the folder, got '/*.png'"),
        ({"transform": [1]}, TypeError, "transform must be callable, got list"),
    ],
)
def test_arguments_that_make_no_sense_are_named(folder, arguments, error, line):
    with pytest.raises(error, match=f"^ImageDirectoryDataset: {re.escape(line)}$"):
        ImageDirectoryDataset(**{"path": folder, **arguments})
