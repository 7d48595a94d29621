"""The matrix: model × mode × precision × device, judged against a float64 oracle."""

from conformance.axes import NotProvenError, Prepared, UsageError, register_mode

__all__ = ["NotProvenError", "Prepared", "UsageError", "register_mode"]
