"""Archives and images for the tests of data sets, and loaders that end with an error."""

import io
import tarfile

import pytest
from PIL import Image
from torch.utils.data import DataLoader


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


def end_of(dataset, workers, kind=ValueError):
    """The items that a loader gives before an error of a kind ends it, and the error; its workers are stopped.

    The garbage collector would need 5 seconds for each: it closes a worker's queue before it stops the worker.
    """
    items, found = iter(DataLoader(dataset, batch_size=None, num_workers=workers, timeout=60 * bool(workers))), []
    with pytest.raises(kind, match=r".") as caught:
        found.extend(items)
    if workers:
        items._shutdown_workers()
    return found, caught.value
