"""Runs models in every mode, precision and device, and compares the results with a float64 oracle."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from conformance.axes import Prepared, register_mode
    from conformance.commands.check_report import NotConformingError, Report
    from conformance.errors import NotProvenError, UsageError

__all__ = [
    "NotConformingError",
    "NotProvenError",
    "Prepared",
    "Report",
    "ResultDtypes",
    "Runs",
    "UsageError",
    "check",
    "register_backend",
    "register_mode",
]

HOMES = {
    "NotProvenError": "conformance.errors",
    "UsageError": "conformance.errors",
    "Prepared": "conformance.axes",
    "register_mode": "conformance.axes",
    "NotConformingError": "conformance.commands.check_report",
    "Report": "conformance.commands.check_report",
    "check": "conformance.own_model",  # imports torch
    "ResultDtypes": "conformance.cell.proofs",  # imports torch
    "Runs": "conformance.cell.proofs",  # imports torch
    "register_backend": "conformance.cell.proofs",  # imports torch
}


def __getattr__(name: str) -> "Any":
    """A public name, imported when it is first used.

    So this package imports nothing itself: `python -m conformance` imports it while the working folder still comes
    first on `sys.path`.
    """
    import importlib  # noqa: PLC0415

    if name in HOMES:
        return getattr(importlib.import_module(HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return __all__
