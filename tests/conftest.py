"""Keeps sources of runs out of pytest's imports; gives every test the same random numbers in any order."""

import pytest
import torch

collect_ignore = [
    "specs",  # sources of conformance runs; they register modes
    "conformance/cuda/stand_in",  # turns CUDA into the CPU for the whole process
]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
