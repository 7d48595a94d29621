"""Every test of planning begins with the built-in modes and leaves no path entry behind."""

import sys

import pytest

from conformance import axes


@pytest.fixture(autouse=True)
def _tidy(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = dict(axes.MODES)
    for name in [name for name, mode in before.items() if mode.prepare is not None]:
        del axes.MODES[name]
    yield
    axes.MODES.clear()
    axes.MODES.update(before)
