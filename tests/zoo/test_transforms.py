"""ResizeCenterCrop against Pillow, and its errors."""

import pickle
import re

import pytest
import torch
from PIL import Image

from zoo.data import ResizeCenterCrop
from zoo.data.transforms import transformed


def pillow(image, height, width):
    """The same with Pillow, whose bilinear filter widens with the reduction too."""
    rows, columns = image.shape[1:]
    scale = max(height / rows, width / columns)
    size = max(width, round(columns * scale)), max(height, round(rows * scale))
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    raw = bytes(image.permute(1, 2, 0).flatten().tolist())
    scaled = Image.frombytes("RGB", (columns, rows), raw).resize(size, Image.Resampling.BILINEAR)
    crop = scaled.crop((left, top, left + width, top + height))
    return torch.frombuffer(bytearray(crop.tobytes()), dtype=torch.uint8).reshape(height, width, 3).permute(2, 0, 1)


@pytest.mark.parametrize("size", [(40, 60), (60, 40), (8, 8), (7, 90), (3, 5), (1, 1), (41, 23)])
@pytest.mark.parametrize("target", [(8, 8), (16, 5), (1, 20)])
def test_it_agrees_with_pillow(size, target):
    image = torch.randint(0, 256, (3, *size), dtype=torch.uint8)
    found = ResizeCenterCrop(*target)(image)
    assert (found.shape, found.dtype, found.is_contiguous()) == ((3, *target), torch.uint8, True)
    assert (found.int() - pillow(image, *target).int()).abs().max() <= 1  # each rounds in its own way


def test_an_image_of_the_size_is_unchanged():
    image = torch.randint(0, 256, (3, 7, 9), dtype=torch.uint8)
    assert torch.equal(ResizeCenterCrop(7, 9)(image), image)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floating_images_keep_their_dtype_and_are_not_rounded(dtype):
    image = torch.rand(1, 10, 20).to(dtype)
    found = ResizeCenterCrop(5, 5)(image)
    assert found.dtype == dtype
    exact = ResizeCenterCrop(5, 5)(image.double())
    torch.testing.assert_close(found.double(), exact, rtol=4 * torch.finfo(dtype).eps, atol=0)


def test_it_travels_to_a_worker():
    crop = ResizeCenterCrop(4, 3)
    assert pickle.loads(pickle.dumps(crop)) == crop


def test_a_crop_does_not_carry_the_rest_of_the_image():
    assert ResizeCenterCrop(2, 2)(torch.rand(1, 2, 100)).untyped_storage().nbytes() == 16


@pytest.mark.parametrize(
    ("arguments", "error", "line"),
    [
        ((0, 2), ValueError, "height must be at least 1, got 0"),
        ((2, -3), ValueError, "width must be at least 1, got -3"),
        ((2.0, 2), TypeError, "height must be an integer, got float"),
        ((2, None), TypeError, "width must be an integer, got None"),
        (([2, 2], 2), TypeError, "height must be an integer, got list"),
    ],
)
def test_sizes_that_make_no_sense_are_named(arguments, error, line):
    with pytest.raises(error, match=f"^ResizeCenterCrop: {re.escape(line)}$"):
        ResizeCenterCrop(*arguments)


@pytest.mark.parametrize(
    ("image", "error", "line"),
    [
        ([[[1.0]]], TypeError, "image must be a tensor, got list"),
        (None, TypeError, "image must be a tensor, got None"),
        (torch.ones(1, 2, 2, dtype=torch.int64), TypeError, "image must be uint8 or floating, got torch.int64"),
        (torch.ones(2, 2), ValueError, "image must have shape (channels, rows, columns), got (2, 2)"),
        (torch.ones(3, 0, 2), ValueError, "image must have shape (channels, rows, columns), got (3, 0, 2)"),
    ],
)
def test_what_is_not_an_image_is_refused(image, error, line):
    with pytest.raises(error, match=f"^ResizeCenterCrop: {re.escape(line)}$"):
        ResizeCenterCrop(2, 2)(image)


def test_the_error_of_a_transform_names_the_image():
    image = torch.zeros(3, 2, 2)
    assert transformed(image, None, "x") is image
    with pytest.raises(RuntimeError, match=r"^a\.png: transform raised ZeroDivisionError: division by zero$") as caught:
        transformed(image, lambda _: 1 / 0, "a.png")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
