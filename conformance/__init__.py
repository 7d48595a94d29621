"""Runs models in every mode, precision and device, and compares the results with a float64 oracle."""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from conformance.axes import Prepared, register_mode
    from conformance.commands.checking import NotConformingError, Report
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
    "NotConformingError": "conformance.commands.checking",
    "Report": "conformance.commands.checking",
    "check": "conformance.own.check",
    "ResultDtypes": "conformance.cell.proofs",
    "Runs": "conformance.cell.proofs",
    "register_backend": "conformance.cell.proofs",
}
NEED_TORCH = ("check", "ResultDtypes", "Runs", "register_backend")


def __getattr__(name: str) -> "Any":
    """A public name, imported when it is first used.

    So this package imports nothing itself: `python -m conformance` imports it while the working folder still comes
    first on `sys.path`.
    """
    import importlib  # noqa: PLC0415

    if name in NEED_TORCH:
        return getattr(_with_torch(HOMES[name]), name)
    if name in HOMES:
        return getattr(importlib.import_module(HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _with_torch(home: str) -> "Any":
    """A module that imports torch.

    Raises:
        UsageError: this Python or this torch is not supported, or torch does not import.
    """
    import importlib  # noqa: PLC0415

    from conformance import errors, torch_versions  # noqa: PLC0415

    complaint = torch_versions.complaint()
    if complaint:
        raise errors.UsageError(complaint)
    try:
        return importlib.import_module(home)
    except Exception as problem:
        complaint = torch_versions.complaint_about_import()
        if complaint:
            raise errors.UsageError(complaint) from problem
        raise


def __dir__() -> "list[str]":
    """The public names."""
    return __all__
