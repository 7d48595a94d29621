"""Reference implementations of PyTorch models, ops and custom Functions, each with its own contract."""

from zoo.catalog import create_model, example_inputs, get_spec, list_models, register
from zoo.spec import Call, Case, Expect, Spec, SpecError

__all__ = [
    "Call",
    "Case",
    "Expect",
    "Spec",
    "SpecError",
    "create_model",
    "example_inputs",
    "get_spec",
    "list_models",
    "register",
]
