"""Holds the models of this package to their float64 results, one item for each mode and precision."""

import pytest
import torch
from tiny_lm import Block, SquaredReLU

TOKENS = (2, 6, 16)  # batch, tokens, width


def test_squared_relu(conformance):
    conformance.check(SquaredReLU, torch.randn(4, 16))


def test_block(conformance):
    conformance.check(Block(width=16, heads=2), torch.randn(TOKENS))


@pytest.mark.conformance(modes="scripted")
def test_a_saved_block(conformance, tmp_path):
    path = tmp_path / "block.pt"
    torch.jit.script(Block(width=16, heads=2).eval()).save(path)
    conformance.check(path, torch.randn(TOKENS))
