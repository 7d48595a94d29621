"""Runs models in every mode, precision and device, and compares the results with a float64 oracle."""

from conformance.axes import Prepared, register_mode
from conformance.errors import NotProvenError, UsageError

__all__ = ["NotProvenError", "Prepared", "UsageError", "register_mode"]
