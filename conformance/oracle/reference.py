"""Makes the reference of a model: the oracle's tensors and their spread for each case, before any candidate runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from conformance.axes import Precision
from conformance.gates.budget import TensorReference
from conformance.oracle import inputs, sampling
from conformance.oracle.containers import NOTHING, Container
from conformance.oracle.evaluation import Evaluation, Question
from conformance.oracle.float64 import Oracle
from conformance.oracle.kinks import KinkWatch
from conformance.oracle.memory_sharing import Pair
from conformance.oracle.selfcheck import SelfCheck
from conformance.oracle.spread import Spread
from zoo.spec import Spec

COTANGENT = 4.0  # random cotangents are hardly ever larger
HEADROOM = 2.0**12  # the largest scaled gradient, well inside float16's range of 2^16


@dataclass(frozen=True)
class CaseReference:
    """The reference of one case, made before any candidate runs.

    Attributes:
        picks: the draw of the inputs, or the rows of several draws.
        scale: the scale of the cotangents under float16, a power of two.
        tensors: the reference of each tensor, by name; None for a tensor that the oracle gave as None.
        requires_grad: `requires_grad` of every output tensor, by name; a number that is no tensor has none.
        container: the containers of the outputs.
        shared: the pairs of an output and an input, parameter, buffer or other output that share memory.
    """

    picks: inputs.Picks
    scale: float
    tensors: dict[str, TensorReference | None]
    requires_grad: dict[str, bool]
    container: Container = NOTHING
    shared: frozenset[Pair] = frozenset()


ANY_DRAW = CaseReference(0, 1.0, {}, {})  # for work that depends on shapes alone


def make(spec: Spec, twin: Spec | None, seed: int, precisions: list[Precision]) -> dict[str, CaseReference]:
    """Make the reference of a model, by case name.

    Args:
        spec: the spec of the model.
        twin: the spec of its twin, if it declares one.
        seed: seed of weights, inputs and cotangents.
        precisions: the precisions for which the perturbed runs are made.

    Raises:
        NoOracleError, RandomError, SelfCheckError, SpecError: there is no oracle that can be trusted.
    """
    oracle = Oracle(spec, seed)
    check = SelfCheck(oracle, twin)
    cases: dict[str, CaseReference] = {}
    smallest: tuple[float, Question, Evaluation] | None = None
    for case in spec.cases:
        picks = sampling.choose(oracle, case)
        question = oracle.question(case, picks)
        with KinkWatch() as watch:
            found = oracle.evaluate(question)
        check.of_outputs(question, found)
        spread = Spread(oracle, question, found, kinked=watch.kinked)
        for precision in precisions:
            spread.run(precision)
        scale = _scale(found)
        tensors = spread.references(scale)
        cases[case.name] = CaseReference(picks, scale, tensors, found.requires_grad, found.container, found.shared)
        size = sum(t.numel() for t in question.names.values() if isinstance(t, torch.Tensor))
        if size and (smallest is None or size < smallest[0]):
            smallest = (size, question, found)
    if spec.differentiable and spec.surrogate_gradient is None and smallest is not None:
        check.of_gradients(smallest[1], smallest[2])
    return cases


def _scale(found: Evaluation) -> float:
    """The largest power of two with which the scaled gradients stay within `HEADROOM`, but at least 2^-10."""
    largest = COTANGENT
    for name, tensor in found.tensors.items():
        if "gradient of" in name and tensor is not None and tensor.numel():
            largest = max(largest, float(tensor.abs().nan_to_num(0.0, posinf=0.0).amax()))
    return float(2.0 ** max(-10, math.floor(math.log2(HEADROOM / largest))))
