"""A folder of images as a map-style data set: item i is the i-th file in an order that never changes.

Source: "Effective PyTorch", on data sets; a map-style data set is `__len__` and `__getitem__`, and leaves
shuffling, batching and worker processes to `torch.utils.data.DataLoader`.
"""

from __future__ import annotations

import operator
import os
from pathlib import Path

from torch import Tensor
from torch.utils.data import Dataset

from zoo.data.pixels import decode_rgb


class ImageDirectoryDataset(Dataset[Tensor]):
    """The images of a folder, one per file that the pattern matches.

    The files are listed once, when the data set is made, and sorted by their path relative to the folder,
    written with `/`, by code point: "B.png", "a.png", "a/b.png", "a10.png", "a2.png". Every match counts: a file
    that is no image is an error when it is read, not left out.

    Args:
        path: the folder.
        pattern: what `pathlib.Path.glob` takes: "*" every file of the folder, "*.png" those of one kind,
            "**/*.png" those in folders below as well.

    Attributes:
        paths: the file of each item.

    Raises:
        FileNotFoundError: `path` is no folder, or holds no file that matches `pattern`.

    >>> import pathlib, tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, grey in (("night.png", 0), ("day.png", 255)):
    ...         Image.new("L", (4, 2), grey).save(pathlib.Path(folder, name))
    ...     images = ImageDirectoryDataset(folder, "*.png")
    ...     print(len(images), images[0].shape, images[0].unique(), images.paths[-1].name)
    2 torch.Size([3, 2, 4]) tensor([255], dtype=torch.uint8) night.png
    """

    def __init__(self, path: str | os.PathLike[str], pattern: str = "*") -> None:
        folder = Path(path)
        if not folder.is_dir():
            raise FileNotFoundError(f"ImageDirectoryDataset: path must be a folder, got {folder} (pattern {pattern!r})")
        found = (file for file in folder.glob(pattern) if not file.is_dir())
        self.paths = tuple(sorted(found, key=lambda file: file.relative_to(folder).as_posix()))
        if not self.paths:
            raise FileNotFoundError(f"ImageDirectoryDataset: no file in folder {folder} matches pattern {pattern!r}")

    def __len__(self) -> int:
        """How many files matched."""
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        """Read one image.

        Args:
            index: in [-len, len); a negative one counts from the end, as in a list.

        Returns:
            (3, height, width), uint8, RGB; see `zoo.data.pixels.decode_rgb` for what becomes of other modes.

        Raises:
            IndexError: `index` is out of range.
            TypeError: `index` is no integer.
            ValueError: the file is no image that 8-bit RGB can hold; the message names it.
            OSError: the file cannot be opened any more.
            ImportError: Pillow is not installed.
        """
        number, count = operator.index(index), len(self.paths)
        if not -count <= number < count:
            raise IndexError(f"ImageDirectoryDataset: index must lie in [{-count}, {count}), got {number}")
        path = self.paths[number]
        return decode_rgb(path.read_bytes(), f"ImageDirectoryDataset: {path}")
