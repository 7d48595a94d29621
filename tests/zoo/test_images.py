"""Image files as tensors, a folder of them as a data set, and the crop that makes them one size."""

import io
import pickle
import re
import sys

import pytest
import torch
from archive_cases import end_of
from PIL import Image
from torch.utils.data import DataLoader

from zoo.data import ImageDirectoryDataset, ResizeCenterCrop
from zoo.data.pixels import decode_rgb

# decode_rgb


def encoded(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def colours():
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
    whole = encoded(colours(), kind)
    expected = decode_rgb(whole, "x")
    for length in range(len(whole)):
        try:
            pixels = decode_rgb(whole[:length], "cut.x")
        except ValueError as error:
            assert str(error).startswith("cut.x: not readable as an image: ")  # noqa: PT017 - many lengths, one test
        else:
            assert length >= pixels_end
            assert torch.equal(pixels, expected)


# ImageDirectoryDataset: its order, its index and its errors


@pytest.fixture
def folder(tmp_path):
    """Return a folder of images, written in an order that is not sorted; red is the number of an image."""
    for red, name in enumerate(["b.png", "a10.png", "sub/z.png", "a2.png", "a/b.png", "B.png", "c.bmp"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 2), (red, 0, 9)).save(tmp_path / name)
    return tmp_path


def names(dataset, folder):
    return [path.relative_to(folder).as_posix() for path in dataset.paths]


def reds(images):
    return [int(image[0, 0, 0]) for image in images]


def test_files_come_sorted_by_code_point_and_folders_do_not_count(folder, monkeypatch):
    listed = type(folder).glob
    for order in (list, reversed):  # whatever that of the file system
        with monkeypatch.context() as patched:
            patched.setattr(type(folder), "glob", lambda *args, order=order: order(list(listed(*args))))
            dataset = ImageDirectoryDataset(folder)
        assert names(dataset, folder) == ["B.png", "a10.png", "a2.png", "b.png", "c.bmp"]
        assert reds(dataset) == [5, 1, 3, 0, 6]


def test_the_pattern_selects_files_and_may_include_subfolders(folder):
    assert names(ImageDirectoryDataset(folder, "*.bmp"), folder) == ["c.bmp"]
    (folder / "a.png").touch()
    deep = ["B.png", "a.png", "a/b.png", "a10.png", "a2.png", "b.png", "sub/z.png"]  # a slash sorts as a slash
    assert names(ImageDirectoryDataset(str(folder), "**/*.png"), folder) == deep
    here, png = re.escape(str(folder)), r"\(pattern '\*\.png'\)"
    for path, pattern, message in (
        (folder / "nowhere", "*.png", rf"path must be a folder, got {here}/nowhere {png}"),
        (folder / "b.png", "*.png", rf"path must be a folder, got {here}/b\.png {png}"),
        (folder, "*.gif", rf"no file in folder {here} matches pattern '\*\.gif'"),
        (folder, "su*", "matches pattern 'su"),  # only a folder
    ):
        with pytest.raises(FileNotFoundError, match=message):
            ImageDirectoryDataset(path, pattern)


def test_without_pillow_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"needs Pillow: pip install pillow"):
        decode_rgb(b"", "x")


def test_the_index_works_as_in_a_list(folder):
    dataset = ImageDirectoryDataset(folder)
    assert len(dataset) == 5
    assert reds([dataset[0], dataset[4], dataset[-1], dataset[-5], dataset[torch.tensor(1)]]) == [5, 6, 6, 5, 1]
    assert (dataset[0].shape, dataset[0].dtype) == ((3, 2, 4), torch.uint8)
    for bad in (5, -6, 100):
        with pytest.raises(IndexError, match=rf"index must lie in \[-5, 5\), got {bad}$"):
            dataset[bad]
    for bad in (1.0, slice(2), "1"):
        line = rf"^ImageDirectoryDataset: index must be an integer, got {type(bad).__name__}$"
        with pytest.raises(TypeError, match=line):
            dataset[bad]


def test_an_unreadable_image_is_named_and_the_others_are_read(folder):
    (folder / "a2.png").write_bytes((folder / "a2.png").read_bytes()[:40])
    (folder / "notes.txt").write_text("no image")
    (folder / "lost.png").symlink_to(folder / "removed.png")
    dataset = ImageDirectoryDataset(folder)
    assert len(dataset) == 7
    with pytest.raises(ValueError, match=r"a2\.png: not readable as an image"):
        dataset[2]
    with pytest.raises(ValueError, match=r"notes\.txt: not readable as an image"):
        dataset[-1]
    with pytest.raises(FileNotFoundError, match=r"lost\.png"):
        dataset[-2]
    assert reds([dataset[0], dataset[3]]) == [5, 0]
    assert "a2.png: not readable as an image" in str(end_of(dataset, workers=1)[1])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_each_image_once_per_epoch(folder, workers):
    dataset = ImageDirectoryDataset(folder, "**/*")
    seed = torch.Generator().manual_seed(0)
    loader = DataLoader(
        dataset, batch_size=2, shuffle=True, generator=seed, num_workers=workers, persistent_workers=workers > 0
    )
    epochs = [[red for batch in loader for red in reds(batch)] for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [[0, 1, 2, 3, 4, 5, 6]] * 2
    assert epochs[0] != epochs[1]


def refuse_a2(image):
    if image[0, 0, 0] == 3:
        raise KeyError("no such class")
    return image


def test_a_transform_makes_the_item(folder):
    dataset = ImageDirectoryDataset(folder, transform=lambda image: (image[0, 0, 0].item(), image.dtype))
    assert list(dataset) == [(red, torch.uint8) for red in (5, 1, 3, 0, 6)]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_transform_names_the_file(folder, workers):
    images, error = end_of(ImageDirectoryDataset(folder, transform=refuse_a2), workers, RuntimeError)
    assert reds(images) == [5, 1]
    assert f"ImageDirectoryDataset: {folder / 'a2.png'}: transform raised KeyError: 'no such class'" in str(error)
    assert workers or isinstance(error.__cause__, KeyError)


@pytest.mark.parametrize("workers", [0, 2])
def test_images_of_two_sizes_are_batched_with_a_transform(folder, workers):
    for name, size in (("long.png", (30, 5)), ("tall.png", (3, 50))):
        Image.new("RGB", size, (9, 0, 9)).save(folder / name)
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        next(iter(DataLoader(ImageDirectoryDataset(folder), batch_size=7)))
    dataset = ImageDirectoryDataset(folder, transform=ResizeCenterCrop(8, 6))
    batches = list(DataLoader(dataset, batch_size=4, num_workers=workers))
    assert [tuple(batch.shape) for batch in batches] == [(4, 3, 8, 6), (3, 3, 8, 6)]
    assert [red for batch in batches for red in reds(batch)] == [5, 1, 3, 0, 6, 9, 9]


# ResizeCenterCrop, against Pillow


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floating_images_keep_their_dtype_and_are_not_rounded(dtype):
    image = torch.rand(1, 10, 20).to(dtype)
    found = ResizeCenterCrop(5, 5)(image)
    assert found.dtype == dtype
    exact = ResizeCenterCrop(5, 5)(image.double())
    torch.testing.assert_close(found.double(), exact, rtol=4 * torch.finfo(dtype).eps, atol=0)


def test_a_crop_does_not_carry_the_rest_of_the_image_and_leaves_one_of_the_size_unchanged():
    assert ResizeCenterCrop(2, 2)(torch.rand(1, 2, 100)).untyped_storage().nbytes() == 16
    image = torch.randint(0, 256, (3, 7, 9), dtype=torch.uint8)
    assert torch.equal(ResizeCenterCrop(7, 9)(image), image)
    assert pickle.loads(pickle.dumps(ResizeCenterCrop(4, 3))) == ResizeCenterCrop(4, 3)  # for a worker
