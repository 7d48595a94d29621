"""Data sets of images, from a folder and from tar archives. They need Pillow, the extra `images`."""

from zoo.data.image_directory import ImageDirectoryDataset
from zoo.data.tar_images import TarImage, TarImageDataset
from zoo.data.transforms import ResizeCenterCrop

__all__ = ["ImageDirectoryDataset", "ResizeCenterCrop", "TarImage", "TarImageDataset"]
