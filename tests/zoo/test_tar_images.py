"""Tar archives as a data set: each image once, for any number of workers, ranks and shards."""

import itertools
import os
import pickle
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from archive_cases import end_of, numbered, picture, write_tar
from harness.processes import fresh
from torch.utils.data import DataLoader

from zoo.data import ResizeCenterCrop, TarImage, TarImageDataset, tar_images

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes:UserWarning"),
    pytest.mark.filterwarnings("ignore:.* use of fork\\(\\) may lead to deadlocks:DeprecationWarning"),  # from 3.12 on
]
SIZES = {"none": (0,), "one": (1,), "unequal": (5, 0, 1, 9), "many": (2,) * 6, "empty-last": (4, 3, 0)}


@pytest.fixture
def shards(tmp_path):
    """Return a function that makes shards of given sizes; the images are numbered across all shards."""

    def make(sizes):
        numbers, paths = itertools.count(), []
        for shard, size in enumerate(sizes):
            files = [(f"{number}.png", numbered(number)) for number in itertools.islice(numbers, size)]
            paths.append(write_tar(tmp_path / f"{shard}.tar", files))
        return paths

    return make


def number(item):
    """Return the number that the pixel encodes; it must agree with the member's name."""
    red, green, blue = item.image.flatten().tolist()
    assert (item.image.shape, blue, item.member) == ((3, 1, 1), 7, f"{256 * red + green}.png")
    return 256 * red + green


def numbers(items):
    return [number(item) for item in items]


def test_one_process_reads_the_archives_in_order(shards):
    paths = shards((2, 0, 1))
    items = list(TarImageDataset(paths))
    assert numbers(items) == [0, 1, 2]
    first, last = str(paths[0]), str(paths[2])
    assert [(item.shard, item.member) for item in items] == [(first, "0.png"), (first, "1.png"), (last, "2.png")]
    assert items[0].image.dtype == torch.uint8
    dataset = TarImageDataset(shards((3, 3)))
    pairs = list(zip(dataset, itertools.islice(dataset, 2, None), strict=False))  # two iterations at once
    assert [(number(a), number(b)) for a, b in pairs] == [(0, 2), (1, 3), (2, 4), (3, 5)]


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_any_workers_and_ranks_share_each_image_exactly_once(shards, monkeypatch, sizes):
    paths, info = shards(sizes), SimpleNamespace()
    monkeypatch.setattr(tar_images, "get_worker_info", lambda: info)
    for ranks, workers in itertools.product((1, 2, 3, 5), (1, 2, 3, 7)):
        counts, found = [], []
        for rank in range(ranks):
            dataset = TarImageDataset(paths, rank=rank, ranks=ranks)
            info.num_workers = workers + rank  # the number of workers may differ between ranks
            mine = []
            for worker in range(info.num_workers):
                info.id = worker
                mine.append(numbers(dataset))
                assert mine[-1] == sorted(mine[-1])
            assert max(map(len, mine)) - min(map(len, mine)) <= 1
            counts.append(sum(map(len, mine)))
            found += itertools.chain(*mine)
        assert sorted(found) == list(range(sum(sizes)))
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("workers", [0, 1, 2, 3, 5])
def test_a_loader_keeps_archive_order_for_any_number_of_workers(shards, workers):
    dataset = TarImageDataset(shards((5, 0, 1, 9)))
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, timeout=60 * bool(workers))
    assert numbers(loader) == list(range(15))


def test_batches_of_several_workers_hold_each_image_once_in_every_epoch(shards):
    dataset = TarImageDataset(shards((4, 3, 0)))
    loader = DataLoader(dataset, batch_size=2, num_workers=3, persistent_workers=True, timeout=60)
    for _ in range(2):
        batches = list(loader)
        assert all(isinstance(batch, TarImage) and batch.image.shape[1:] == (3, 1, 1) for batch in batches)
        assert [" ".join(batch.member) for batch in batches] == ["0.png 3.png", "1.png 4.png", "2.png 5.png", "6.png"]


RANK = """
import sys
import torch
from torch.utils.data import DataLoader
from zoo.data import TarImageDataset

if __name__ == "__main__":
    rank, meeting, *paths = sys.argv[1:]
    dataset = TarImageDataset(paths)  # before the group exists
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=2)
    for workers, start in ((0, None), (2, "fork"), (1, "spawn")):
        loader = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=start)
        print(*[item.member for item in loader])
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
"""


def test_ranks_are_those_of_torch_distributed(shards, tmp_path):
    (tmp_path / "rank.py").write_text(RANK)
    command = [sys.executable, "-W", "ignore", str(tmp_path / "rank.py")]
    rest = [str(tmp_path / "meeting"), *map(str, shards((3, 0, 2)))]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    running = [
        subprocess.Popen([*command, str(rank), *rest], stdout=subprocess.PIPE, text=True, env=environment)
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=240)[0].splitlines() for process in running]
    finally:
        for process in running:
            process.kill()
    assert printed == [["0.png 2.png 4.png"] * 3, ["1.png 3.png"] * 3]


def test_a_data_set_pickled_before_the_group_exists_gets_its_rank_later(shards, monkeypatch):
    travelled = pickle.loads(pickle.dumps(TarImageDataset(shards((4,)))))
    assert numbers(travelled) == [0, 1, 2, 3]
    for name, value in (("is_initialized", True), ("get_rank", 1), ("get_world_size", 3)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    assert numbers(travelled) == [1]
    settled = pickle.loads(pickle.dumps(travelled))
    monkeypatch.undo()
    assert (numbers(settled), numbers(travelled)) == ([1], [0, 1, 2, 3])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cut_shard_and_a_file_that_is_not_an_image_reach_the_user(shards, tmp_path, workers):
    (path,) = shards((2,))
    for keep, place in ((1600, "in member '1.png'"), (1324, "after member '0.png': bad header")):
        os.truncate(path, keep)
        assert f"{path} is cut or damaged {place}" in str(end_of(TarImageDataset([path]), workers)[1])
    path = write_tar(tmp_path / "x.tar", [("0.png", numbered(0)), ("labels.txt", b"cat"), ("1.png", numbered(1))])
    line = f"TarImageDataset: {path}, member 'labels.txt': not readable as an image: "
    assert line in str(end_of(TarImageDataset([path]), workers)[1])


KILL = """
import os, signal, sys
from torch.utils.data import DataLoader
from zoo.data import TarImageDataset

loader = DataLoader(TarImageDataset(sys.argv[1:]), batch_size=None, num_workers=2, multiprocessing_context="fork")
items = iter(loader)  # other processes of a fork server would hold the pipes of this one
print(next(items).member)
os.kill(items._workers[1].pid, signal.SIGKILL)
try:
    print(len(list(items)))
except (RuntimeError, EOFError, OSError) as problem:  # from the loader's signal handler or the worker's pipe
    print(type(problem).__name__, problem, flush=True)
    os._exit(1)
"""


def test_a_killed_worker_is_an_error_and_no_hang(shards):
    command = [sys.executable, "-c", KILL, *map(str, shards((60,)))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done.stderr
    line = r"0.png\n(RuntimeError DataLoader worker \(pid.*(killed by signal|exited unexpectedly)|EOFError|Connection)"
    assert re.match(line, done.stdout), done.stdout + done.stderr


STREAM = """
import io, os, sys, tarfile
from PIL import Image
from zoo.data import TarImageDataset

def peak():
    with open("/proc/self/status") as status:  # not ru_maxrss, which starts from the parent's value
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

before, bitmap = 0, io.BytesIO()
Image.frombytes("RGB", (1000, 1000), os.urandom(3_000_000)).save(bitmap, "BMP")
with tarfile.open(sys.argv[1], "w") as tar:
    for number in range(30):
        header = tarfile.TarInfo(f"{number}.bmp")
        header.size = bitmap.tell()
        tar.addfile(header, io.BytesIO(bitmap.getbuffer()))
print(os.path.getsize(sys.argv[1]) >> 20)
for keep in (False, True):
    images = []
    for count, item in enumerate(TarImageDataset([sys.argv[1]]), 1):
        images = [*images, item] if keep else []
        before = peak() if count == 5 else before  # what reading itself takes is there by then
    print(count, round(peak() - before))
"""


def test_memory_does_not_grow_with_the_archive_unless_images_are_kept(tmp_path):
    path = tmp_path / "large.tar"
    try:
        megabytes, passed, grown_by, kept, grown_with = map(int, fresh(STREAM, path))
    finally:
        path.unlink(missing_ok=True)
    assert (megabytes, passed, kept) == (85, 30, 30)
    assert grown_by <= 30
    assert 60 <= grown_with <= 90


def test_arguments_that_make_no_sense_are_named(shards, tmp_path):
    (path,) = shards((1,))
    for arguments, error, line in (
        ({"paths": str(path)}, TypeError, r"paths must be a collection of paths, got '.*0\.tar'"),
        ({"paths": [path, None]}, TypeError, r"paths\[1\] must be a path, got None$"),
        ({"paths": {path}}, TypeError, "paths must have an order, got set$"),
        ({"paths": []}, ValueError, "paths must .*at least one shard"),
        ({"paths": [path, str(path)]}, ValueError, r".*each shard once, got \['.*0\.tar'\] more often"),
        ({"paths": [path, tmp_path]}, FileNotFoundError, f"no shard {re.escape(str(tmp_path))}$"),
        ({"paths": [path, tmp_path / "1.tar"]}, FileNotFoundError, f"no shard {re.escape(str(tmp_path / '1.tar'))}$"),
        ({"split": "rows"}, ValueError, "split must be 'images' or 'shards', got 'rows'$"),
        ({"rank": 0, "ranks": 2.0}, TypeError, "ranks must be an integer, got float$"),
        *(
            ({"rank": rank, "ranks": ranks}, ValueError, f".*0 <= rank < ranks, got {rank} and {ranks}$")
            for rank, ranks in ((0, None), (None, 2), (2, 2), (-1, 2), (0, 0))
        ),
    ):
        with pytest.raises(error, match=f"^TarImageDataset: {line}"):
            TarImageDataset(**{"paths": [path], **arguments})
    with pytest.raises(TypeError):
        len(TarImageDataset([path]))  # no length that a loader could trust


# shards of their own for every worker


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
    assert members(DataLoader(dataset, batch_size=None)) == list(range(9))  # without workers every shard is read
    loader = DataLoader(dataset, batch_size=2, num_workers=2, persistent_workers=True, timeout=60)
    for _ in range(2):
        batches = [[int(name.removesuffix(".png")) for name in batch.member] for batch in loader]
        assert sorted(itertools.chain(*batches)) == list(range(9))
        assert [sorted(batch) for batch in batches] == [[0, 1], [4, 5], [2, 3], [6], [7, 8]]


@pytest.mark.parametrize(("count", "workers", "ranks"), [(1, 2, 1), (3, 2, 2), (5, 3, 2)])
def test_a_worker_without_a_shard_is_an_error_on_every_rank(shards, count, workers, ranks):
    paths = shards((1,) * count)
    line = (
        f"TarImageDataset: split='shards' needs a shard for each worker: {ranks} ranks with {workers} workers need "
        f"{ranks * workers}, got {count}"
    )
    for rank in range(ranks):
        dataset = TarImageDataset(paths, split="shards", rank=rank, ranks=ranks)
        assert str(end_of(dataset, workers)[1]).rstrip().endswith(line)
    assert len(list(TarImageDataset(paths, rank=0, ranks=1))) == count


@pytest.fixture
def two_sizes(tmp_path):
    """Two shards of images, 20 by 10 and 6 by 30; red is the number of an image."""
    sizes = [(20, 10), (6, 30)]
    return [
        write_tar(
            tmp_path / f"{n}.tar", [(f"{n}{i}.png", picture(size, (2 * n + i, 0, 9))) for i, size in enumerate(sizes)]
        )
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
    items, error = end_of(TarImageDataset(two_sizes, transform=refuse_image_2), workers, RuntimeError)
    assert [item.image for item in items] == ["3 10 20", "3 30 6"]
    line = f"TarImageDataset: {two_sizes[1]}, member '10.png': transform raised KeyError: 'no such class'"
    assert line in str(error)
