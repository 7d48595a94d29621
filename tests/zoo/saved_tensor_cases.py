"""Helpers for the tests of saved tensors: a network with a known number of saved bytes, and a way to run it."""

import pytest
import torch
from torch import nn

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
# torch reads .grad of every tensor that crosses a graph break
BREAKS = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


def leaf(*shape, device="cpu", dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=dtype).to(device).requires_grad_()


def perceptron(device="cpu", dtype=torch.float32):
    """Return a network; its hidden layer, 8 x 64 numbers, is the output of ReLU and the input of the second layer."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16)).to(device, dtype)


HIDDEN = 8 * 64


def within(context, fn):
    def called(*args):
        with context():
            return fn(*args)

    return called
