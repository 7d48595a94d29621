"""Fixtures that make archives and images."""

import io
import tarfile

import pytest
from PIL import Image


@pytest.fixture(scope="session")
def write_tar():
    """Return a function that writes files, given as (name, data), to a tar archive and returns its path."""

    def write(path, files, form=tarfile.GNU_FORMAT):
        with tarfile.open(path, "w", format=form) as tar:
            for name, data in files:
                header = tarfile.TarInfo(name)
                header.size = len(data)
                tar.addfile(header, io.BytesIO(data))
        return path

    return write


@pytest.fixture(scope="session")
def numbered():
    """Return a function that makes an image file of one pixel; its red and green encode a number."""

    def png(number):
        file = io.BytesIO()
        Image.new("RGB", (1, 1), (number // 256, number % 256, 7)).save(file, "PNG")
        return file.getvalue()

    return png


@pytest.fixture(scope="session")
def picture():
    """Return a function that makes an image file of a size, (width, height), in one shade of red."""

    def png(size, red):
        file = io.BytesIO()
        Image.new("RGB", size, (red, 0, 9)).save(file, "PNG")
        return file.getvalue()

    return png
