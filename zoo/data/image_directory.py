"""A folder of images as a map-style data set: item i is the i-th file in a fixed order.

Source: "Effective PyTorch", on data sets. A map-style data set has `__len__` and `__getitem__`;
`torch.utils.data.DataLoader` does the shuffling and batching and runs the worker processes.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from zoo.arguments import want_callables, want_paths, want_string
from zoo.data.pixels import decode_rgb
from zoo.data.transforms import transformed


class ImageDirectoryDataset(Dataset[Any]):
    """The images of a folder, one per file that the pattern matches.

    The files are listed once, when the data set is created. They are sorted by code point of their path relative
    to the folder, written with `/`: "B.png", "a.png", "a/b.png", "a10.png", "a2.png". Every matching file is an
    item; reading one that is not an image raises an error.

    Args:
        path: the folder.
        pattern: a pattern for `pathlib.Path.glob`: "*" matches every file of the folder, "*.png" only PNG files,
            "**/*.png" also PNG files in subfolders.
        transform: called with each image, (3, height, width) and uint8; what it returns is the item. Images of several
            sizes need one for batches, such as `zoo.data.ResizeCenterCrop`.

    Attributes:
        paths: the path of each item's file.

    Raises:
        TypeError: `path` is not a path, `pattern` not a string or `transform` not callable.
        ValueError: `pattern` is empty or an absolute path.
        FileNotFoundError: `path` is not a folder, or no file in it matches `pattern`.

    >>> import pathlib, tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, grey in (("night.png", 0), ("day.png", 255)):
    ...         Image.new("L", (4, 2), grey).save(pathlib.Path(folder, name))
    ...     images = ImageDirectoryDataset(folder, "*.png")
    ...     print(len(images), images[0].shape, images[0].unique(), images.paths[-1].name)
    2 torch.Size([3, 2, 4]) tensor([255], dtype=torch.uint8) night.png
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        pattern: str = "*",
        *,
        transform: Callable[[Tensor], Any] | None = None,
    ) -> None:
        want_paths("ImageDirectoryDataset", path=path)
        want_string("ImageDirectoryDataset", pattern=pattern)
        if not pattern or Path(pattern).is_absolute():
            raise ValueError(f"ImageDirectoryDataset: pattern must be relative to the folder, got {pattern!r}")
        if transform is not None:
            want_callables("ImageDirectoryDataset", transform=transform)
        self.transform = transform
        folder = Path(path)
        if not folder.is_dir():
            raise FileNotFoundError(f"ImageDirectoryDataset: path must be a folder, got {folder} (pattern {pattern!r})")
        found = (file for file in folder.glob(pattern) if not file.is_dir())
        self.paths = tuple(sorted(found, key=lambda file: file.relative_to(folder).as_posix()))
        if not self.paths:
            raise FileNotFoundError(f"ImageDirectoryDataset: no file in folder {folder} matches pattern {pattern!r}")

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        """Read one image.

        Args:
            index: integer in [-len, len); a negative index counts from the end, as in a list.

        Returns:
            (3, height, width), uint8, RGB; `zoo.data.pixels.decode_rgb` describes the conversion of other modes. With
            a `transform`, what that returns.

        Raises:
            IndexError: `index` is out of range.
            TypeError: `index` is not an integer.
            ValueError: the file is not an image, or 8-bit RGB cannot hold it; the message names the file.
            OSError: the file cannot be opened any more.
            RuntimeError: `transform` raised an error; the message names the file.
            ImportError: Pillow is not installed.
        """
        try:
            number, count = operator.index(index), len(self.paths)
        except TypeError as problem:
            raise TypeError(f"ImageDirectoryDataset: index must be an integer, got {type(index).__name__}") from problem
        if not -count <= number < count:
            raise IndexError(f"ImageDirectoryDataset: index must lie in [{-count}, {count}), got {number}")
        path = self.paths[number]
        origin = f"ImageDirectoryDataset: {path}"
        return transformed(decode_rgb(path.read_bytes(), origin), self.transform, origin)
