"""A transformer block, and its activation with a backward of its own."""

from tiny_lm.block import Block
from tiny_lm.squared_relu import SquaredReLU

__all__ = ["Block", "SquaredReLU"]
