"""Families of `nn.Module`s, one per file, each with its specs."""

from zoo.models.checkerboard import Checkerboard, checker, grid, scripted_checkerboard
from zoo.models.clipped_relu import Clip, ClippedReLU, clipped_layer
from zoo.models.conv_bn import ConvNorm, FusedConvNorm, ImageClassifier
from zoo.models.line import Affine, Line
from zoo.models.merge import Merge, MergeTiled
from zoo.models.mlp import mlp
from zoo.models.quadratic import Quadratic

__all__ = [
    "Affine",
    "Checkerboard",
    "Clip",
    "ClippedReLU",
    "ConvNorm",
    "FusedConvNorm",
    "ImageClassifier",
    "Line",
    "Merge",
    "MergeTiled",
    "Quadratic",
    "checker",
    "clipped_layer",
    "grid",
    "mlp",
    "scripted_checkerboard",
]
