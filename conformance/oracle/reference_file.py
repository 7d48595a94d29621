"""The reference of a model, made once and kept in a file: what is known of each case before any candidate runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from conformance.axes import Precision
from conformance.gates.budget import TensorReference
from conformance.gates.distance import Distance, OracleTensor
from conformance.oracle import inputs, sampling, tensorfile
from conformance.oracle.evaluation import Evaluation, Question
from conformance.oracle.float64 import Oracle
from conformance.oracle.kinks import KinkWatch
from conformance.oracle.selfcheck import SelfCheck
from conformance.oracle.spread import Spread
from zoo.spec import Spec

COTANGENT = 4.0  # the size that random cotangents hardly ever pass
HEADROOM = 2.0**12  # scaled gradients stay this far inside float16's range of 2^16


@dataclass(frozen=True)
class CaseReference:
    """What is known of one case before any candidate runs.

    Attributes:
        picks: which draw the inputs are, or which rows of several.
        scale: of the cotangents under float16.
        tensors: by tensor name; None for a tensor that the oracle gave as None.
        requires_grad: of every output tensor.
    """

    picks: inputs.Picks
    scale: float
    tensors: dict[str, TensorReference | None]
    requires_grad: dict[str, bool]


ANY_DRAW = CaseReference(0, 1.0, {}, {})  # for what depends on shapes alone


def make(path: Path, spec: Spec, twin: Spec | None, seed: int, precisions: list[Precision]) -> None:
    """Write the reference of a model.

    Args:
        path: of the file.
        spec: of the model.
        twin: the spec of its twin, if it declares one.
        seed: of weights, inputs and cotangents.
        precisions: to find the spread of rounding for.

    Raises:
        NoOracleError, RandomError, SelfCheckError, SpecError: there is no oracle that can be trusted.
    """
    oracle = Oracle(spec, seed)
    check = SelfCheck(oracle, twin)
    cases: dict[str, Any] = {}
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
        cases[case.name] = {
            "picks": picks,
            "scale": _scale(found),
            "kinked": watch.kinked,
            "requires_grad": found.requires_grad,
            "tensors": spread.tree(),
        }
        size = sum(t.numel() for t in question.names.values() if isinstance(t, torch.Tensor))
        if size and (smallest is None or size < smallest[0]):
            smallest = (size, question, found)
    if spec.differentiable and spec.surrogate_gradient is None and smallest is not None:
        check.of_gradients(smallest[1], smallest[2])
    tensorfile.save(path, cases)


def _scale(found: Evaluation) -> float:
    """The power of two that lifts gradients as far as float16's range allows."""
    largest = COTANGENT
    for name, tensor in found.tensors.items():
        if "gradient of" in name and tensor is not None and tensor.numel():
            largest = max(largest, float(tensor.abs().nan_to_num(0.0, posinf=0.0).amax()))
    return float(2.0 ** max(-10, math.floor(math.log2(HEADROOM / largest))))


def load(path: Path) -> dict[str, CaseReference]:
    """Read what `make` wrote, by case name."""
    return {name: _case_reference(tree) for name, tree in tensorfile.load(path).items()}


def _case_reference(tree: dict[str, Any]) -> CaseReference:
    tensors: dict[str, TensorReference | None] = {}
    for name, saved in tree["tensors"].items():
        if saved is None:
            tensors[name] = None
            continue
        scale = tree["scale"] if "gradient of" in name else 1.0
        spread = {p: Distance.from_tree(d) for p, d in saved["spread"].items()}
        oracle = OracleTensor(saved["oracle"])
        tensors[name] = TensorReference(oracle, spread, saved["exact"], saved["settled"], tree["kinked"], scale)
    picks = tree["picks"] if isinstance(tree["picks"], int) else [(d, r) for d, r in tree["picks"]]
    return CaseReference(picks, tree["scale"], tensors, tree["requires_grad"])
