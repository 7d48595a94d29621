"""Reference implementations of PyTorch models, ops and custom Functions, each with its own contract."""

import importlib
from typing import Any

from zoo.autograd_graph import draw_graph
from zoo.candidate import Candidate
from zoo.case import Call, Case, SpecError
from zoo.catalog import get_spec, list_models, register
from zoo.claim import Claim
from zoo.convention import Convention
from zoo.create import create_model, example_inputs
from zoo.dtypes import trace_dtypes
from zoo.error_input import ErrorInput
from zoo.expect import Expect
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
    "Scale",
    "Spec",
    "SpecError",
    "Trainer",
    "create_model",
    "draw_graph",
    "example_inputs",
    "get_spec",
    "list_models",
    "register",
    "trace_dtypes",
]

FOLDERS = ("counterexamples", "data", "functions", "memory", "models", "ops", "probes", "training")


def __getattr__(name: str) -> Any:
    """A folder of the zoo, such as `zoo.models`, which is imported when it is first used."""
    if name in FOLDERS:
        return importlib.import_module(f"zoo.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What is public: names and folders."""
    return sorted([*__all__, *FOLDERS])
