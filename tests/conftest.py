"""Keeps sources of runs out of pytest's imports; gives every test the same modes and random numbers in any order."""

from collections.abc import Iterator

import pytest
import torch

from conformance.axes import MODES

collect_ignore = [
    "specs",  # sources of conformance runs; they register modes
    "conformance/cuda/stand_in",  # turns CUDA into the CPU for the whole process
]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def modes() -> Iterator[None]:
    """Forget the modes that a test registers: `conformance.check` would judge them."""
    before = dict(MODES)
    yield
    MODES.clear()
    MODES.update(before)
