"""Tar archives of images as an iterable data set that yields each image once over all ranks and workers.

Number the images of all shards from 0, in the order of the shards and of each archive. Rank r of R takes the
numbers i with i mod R = r. Of these, its worker w of W takes every W-th, starting at position w. The division does
not depend on timing, on the number of shards or on the number of images in a shard. Every worker reads the headers
of every shard and skips the data of the other workers' images. The cost is one header per image and worker. In
return, the counts of two workers or two ranks differ by at most one.

With `split="shards"`, ranks and workers share the shards in this way, instead of the images. Every worker reads its own
shards from start to end and opens no other. In return, each worker of each rank needs a shard, and the counts of images
differ as the shards do.

Source: "Effective PyTorch", on data sets, where each worker has exactly one shard.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, distributed
from torch.utils.data import IterableDataset, get_worker_info

from zoo.arguments import want_callables, want_paths, want_string
from zoo.data.pixels import decode_rgb
from zoo.data.tar_files import tar_files
from zoo.data.transforms import transformed

SPLITS = ("images", "shards")


class TarImage(NamedTuple):
    """One image and its origin. It is a tuple, so `DataLoader` can collate it.

    Attributes:
        image: (3, height, width), uint8, RGB; with a `transform`, what that returns.
        shard: path of the archive.
        member: name of the image in the archive.

    >>> import torch
    >>> TarImage(torch.zeros(3, 2, 4, dtype=torch.uint8), "days.tar", "monday.png").image.shape
    torch.Size([3, 2, 4])
    """

    image: Any
    shard: str
    member: str


class TarImageDataset(IterableDataset[TarImage]):
    """The images of uncompressed tar archives, streamed shard by shard.

    One image is in memory at a time, and the data set reads nothing ahead. A `DataLoader` with `batch_size=None`
    yields the images in archive order for any number of workers, unless shards are shared. With batches, each batch
    holds images of one worker in archive order; the default collation needs images of one size. Every file in an
    archive must be an image; folders are skipped.

    Args:
        paths: the shards, in order. A shard may be empty.
        transform: called with each image, (3, height, width) and uint8; the item has what it returns. Images of several
            sizes need one for batches, such as `zoo.data.ResizeCenterCrop`.
        split: what ranks and workers share: "images" works for any number of workers and shards; with "shards", every
            worker reads only its own shards.
        rank: the number of this process, in [0, ranks).
        ranks: the number of processes that share the images. Without `rank` and `ranks`, the data set gets both
            from `torch.distributed` when iteration starts, or yields every image if that is not initialised.

    Raises:
        TypeError: `paths` is one path instead of several, has no order or holds something else than paths;
            `transform` is not callable, `split` no string; or `rank` or `ranks` is not an integer.
        ValueError: `paths` is empty or names a shard twice, `split` is another word, only one of `rank` and `ranks` is
            given, or `rank` is out of range.
        FileNotFoundError: a shard does not exist. All shards are checked before the first is read.

    >>> import io, tarfile, tempfile
    >>> from PIL import Image
    >>> def add_image(tar, name, grey):
    ...     file = io.BytesIO()
    ...     Image.new("L", (4, 2), grey).save(file, "PNG")
    ...     header = tarfile.TarInfo(name)
    ...     header.size = file.tell()
    ...     file.seek(0)
    ...     tar.addfile(header, file)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     shard = os.path.join(folder, "days.tar")
    ...     with tarfile.open(shard, "w") as tar:
    ...         for number, name in enumerate(("monday.png", "tuesday.png", "wednesday.png")):
    ...             add_image(tar, name, number)
    ...     print([item.member for item in TarImageDataset([shard])])
    ...     print([item.image.unique().tolist() for item in TarImageDataset([shard], rank=0, ranks=2)])
    ...     print([item.image for item in TarImageDataset([shard], transform=lambda image: image.max().item())])
    ['monday.png', 'tuesday.png', 'wednesday.png']
    [[0], [2]]
    [0, 1, 2]
    """

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        *,
        transform: Callable[[Tensor], Any] | None = None,
        split: str = "images",
        rank: int | None = None,
        ranks: int | None = None,
    ) -> None:
        super().__init__()
        self.paths = _checked_shards(paths)
        if transform is not None:
            want_callables("TarImageDataset", transform=transform)
        want_string("TarImageDataset", split=split)
        if split not in SPLITS:
            raise ValueError(f"TarImageDataset: split must be 'images' or 'shards', got {split!r}")
        self.transform, self.split = transform, split
        self._share = _checked_share(rank, ranks)

    def __iter__(self) -> Iterator[TarImage]:
        """Yield the images of this process and worker, starting at its first shard.

        Raises:
            ValueError: there are fewer shards than workers, with `split="shards"`; a shard is compressed, truncated or
                damaged, a member is not an image, or 8-bit RGB cannot hold it. The message names shard and member. For
                an error in a worker, the `DataLoader` raises it.
            RuntimeError: `transform` raised an error; the message names shard and member.
            ImportError: Pillow is not installed.
        """
        for shard, name, read in self._files():
            origin = f"TarImageDataset: {shard}, member {name!r}"
            yield TarImage(transformed(decode_rgb(read(), origin), self.transform, origin), str(shard), name)

    def _files(self) -> Iterator[tuple[Path, str, Callable[[], bytes]]]:
        """Yield shard, name and reader of the files of this process and worker."""
        rank, ranks = self._settled() or (0, 1)
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        share = slice(rank + ranks * worker, None, ranks * workers)
        if self.split == "images":
            files = ((shard, *file) for shard in self.paths for file in tar_files(shard))
            yield from islice(files, share.start, None, share.step)
            return
        if len(self.paths) < ranks * workers:
            raise ValueError(
                f"TarImageDataset: split='shards' needs a shard for each worker: {ranks} ranks with {workers} workers "
                f"need {ranks * workers}, got {len(self.paths)}"
            )
        for shard in self.paths[share]:
            yield from ((shard, *file) for file in tar_files(shard))

    def __getstate__(self) -> dict[str, Any]:
        """Store rank and ranks in the pickled state, because a spawned worker does not have the process group."""
        return {**self.__dict__, "_share": self._settled()}

    def _settled(self) -> tuple[int, int] | None:
        if self._share is None and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return self._share


def _checked_shards(given: Iterable[str | os.PathLike[str]]) -> tuple[Path, ...]:
    if isinstance(given, (str, bytes, os.PathLike)) or not isinstance(given, Iterable):
        raise TypeError(f"TarImageDataset: paths must be a collection of paths, got {given!r}")
    if isinstance(given, AbstractSet):  # its order differs between processes, so two ranks would read an image twice
        raise TypeError(f"TarImageDataset: paths must have an order, got {type(given).__name__}")
    shards = list(given)
    for number, shard in enumerate(shards):
        want_paths("TarImageDataset", **{f"paths[{number}]": shard})
    paths = tuple(map(Path, shards))
    if not paths:
        raise ValueError("TarImageDataset: paths must name at least one shard, got none")
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"TarImageDataset: no shard {path}")
    if twice := [str(path) for path, count in Counter(paths).items() if count > 1]:
        raise ValueError(f"TarImageDataset: paths must name each shard once, got {twice} more often")
    return paths


def _checked_share(rank: int | None, ranks: int | None) -> tuple[int, int] | None:
    if rank is None and ranks is None:
        return None
    for name, value in (("rank", rank), ("ranks", ranks)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise TypeError(f"TarImageDataset: {name} must be an integer, got {type(value).__name__}")
    if rank is None or ranks is None or not 0 <= rank < ranks:
        raise ValueError(f"TarImageDataset: want both rank and ranks, 0 <= rank < ranks, got {rank} and {ranks}")
    return rank, ranks
