"""Custom `autograd.Function`s, one per file, each with a twin that is a custom operator."""

from zoo.functions.batch_norm2d import BatchNorm2d, BatchNorm2dBackward, batch_norm2d, batch_norm2d_op
from zoo.functions.conv2d import Conv2d, Conv2dBackward, conv2d, conv2d_op
from zoo.functions.cube import Cube, CubeBackward, cube, cube_op
from zoo.functions.cube_cpp import CubeCpp, CubeCppBackward, cube_cpp, missing_tools
from zoo.functions.cube_numpy import CubeNumpy, CubeNumpyBackward, cube_numpy
from zoo.functions.exp import Exp, exp, exp_op
from zoo.functions.exp_fp32 import exp_fp32, exp_fp32_op
from zoo.functions.fused_conv_bn2d import FusedConvBN2d, FusedConvBN2dBackward, fused_conv_bn2d, fused_conv_bn2d_op
from zoo.functions.matmul_amp import matmul_amp, matmul_amp_op
from zoo.functions.relu_amp import relu_amp, relu_amp_op
from zoo.functions.sinh import Sinh, sinh, sinh_op
from zoo.functions.square import Square, square, square_op

__all__ = [
    "BatchNorm2d",
    "BatchNorm2dBackward",
    "Conv2d",
    "Conv2dBackward",
    "Cube",
    "CubeBackward",
    "CubeCpp",
    "CubeCppBackward",
    "CubeNumpy",
    "CubeNumpyBackward",
    "Exp",
    "FusedConvBN2d",
    "FusedConvBN2dBackward",
    "Sinh",
    "Square",
    "batch_norm2d",
    "batch_norm2d_op",
    "conv2d",
    "conv2d_op",
    "cube",
    "cube_cpp",
    "cube_numpy",
    "cube_op",
    "exp",
    "exp_fp32",
    "exp_fp32_op",
    "exp_op",
    "fused_conv_bn2d",
    "fused_conv_bn2d_op",
    "matmul_amp",
    "matmul_amp_op",
    "missing_tools",
    "relu_amp",
    "relu_amp_op",
    "sinh",
    "sinh_op",
    "square",
    "square_op",
]
