"""Transforms of image tensors: the call with an error that names the image, and one that makes all images one size.

`torch.utils.data.default_collate` stacks the images of a batch, so they need one size. The usual way is the one of
ImageNet's evaluation: scale each image until it covers the size, and cut out the middle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from zoo.arguments import want_callables, want_sizes, want_string, want_tensors

AXES = 3  # channels, rows, columns


def transformed(image: Tensor, transform: Callable[[Tensor], Any] | None, origin: str) -> Any:
    """Return `transform(image)`, or `image` without a transform.

    Args:
        image: the argument of `transform`.
        transform: any callable, or None.
        origin: the name of the image in the error: the file's path, or shard and member.

    Raises:
        RuntimeError: `transform` raises an error; the message names the image and quotes the error.
        TypeError: an argument has the wrong type.

    >>> transformed(torch.zeros(3, 4, 4), torch.Tensor.reshape, "photo.png")
    Traceback (most recent call last):
    RuntimeError: photo.png: transform raised TypeError: reshape() missing 1 required positional arguments: "shape"
    """
    want_tensors("transformed", image=image)
    want_string("transformed", origin=origin)
    if transform is None:
        return image
    want_callables("transformed", transform=transform)
    try:
        return transform(image)
    except Exception as problem:
        raise RuntimeError(f"{origin}: transform raised {type(problem).__name__}: {problem}") from problem


@dataclass(frozen=True)
class ResizeCenterCrop:
    """Scale an image, with its aspect ratio, to the smallest size that covers the target; return the middle of that.

    The scaling is bilinear, with antialiasing if the image becomes smaller. It is the same for every image, so it can
    run in any worker.

    Attributes:
        height: rows of the result.
        width: columns of the result.

    Raises:
        TypeError: `height` or `width` is not an integer.
        ValueError: `height` or `width` is below 1.

    >>> crop = ResizeCenterCrop(2, 2)
    >>> crop(torch.tensor([[[0, 10, 20, 30], [0, 10, 20, 30]]], dtype=torch.uint8))
    tensor([[[10, 20],
             [10, 20]]], dtype=torch.uint8)
    >>> crop(torch.rand(3, 60, 40)).shape
    torch.Size([3, 2, 2])
    """

    height: int
    width: int

    def __post_init__(self) -> None:
        want_sizes("ResizeCenterCrop", height=self.height, width=self.width)

    def __call__(self, image: Tensor) -> Tensor:
        """Return the scaled and cropped image.

        Args:
            image: (channels, rows, columns), uint8 or floating, with at least one of each.

        Returns:
            (channels, height, width), contiguous; dtype and device of `image`. uint8 is rounded.

        Raises:
            TypeError: `image` is not a tensor, or has another dtype.
            ValueError: `image` has another shape.
        """
        want_tensors("ResizeCenterCrop", image=image)
        if image.dtype != torch.uint8 and not image.is_floating_point():
            raise TypeError(f"ResizeCenterCrop: image must be uint8 or floating, got {image.dtype}")
        if image.dim() != AXES or not image.numel():
            raise ValueError(
                f"ResizeCenterCrop: image must have shape (channels, rows, columns), got {tuple(image.shape)}"
            )
        rows, columns = image.shape[1:]
        scale = max(self.height / rows, self.width / columns)
        covering = max(self.height, round(rows * scale)), max(self.width, round(columns * scale))
        values = image.to(torch.promote_types(image.dtype, torch.float32))
        scaled = interpolate(values.unsqueeze(0), covering, mode="bilinear", antialias=True).squeeze(0)
        top, left = (covering[0] - self.height) // 2, (covering[1] - self.width) // 2
        middle = scaled[:, top : top + self.height, left : left + self.width]
        return (middle if image.is_floating_point() else middle.round()).to(image.dtype).contiguous()
