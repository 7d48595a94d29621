"""Keeps sources of runs out of pytest's imports; gives every test the same modes and random numbers in any order."""

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
def built_in_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the modes that another test or its material has registered: `conformance.check` would judge them."""
    for name in [name for name, mode in MODES.items() if mode.prepare]:
        monkeypatch.delitem(MODES, name)
