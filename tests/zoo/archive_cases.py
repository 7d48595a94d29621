"""Archives and images for the tests of data sets."""

import io
import tarfile

from PIL import Image


def write_tar(path, files, form=tarfile.GNU_FORMAT):
    """Write files, given as (name, data), to a tar archive; returns its path."""
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in files:
            header = tarfile.TarInfo(name)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
    return path


def picture(size, colour):
    """An image file of a size, (width, height), in one colour."""
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    return file.getvalue()


def numbered(number):
    """An image file of one pixel; its red and green encode a number."""
    return picture((1, 1), (number // 256, number % 256, 7))
