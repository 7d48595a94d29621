"""Decode an image file to a tensor of 8-bit RGB with Pillow, which is imported at the first image.

Source: "Effective PyTorch", which reads images with OpenCV. Its `cv2.imread` returns an array of shape
(height, width, 3), with the colours in the order blue, green, red, and None for a file that it cannot read. Here the
shape is (3, height, width), as torch's layers want it, the order is red, green, blue, and a file that cannot be read
raises an error. For a model that was trained on OpenCV's arrays, reverse the channels: `image.flip(0)`.
"""

from __future__ import annotations

import io

import torch
from torch import Tensor

from zoo.arguments import want_string


def decode_rgb(data: bytes, origin: str) -> Tensor:
    """Decode one image.

    The function does not apply an EXIF rotation and decodes only the first frame. It repeats grey in all three
    channels, replaces palette indices by their colours and drops transparency.

    Args:
        data: the content of the image file, in any format that Pillow reads.
        origin: the name of the image in error messages: the file's path, or shard and member.

    Returns:
        (3, height, width), uint8, contiguous.

    Raises:
        TypeError: `data` is not bytes, or `origin` no string.
        ValueError: the bytes are not an image or are damaged, or the values do not fit 8 bits (16-bit grey,
            32-bit integers, floats).
        ImportError: Pillow is not installed.

    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (2, 1), (255, 128, 0)).save(file, "PNG")
    >>> decode_rgb(file.getvalue(), "orange.png").tolist()
    [[[255, 255]], [[128, 128]], [[0, 0]]]
    """
    if not isinstance(data, bytes):
        raise TypeError(f"decode_rgb: data must be bytes, got {type(data).__name__}")
    want_string("decode_rgb", origin=origin)
    try:
        from PIL import Image  # noqa: PLC0415 - optional: the zoo imports without it
    except ImportError as missing:
        raise ImportError("decode_rgb: needs Pillow: pip install pillow") from missing
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode.startswith(("I", "F")):
                raise ValueError(f"mode {image.mode} does not fit 8 bits")  # noqa: TRY301 - the handler below adds the origin
            opaque = image.convert("RGBA") if "transparency" in image.info else image
            rgb = opaque.convert("RGB")
    except Exception as problem:  # damaged files raise OSError, SyntaxError, ValueError, struct.error and more
        raise ValueError(f"{origin}: not readable as an image: {problem}") from problem
    pixels = torch.frombuffer(bytearray(rgb.tobytes()), dtype=torch.uint8)
    return pixels.reshape(rgb.height, rgb.width, 3).permute(2, 0, 1).contiguous()
