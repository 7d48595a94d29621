"""Tar archives of images as an iterable data set that yields each image once over all ranks and workers.

Number the images of all shards from 0, in the order of the shards and of each archive. Rank r of R takes the
numbers i with i mod R = r. Of these, its worker w of W takes every W-th, starting at position w. The division does
not depend on timing, on the number of shards or on the number of images in a shard. Every worker reads the headers
of every shard and skips the data of the other workers' images. The cost is one header per image and worker. In
return, the counts of two workers or two ranks differ by at most one.

Source: "Effective PyTorch", on data sets, where each worker needs a shard of its own.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, distributed
from torch.utils.data import IterableDataset, get_worker_info

from zoo.data.pixels import decode_rgb
from zoo.data.tar_files import tar_files


class TarImage(NamedTuple):
    """One image and its origin. It is a tuple, so `DataLoader` can collate it.

    Attributes:
        image: (3, height, width), uint8, RGB.
        shard: path of the archive.
        member: name of the image in the archive.

    >>> import torch
    >>> TarImage(torch.zeros(3, 2, 4, dtype=torch.uint8), "days.tar", "monday.png").image.shape
    torch.Size([3, 2, 4])
    """

    image: Tensor
    shard: str
    member: str


class TarImageDataset(IterableDataset[TarImage]):
    """The images of uncompressed tar archives, streamed shard by shard.

    One image is in memory at a time, and the data set reads nothing ahead. A `DataLoader` with `batch_size=None`
    yields the images in archive order for any number of workers. With batches, each batch holds images of one
    worker in archive order; the default collation needs images of one size. Every file in an archive must be an
    image; folders are skipped.

    Args:
        paths: the shards, in order. A shard may be empty.
        rank: the number of this process, in [0, ranks).
        ranks: the number of processes that share the images. Without `rank` and `ranks`, the data set gets both
            from `torch.distributed` when iteration starts, or yields every image if that is not initialised.

    Raises:
        TypeError: `paths` is one path instead of several.
        ValueError: `paths` is empty or names a shard twice, only one of `rank` and `ranks` is given, or `rank` is
            out of range.
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
    ['monday.png', 'tuesday.png', 'wednesday.png']
    [[0], [2]]
    """

    def __init__(
        self, paths: Iterable[str | os.PathLike[str]], *, rank: int | None = None, ranks: int | None = None
    ) -> None:
        super().__init__()
        if isinstance(paths, (str, bytes, os.PathLike)):
            raise TypeError(f"TarImageDataset: paths must be a collection of paths, got {paths!r}")
        self.paths = tuple(Path(path) for path in paths)
        _check_shards(self.paths)
        self._share = _checked_share(rank, ranks)

    def __iter__(self) -> Iterator[TarImage]:
        """Yield the images of this process and worker, starting at the first shard.

        Raises:
            ValueError: a shard is compressed, truncated or damaged, a member is not an image, or 8-bit RGB cannot
                hold it. The message names shard and member. For an error in a worker, the `DataLoader` raises it.
            ImportError: Pillow is not installed.
        """
        rank, ranks = self._settled() or (0, 1)
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        files = ((shard, name, read) for shard in self.paths for name, read in tar_files(shard))
        for shard, name, read in islice(files, rank + ranks * worker, None, ranks * workers):
            image = decode_rgb(read(), f"TarImageDataset: {shard}, member {name!r}")
            yield TarImage(image, str(shard), name)

    def __getstate__(self) -> dict[str, Any]:
        """Store rank and ranks in the pickled state, because a spawned worker does not have the process group."""
        return {**self.__dict__, "_share": self._settled()}

    def _settled(self) -> tuple[int, int] | None:
        if self._share is None and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return self._share


def _check_shards(paths: tuple[Path, ...]) -> None:
    if not paths:
        raise ValueError("TarImageDataset: paths must name at least one shard, got none")
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"TarImageDataset: no shard {path}")
    if twice := [str(path) for path, count in Counter(paths).items() if count > 1]:
        raise ValueError(f"TarImageDataset: paths must name each shard once, got {twice} more often")


def _checked_share(rank: int | None, ranks: int | None) -> tuple[int, int] | None:
    if rank is None and ranks is None:
        return None
    if rank is None or ranks is None or not 0 <= rank < ranks:
        raise ValueError(f"TarImageDataset: want both rank and ranks, 0 <= rank < ranks, got {rank} and {ranks}")
    return rank, ranks
