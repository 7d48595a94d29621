"""Runs models in every mode, precision and device, and compares the results with a float64 oracle."""

import importlib
from typing import Any

from conformance.axes import Prepared, register_mode
from conformance.errors import NotProvenError, UsageError

__all__ = ["NotProvenError", "Prepared", "ResultDtypes", "Runs", "UsageError", "register_mode"]

PROOFS = ("ResultDtypes", "Runs")


def __getattr__(name: str) -> Any:
    """The proofs, which import torch; they are loaded when they are first named, so that this package stays light."""
    if name in PROOFS:
        return getattr(importlib.import_module("conformance.cell.proofs"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
