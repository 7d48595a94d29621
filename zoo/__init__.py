"""Reference implementations of PyTorch models, ops and custom Functions, each with its own contract."""

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
