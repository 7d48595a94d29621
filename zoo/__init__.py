"""Reference implementations of PyTorch models, ops and custom Functions, each with its own contract."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.autograd_graph import draw_graph
    from zoo.candidate import Candidate
    from zoo.case import Call, Case
    from zoo.catalog import get_spec, is_model, list_models, register
    from zoo.claim import Claim
    from zoo.convention import Convention
    from zoo.create import create_model, create_model_and_inputs, example_inputs
    from zoo.dtypes import trace_dtypes
    from zoo.error_input import ErrorInput
    from zoo.errors import SpecError
    from zoo.expect import Expect
    from zoo.family import Family
    from zoo.scale import Scale
    from zoo.spec import Spec
    from zoo.trainer import Trainer

__all__ = [
    "Call",
    "Candidate",
    "Case",
    "Claim",
    "Convention",
    "ErrorInput",
    "Expect",
    "Family",
    "Scale",
    "Spec",
    "SpecError",
    "Trainer",
    "create_model",
    "create_model_and_inputs",
    "draw_graph",
    "example_inputs",
    "get_spec",
    "is_model",
    "list_models",
    "register",
    "trace_dtypes",
]

HOMES = {
    "Call": "case",
    "Candidate": "candidate",
    "Case": "case",
    "Claim": "claim",
    "Convention": "convention",
    "ErrorInput": "error_input",
    "Expect": "expect",
    "Family": "family",
    "Scale": "scale",
    "Spec": "spec",
    "SpecError": "errors",
    "Trainer": "trainer",
    "create_model": "create",
    "create_model_and_inputs": "create",
    "draw_graph": "autograd_graph",
    "example_inputs": "create",
    "get_spec": "catalog",
    "is_model": "catalog",
    "list_models": "catalog",
    "register": "catalog",
    "trace_dtypes": "dtypes",
}
FOLDERS = ("counterexamples", "data", "functions", "memory", "models", "ops", "probes", "training")


def __getattr__(name: str) -> Any:
    """A public name, or a folder of the zoo such as `zoo.models`, imported when it is first used.

    So `zoo.expect` can be imported where there is no torch.
    """
    if name in FOLDERS:
        return importlib.import_module(f"zoo.{name}")
    if name in HOMES:
        return getattr(importlib.import_module(f"zoo.{HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What is public: names and folders."""
    return sorted([*__all__, *FOLDERS])
