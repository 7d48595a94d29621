"""Measures how far the perturbed runs of one case stray from the oracle."""

from __future__ import annotations

import torch

from conformance.axes import Precision
from conformance.gates.budget import NOISE, SMOOTH_NOISE, TensorReference
from conformance.gates.distance import Distance, OracleTensor, farthest
from conformance.gates.sums import Sums, farthest_sums, sampled, sums_of
from conformance.oracle.evaluation import Evaluation, Question
from conformance.oracle.float64 import Oracle
from conformance.oracle.inputs import seeded
from conformance.oracle.nearest import Nearest
from conformance.oracle.rounding import KINKED_RUNS, RUNS, Rounding
from zoo.case import SpecError


class Spread:
    """How far the perturbed runs of one case stray from the oracle.

    Args:
        oracle: the oracle to run again.
        question: the question of the case.
        found: what the oracle returned for it.
        scale: the scale of the cotangents under float16.
        kinked: the model ran an op with a kink.
    """

    def __init__(self, oracle: Oracle, question: Question, found: Evaluation, scale: float, *, kinked: bool) -> None:
        self._oracle, self._question, self._found, self._kinked = oracle, question, found, kinked
        self._scale = scale
        self._truth = {name: t for name, t in found.tensors.items() if t is not None}
        self._measured = {name: OracleTensor(t) for name, t in self._truth.items()}
        self._spread: dict[str, dict[str, Distance]] = {name: {} for name in self._measured}
        self._settled: dict[str, dict[str, torch.Tensor]] = {name: {} for name in self._measured}
        self._sums: dict[str, dict[str, Sums]] = {name: {} for name in self._measured}
        self._exact = dict.fromkeys(self._measured, True)

    def run(self, precision: Precision) -> None:
        """Run the oracle again, several times, with the roundings of one precision perturbed.

        At a low precision there is a run that is rounded to nearest too: equal numbers have equal roundings, which do
        not average out over them as perturbations do.

        Raises:
            SpecError: a tensor changes its shape with rounding.
        """
        strayed: dict[str, list[Distance]] = {name: [] for name in self._measured}
        lost = dict.fromkeys(self._measured, 0)  # runs with an infinity or NaN where the oracle has a number
        runs, noise = RUNS, NOISE
        if precision.is_low:
            runs, noise = (KINKED_RUNS, NOISE) if self._kinked else (RUNS, SMOOTH_NOISE)
        modes = [
            Rounding(precision, seeded("probe", *self._question.seed, precision.name, run), noise, self._scale)
            for run in range(runs)
        ]
        for mode in [*modes, *([Nearest(precision, self._scale)] if precision.low_dtype else [])]:
            perturbed = self._oracle.evaluate(self._question, mode)
            for name, measured in self._measured.items():
                tensor = perturbed.tensors.get(name)
                if tensor is None or tuple(tensor.shape) != measured.shape:
                    raise SpecError(f"case {self._question.seed[-1]}: {name} changes shape with rounding")
                strayed[name].append(measured.distance(tensor))
                if precision.low_dtype and measured.is_rounded:
                    self._add_sums(name, precision, tensor)
                lost[name] += not measured.stays_finite(tensor)
                self._exact[name] &= _same_numbers(tensor, self._truth[name])
                if not measured.is_rounded:
                    equal = tensor == self._truth[name]
                    self._settled[name][precision.name] = equal & self._settled[name].get(precision.name, equal)
        for name, distances in strayed.items():
            if 2 * lost[name] > len(distances):  # rounding decides whether there is a number
                self._spread[name][precision.name] = self._measured[name].without_bound()
            else:
                self._spread[name][precision.name] = farthest(distances)

    def _add_sums(self, name: str, precision: Precision, tensor: torch.Tensor) -> None:
        before = self._sums[name].get(precision.name)
        sums = sums_of([sampled(tensor)], [sampled(self._truth[name])])
        self._sums[name][precision.name] = farthest_sums(before, sums)

    def references(self) -> dict[str, TensorReference | None]:
        """The reference of every tensor, by name; None for a tensor that the oracle gave as None."""
        return {name: self._reference(name) for name in self._found.tensors}

    def _reference(self, name: str) -> TensorReference | None:
        if name not in self._measured:
            return None
        return TensorReference(
            self._measured[name],
            self._spread[name],
            self._exact[name],
            self._settled[name],
            self._kinked,
            self._scale if "gradient of" in name else 1.0,
            self._sums[name],
        )


def _same_numbers(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape are equal, where NaN equals NaN and a zero has no sign."""
    return a.dtype == b.dtype and bool(((a == b) | (a.isnan() & b.isnan())).all())
