"""Image files as tensors: conversion of modes, errors, and Pillow as an optional dependency."""

import io
import subprocess
import sys

import pytest
import torch
from PIL import Image

from zoo.data.pixels import decode_rgb


def encoded(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def gradient():
    image = Image.new("RGB", (16, 12))
    image.putdata([(i % 256, (7 * i) % 256, (31 * i) % 256) for i in range(16 * 12)])
    return image


def test_channels_rows_and_columns_come_in_that_order():
    image = Image.new("RGB", (3, 2))
    image.putpixel((2, 1), (10, 20, 30))
    pixels = decode_rgb(encoded(image), "x")
    assert (pixels.shape, pixels.dtype, pixels.is_contiguous()) == ((3, 2, 3), torch.uint8, True)
    assert pixels[:, 1, 2].tolist() == [10, 20, 30]
    assert pixels.count_nonzero() == 3


@pytest.mark.parametrize(
    ("mode", "colour", "kind", "rgb"),
    [
        ("1", 1, "PNG", [255, 255, 255]),
        ("L", 7, "PNG", [7, 7, 7]),
        ("LA", (7, 0), "PNG", [7, 7, 7]),
        ("RGB", (1, 2, 3), "PNG", [1, 2, 3]),
        ("RGBA", (1, 2, 3, 0), "PNG", [1, 2, 3]),
        ("CMYK", (255, 0, 0, 0), "TIFF", [0, 255, 255]),
    ],
)
def test_modes_become_rgb(mode, colour, kind, rgb):
    assert decode_rgb(encoded(Image.new(mode, (1, 1), colour), kind), "x").flatten().tolist() == rgb


def test_a_palette_is_looked_up_and_its_transparency_dropped():
    image = Image.new("P", (2, 1), 1)
    image.putpalette([9, 8, 7, 1, 2, 3])
    image.putpixel((0, 0), 0)
    # a plain convert of Pillow would warn, which is an error in this test run
    pixels = decode_rgb(encoded(image, transparency=b"\x00\x80"), "x")
    assert pixels[:, 0].tolist() == [[9, 1], [8, 2], [7, 3]]


@pytest.mark.parametrize(("mode", "kind"), [("I;16", "PNG"), ("I;16", "TIFF"), ("I", "TIFF"), ("F", "TIFF")])
def test_values_beyond_8_bits_are_refused(mode, kind):
    with pytest.raises(
        ValueError, match=rf"^deep\.x: not readable as an image: mode {mode[0]}\S* does not fit 8 bits$"
    ):
        decode_rgb(encoded(Image.new(mode, (1, 1), 1000 if mode != "F" else 0.5), kind), "deep.x")


@pytest.mark.parametrize(("kind", "pixels_end"), [("PNG", 120), ("JPEG", 740), ("BMP", 630), ("GIF", 1000)])
def test_a_cut_image_is_an_error_unless_all_pixels_are_there(kind, pixels_end):
    whole = encoded(gradient(), kind)
    expected = decode_rgb(whole, "x")
    for length in range(len(whole)):
        try:
            pixels = decode_rgb(whole[:length], "cut.x")
        except ValueError as error:
            assert str(error).startswith("cut.x: not readable as an image: ")  # noqa: PT017 - many lengths, one test
        else:
            assert length >= pixels_end
            assert torch.equal(pixels, expected)


def test_data_that_is_not_bytes_is_refused():
    for bad, came in ((None, "NoneType"), ([1, 2], "list"), ("photo.png", "str")):
        with pytest.raises(TypeError, match=f"^decode_rgb: data must be bytes, got {came}$"):
            decode_rgb(bad, "x")


def test_without_pillow_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"needs Pillow: pip install pillow"):
        decode_rgb(b"", "x")


def test_importing_the_data_sets_does_not_import_pillow():
    code = "import sys, zoo.data; print('PIL' in sys.modules, zoo.data.__all__)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False ['ImageDirectoryDataset', 'ResizeCenterCrop', 'TarImage', 'TarImageDataset']"
