"""Every test of planning leaves no path entry behind; the modes that it registers are forgotten as everywhere."""

import sys

import pytest


@pytest.fixture(autouse=True)
def _tidy(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
