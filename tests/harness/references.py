"""What is known of a tensor before any candidate is seen, made without running a model."""

import torch

from conformance.axes import PRECISIONS
from conformance.gates.budget import TensorReference
from conformance.gates.criteria import criteria_for
from conformance.gates.distance import OracleTensor, farthest


def reference_of(oracle, noise=4.0, *, exact=False, settled=None, kinked=False, scale=1.0):
    """What eight perturbed runs leave whose every element strays by up to `noise` roundoffs."""
    generator = torch.Generator().manual_seed(0)
    measured = OracleTensor(oracle)
    spread = {}
    for name, precision in PRECISIONS.items():
        xi = [torch.rand(oracle.shape, generator=generator, dtype=torch.float64) * 2 - 1 for _ in range(8)]
        spread[name] = farthest(measured.distance(oracle * (1 + noise * precision.unit * x)) for x in xi)
    return TensorReference(measured, spread, exact=exact, settled=settled or {}, kinked=kinked, scale=scale)


def criteria_of(reference, precision, *, dtype="float32", baseline=None, accurate=False, bitwise=True):
    """What a cell of a precision, given by name, holds a tensor to."""
    return criteria_for(
        "typical",
        "output",
        reference,
        PRECISIONS[precision],
        dtype=dtype,
        baseline=baseline,
        accurate=accurate,
        bitwise=bitwise,
    )
