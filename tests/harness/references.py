"""What is known of a tensor before any candidate is seen, made without running a model."""

from dataclasses import replace

import torch

from conformance.axes import PRECISIONS
from conformance.gates.budget import TensorReference, criteria_for
from conformance.gates.distance import OracleTensor, farthest
from conformance.records.cell import OUTPUT


def reference_of(oracle, noise=4.0, *, kinked=False, scale=1.0):
    """What eight perturbed runs leave whose every element strays by up to `noise` roundoffs."""
    generator = torch.Generator().manual_seed(0)
    measured = OracleTensor(oracle)
    spread = {}
    for name, precision in PRECISIONS.items():
        xi = [torch.rand(oracle.shape, generator=generator, dtype=torch.float64) * 2 - 1 for _ in range(8)]
        spread[name] = farthest(measured.distance(oracle * (1 + noise * precision.unit * x)) for x in xi)
    return TensorReference(measured, spread, exact=False, settled={}, kinked=kinked, scale=scale)


def exact_reference(tensor):
    """What perturbed runs leave of a tensor that no rounding touches."""
    known = reference_of(tensor.double(), noise=0.0)
    return replace(known, oracle=OracleTensor(tensor), exact=True)


def criteria_of(reference, precision, **fields):
    """What a cell of a precision, given by name, holds a tensor to."""
    others = {"dtype": "float32", "baseline": None, "accurate": False, "bitwise": True, **fields}
    return criteria_for("typical", OUTPUT, reference, PRECISIONS[precision], **others)
