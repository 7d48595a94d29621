"""Shards of their own for every worker: each image once, each archive read by one worker from start to end."""

import itertools
import re
from types import SimpleNamespace

import pytest
from torch.utils.data import DataLoader

from zoo.data import ResizeCenterCrop, TarImageDataset, tar_images

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes:UserWarning"),
    pytest.mark.filterwarnings("ignore:.* use of fork\\(\\) may lead to deadlocks:DeprecationWarning"),  # from 3.12 on
]


@pytest.fixture
def shards(tmp_path, write_tar, numbered):
    """Return a function that makes shards of given sizes; the images are numbered across all shards."""

    def make(sizes):
        numbers = itertools.count()
        return [
            write_tar(tmp_path / f"{shard}.tar", [(f"{n}.png", numbered(n)) for n in itertools.islice(numbers, size)])
            for shard, size in enumerate(sizes)
        ]

    return make


def members(items):
    return [int(item.member.removesuffix(".png")) for item in items]


@pytest.mark.parametrize("sizes", [(5, 0, 1, 9, 2, 2), (1,) * 12, (3,) * 7], ids=str)
def test_ranks_and_workers_share_each_image_exactly_once(shards, monkeypatch, sizes):
    paths, info, opened = shards(sizes), SimpleNamespace(), []
    read = tar_images.tar_files
    monkeypatch.setattr(tar_images, "get_worker_info", lambda: info)
    monkeypatch.setattr(tar_images, "tar_files", lambda path: (opened.append(path), read(path))[1])
    for ranks, workers in itertools.product((1, 2, 3), (1, 2, 3)):
        if ranks * workers > len(sizes):
            continue
        found = []
        for rank in range(ranks):
            dataset = TarImageDataset(paths, split="shards", rank=rank, ranks=ranks)
            for info.id in range(workers):
                info.num_workers = workers
                mine = members(dataset)
                assert mine == sorted(mine)
                found += mine
        assert sorted(found) == list(range(sum(sizes)))
        assert sorted(opened) == sorted(paths)  # no shard is opened twice
        opened.clear()


def test_a_loader_with_workers_gives_each_image_once_in_every_epoch(shards):
    dataset = TarImageDataset(shards((4, 3, 2)), split="shards")
    loader = DataLoader(dataset, batch_size=2, num_workers=2, persistent_workers=True, timeout=60)
    for _ in range(2):
        batches = [[int(name.removesuffix(".png")) for name in batch.member] for batch in loader]
        assert sorted(itertools.chain(*batches)) == list(range(9))
        assert [sorted(batch) for batch in batches] == [[0, 1], [4, 5], [2, 3], [6], [7, 8]]


def test_without_workers_every_shard_is_read(shards):
    dataset = TarImageDataset(shards((2, 1)), split="shards")
    assert members(DataLoader(dataset, batch_size=None)) == [0, 1, 2]


@pytest.mark.parametrize(("count", "workers", "ranks"), [(1, 2, 1), (3, 2, 2), (5, 3, 2)])
def test_a_worker_without_a_shard_is_an_error_on_every_rank(shards, count, workers, ranks):
    paths = shards((1,) * count)
    line = (
        f"TarImageDataset: split='shards' needs a shard for each worker: {ranks} ranks with {workers} workers need "
        f"{ranks * workers}, got {count}"
    )
    for rank in range(ranks):
        dataset = TarImageDataset(paths, split="shards", rank=rank, ranks=ranks)
        items = iter(DataLoader(dataset, batch_size=None, num_workers=workers, timeout=60))
        with pytest.raises(ValueError, match=rf"{re.escape(line)}$"):
            list(items)
        items._shutdown_workers()  # the garbage collector would take 5 seconds
    assert len(list(TarImageDataset(paths, rank=0, ranks=1))) == count


@pytest.fixture
def two_sizes(tmp_path, write_tar, picture):
    """Two shards of images, 20 by 10 and 6 by 30; red is the number of an image."""
    sizes = [(20, 10), (6, 30)]
    return [
        write_tar(tmp_path / f"{n}.tar", [(f"{n}{i}.png", picture(size, 2 * n + i)) for i, size in enumerate(sizes)])
        for n in range(2)
    ]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("split", ["images", "shards"])
def test_images_of_two_sizes_are_batched_with_a_transform(two_sizes, workers, split):
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        next(iter(DataLoader(TarImageDataset(two_sizes), batch_size=2)))
    dataset = TarImageDataset(two_sizes, transform=ResizeCenterCrop(8, 12), split=split)
    batches = list(DataLoader(dataset, batch_size=2, num_workers=workers, timeout=60 * bool(workers)))
    assert [tuple(batch.image.shape) for batch in batches] == [(2, 3, 8, 12)] * 2
    reds = {red for batch in batches for red in batch.image[:, 0, 0, 0].tolist()}
    assert reds == {0, 1, 2, 3}


def refuse_image_2(image):
    if image[0, 0, 0] == 2:
        raise KeyError("no such class")
    return "{} {} {}".format(*image.shape)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_transform_names_shard_and_member(two_sizes, workers):
    dataset = TarImageDataset(two_sizes, transform=refuse_image_2)
    items = iter(DataLoader(dataset, batch_size=None, num_workers=workers, timeout=60 * bool(workers)))
    assert [next(items).image, next(items).image] == ["3 10 20", "3 30 6"]
    line = f"TarImageDataset: {two_sizes[1]}, member '10.png': transform raised KeyError: 'no such class'"
    with pytest.raises(RuntimeError, match=re.escape(line)):
        next(items)
    if workers:
        items._shutdown_workers()  # the garbage collector would take 5 seconds
