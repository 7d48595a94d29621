"""Measures how fast the data sets load images, by the number of workers, and what one worker reads.

    python -m benchmarks.loading [--rounds 10] [--images 128] [--write]

It makes JPEG images of two sizes, as files of a folder and as four archives, and loads them through a `DataLoader`. It
prints a Markdown page after some minutes; `--write` puts it into docs/data.md. Times are ratios, measured side by side:
each round loads everything once in every way, in random order, with workers that are already running. A slow file
system is simulated: each read call sleeps. It needs Linux, which counts the reads of a process.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import statistics
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tabulate import tabulate
from torch.utils.data import DataLoader

from conformance.plan.matrix import environment
from zoo.data import ImageDirectoryDataset, ResizeCenterCrop, TarImageDataset

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "data.md"
WORKERS, SHARDS, BATCH = (0, 1, 2, 4), 4, 16
LATENCY = 0.005  # seconds of a read call on the slow file system
SIZES, TARGET = ((320, 240), (240, 320)), 224
FOLDER, IMAGES, OWN = "folder", "archives", 'archives, `split="shards"`'

TEXT = """# Loading images

Written by `python -m benchmarks.loading --write`. {environment}

`zoo.data` reads images from a folder and from tar archives: each image once per epoch, for any number of workers and
ranks, and an error that names the file where one cannot be read. It needs Pillow: `pip install pillow`.

## Start

```python
from pathlib import Path

from torch.utils.data import DataLoader
from zoo.data import ImageDirectoryDataset, ResizeCenterCrop, TarImageDataset

photos = ImageDirectoryDataset("photos", "**/*.jpg", transform=ResizeCenterCrop(224, 224))
for images in DataLoader(photos, batch_size=32, shuffle=True, num_workers=2):
    images  # (32, 3, 224, 224), uint8, RGB; the last batch may be smaller

shards = TarImageDataset(sorted(Path("shards").glob("*.tar")), transform=ResizeCenterCrop(224, 224))
for images, archives, names in DataLoader(shards, batch_size=32, num_workers=2):
    images.float().div(255)  # as a model wants them
```

- Images of several sizes need a `transform` that gives them one; without it, the `DataLoader` cannot stack them.
  `ResizeCenterCrop` scales an image until it covers the size, and cuts out the middle. Any other callable will do.
- The transform runs in the workers. If it draws random numbers, draw them with torch: each worker has its own seed.
- The archives must be uncompressed. An image is in memory only while it is read.
- Under `torch.distributed`, every rank gets its own images. Create the archives' data set with `rank=` and `ranks=` to
  set them by hand. For a folder, use a `DistributedSampler`.

## How many workers

There are {images} JPEG images of 320×240 and 240×320 pixels, in a folder and in {shards} archives. They are cropped to
{target}×{target} and come in batches of {batch}. The files are on a local disk.
Without workers, {local_baseline}.

{local}

The same where each read call takes {latency} ms longer, as on a network file system.
Without workers, {slow_baseline}.

{slow}

- A figure says how many times as fast the way is as the same way without workers. It is the median of {rounds} rounds,
  and the brackets show the middle half of the rounds. Each round loads everything once in every way.
- The last column compares the two ways to share archives, in the same round: above 1, `split="shards"` is faster.
  Without workers they do the same, so the first row shows how far noise goes.
- The machine has {cores} cores. Its load while it measured was {load}, the workers of this benchmark included.
- Decoding needs a core: on a local disk, workers gain only while a core is free. Waiting needs none: on the slow file
  system, more workers than cores still gain.
- Start with one worker less than the machine has cores, because the model needs one too. Take more if the files are far
  away. Then measure on your machine: `python -m benchmarks.loading`.

## Images or archives for each worker

By default, workers share the images: each walks through all archives, reads every header, and takes its own images. The
counts of two workers differ by at most one, whatever the number of archives. With `split="shards"`, workers share the
archives: each reads its own from start to end, and opens no other. There must be at least as many archives as workers
on all ranks together; else the data set raises an error, because a worker would be idle.

What one of {shards} workers reads of the {shards} archives:

{reads}

- *read calls* and *bytes* are those of the worker's process, as Linux counts them.
- On a local disk the difference is small beside the time to decode. On a network file system every read call may be a
  round trip, and skipping defeats reading ahead. There, `split="shards"` is the better choice.
- The counts of images differ as the archives do. Make archives of equal size, and as many as a multiple of workers
  times ranks. Otherwise some workers finish early, and under `torch.distributed` some ranks have more batches than
  others.
- Frameworks have formats of their own for such archives, for instance TFRecord. They gain the same: long sequential
  reads instead of one file per image. A tar archive needs no package to write or to look into.
"""

Times = dict[tuple[str, int], list[float]]  # by way and number of workers


def main() -> None:
    """Measure, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="of all ways (default: 10)")
    parser.add_argument("--images", type=int, default=128, help="to load (default: 128)")
    parser.add_argument("--write", action="store_true", help=f"write to {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        paths = _written(Path(folder), options.images)
        local = _measured(Path(folder), paths, options.images, options.rounds)
        with _slow_reads():
            slow = _measured(Path(folder), paths, options.images, options.rounds)
        reads = _table_of_reads(paths)
    text = page(options.images, options.rounds, local=local, slow=slow, reads=reads)
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


def page(images: int, rounds: int, *, local: Times, slow: Times, reads: str) -> str:
    """The page as Markdown.

    Args:
        images: their number.
        rounds: in which they were loaded.
        local: seconds of each round, by way and number of workers.
        slow: the same on the slow file system.
        reads: table of what one worker reads.
    """
    here = environment()
    return TEXT.format(
        environment=f"Measured with torch {here.torch} on: {here.cpu}.",
        images=images,
        shards=SHARDS,
        target=TARGET,
        batch=BATCH,
        local_baseline=_baseline(images, local),
        local=_table_of_speed(local),
        latency=round(1000 * LATENCY),
        slow_baseline=_baseline(images, slow),
        slow=_table_of_speed(slow),
        rounds=rounds,
        cores=here.cores,
        load=f"{os.getloadavg()[2]:.0f}",  # the mean of 15 minutes
        reads=reads,
    )


def _baseline(images: int, seconds: Times) -> str:
    folder, archives = (images / statistics.median(seconds[way, 0]) for way in (FOLDER, IMAGES))
    return f"the folder gives {folder:.0f} images per second, and the archives give {archives:.0f}"


class _SlowFile(io.FileIO):
    """A file whose every read call takes some time longer."""

    def readinto(self, buffer: Any) -> Any:
        time.sleep(LATENCY)
        return super().readinto(buffer)

    def readall(self) -> bytes:
        time.sleep(LATENCY)
        return super().readall()


@contextlib.contextmanager
def _slow_reads() -> Iterator[None]:
    """Make `Path.open` open slow files, also in the workers that start meanwhile."""
    fast = Path.open
    Path.open = lambda path, *_, **__: io.BufferedReader(_SlowFile(path))  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Path.open = fast  # type: ignore[method-assign]


def _written(folder: Path, count: int) -> list[Path]:
    """Write the images, each as a file of `folder` and as a member of an archive; return the archives."""
    noise = random.Random(0)  # noqa: S311 -- a picture, no secret
    paths = [folder / f"{number}.tar" for number in range(SHARDS)]
    with contextlib.ExitStack() as stack:
        archives = [stack.enter_context(tarfile.open(path, "w")) for path in paths]
        for number in range(count):
            width, height = SIZES[number % len(SIZES)]
            coarse = Image.frombytes("RGB", (width // 8, height // 8), noise.randbytes(width * height * 3 // 64))
            file = io.BytesIO()
            coarse.resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
            header = tarfile.TarInfo(f"{number:05}.jpg")
            header.size = file.tell()
            (folder / header.name).write_bytes(file.getvalue())
            file.seek(0)
            archives[number % SHARDS].addfile(header, file)
    return paths


def _measured(folder: Path, paths: list[Path], images: int, rounds: int) -> Times:
    """The seconds of each round, by way and number of workers."""
    crop = ResizeCenterCrop(TARGET, TARGET)
    ways = {
        FOLDER: ImageDirectoryDataset(folder, "*.jpg", transform=crop),
        IMAGES: TarImageDataset(paths, transform=crop),
        OWN: TarImageDataset(paths, transform=crop, split="shards"),
    }
    loaders = {
        (way, workers): DataLoader(dataset, BATCH, num_workers=workers, persistent_workers=workers > 0)
        for way, dataset in ways.items()
        for workers in WORKERS
    }
    seconds: Times = {key: [] for key in loaders}
    order, keys = random.Random(0), list(loaders)  # noqa: S311 -- an order, no secret
    for turn in range(rounds + 1):
        for key in order.sample(keys, len(keys)):
            spent = _seconds(loaders[key], images)
            if turn:  # the first round starts the workers
                seconds[key].append(spent)
    return seconds


def _seconds(loader: Iterable[object], images: int) -> float:
    started = time.perf_counter()
    batches = [batch if isinstance(batch, torch.Tensor) else batch[0] for batch in loader]  # type: ignore[index]
    spent = time.perf_counter() - started
    if sum(map(len, batches)) != images:
        raise RuntimeError(f"{images} images were written, {sum(map(len, batches))} loaded")
    return spent


def _table_of_speed(seconds: Times) -> str:
    rows = []
    for workers in WORKERS:
        cells = [_spread(seconds[way, 0], seconds[way, workers]) if workers else "1" for way in (FOLDER, IMAGES, OWN)]
        rows.append([str(workers), *cells, _spread(seconds[IMAGES, workers], seconds[OWN, workers])])
    header = ["workers", FOLDER, IMAGES, OWN, "`shards` to default"]
    return tabulate(rows, header, tablefmt="github", disable_numparse=True)


def _spread(base: list[float], other: list[float]) -> str:
    """Median and quartiles of how many times as fast the other is, round by round."""
    low, middle, high = statistics.quantiles([b / o for b, o in zip(base, other, strict=True)], n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _table_of_reads(paths: list[Path]) -> str:
    """What a worker reads: the images of one of four ranks are divided in the same way as those of four workers."""
    whole, rows = sum(path.stat().st_size for path in paths), []
    for name, split, archives in ((IMAGES, "images", SHARDS), (OWN, "shards", 1)):
        dataset = TarImageDataset(paths, transform=torch.numel, split=split, rank=0, ranks=SHARDS)
        calls, size = _reads()
        images = len(list(dataset))
        calls, size = (after - before for after, before in zip(_reads(), (calls, size), strict=True))
        rows.append(
            [name, str(images), str(archives), str(calls), f"{size:,}".replace(",", " "), f"{size / whole:.0%}"]
        )
    header = ["way", "images", "archives opened", "read calls", "bytes", "of all bytes"]
    return tabulate(rows, header, tablefmt="github", disable_numparse=True, colalign=("left", *["right"] * 5))


def _reads() -> tuple[int, int]:
    """The read calls of this process and their bytes, also of what was in memory already."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines())
    return int(lines["syscr"]), int(lines["rchar"])


if __name__ == "__main__":
    main()
