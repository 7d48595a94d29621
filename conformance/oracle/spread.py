"""Measures how far the perturbed runs of one case stray from the oracle."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import torch

from conformance.axes import PRECISIONS, Precision
from conformance.evaluate.error_text import blame_noise
from conformance.evaluate.evaluation import Evaluation, Question
from conformance.evaluate.inputs import seed_generator
from conformance.float64.wide import Oracle
from conformance.gates.budget import NOISE, NOISY, SMOOTH_NOISE, TensorReference
from conformance.gates.distance import Distance, OracleTensor, farthest
from conformance.gates.sums import Sums, farthest_sums, sample, sums_of
from conformance.perturb.rounding import KINKED_RUNS, RUNS, Nearest, Rounding
from conformance.process.forks import Forks
from conformance.records.observation import TensorName
from zoo.case import SpecError

FLOAT32 = PRECISIONS["fp32"]
REMAINDER = 1 / 16  # of a tensor's norm: with a spread from here on in float32, it may be what cancellation leaves
WIDER = 2.0**16  # times as much noise tells, as much as bfloat16's
FAR = 64.0  # times a tensor's norm: noise of the terms that cancelled moves it farther; chaos was not seen to, by 8


@dataclass(frozen=True)
class _Seen:
    """What one perturbed run shows of a tensor.

    Attributes:
        distance: how far it strays.
        lost: it has an infinity or NaN where the oracle has a number.
        same: it has the oracle's numbers.
        equal: of a tensor that is not rounded, which elements are the oracle's.
        sums: of a rounded tensor at a low precision, the sums of its errors.
    """

    distance: Distance
    lost: bool
    same: bool
    equal: torch.Tensor | None
    sums: Sums | None


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
        self._measured = {name: OracleTensor(t) for name, t in found.tensors.items() if t is not None}

    def references(self, precisions: Sequence[Precision], forks: Forks) -> dict[TensorName, TensorReference | None]:
        """The reference of every tensor, by name; None for a tensor that the oracle gave as None.

        The oracle runs again, several times, with the roundings of each precision perturbed. At a low precision
        there is a run that is rounded to nearest too: equal numbers have equal roundings, which do not average out over
        them as perturbations do.

        Args:
            precisions: the precisions.
            forks: the forks that may run some of the runs.

        Raises:
            SpecError: a tensor changes its shape with rounding.
        """
        modes = [(precision, mode) for precision in precisions for mode in self._modes(precision)]
        runs = forks.results([partial(self._stray, precision, mode) for precision, mode in modes])
        by_precision = {
            precision.name: [run for run, (of, _) in zip(runs, modes, strict=True) if of is precision]
            for precision in precisions
        }
        known = {
            name: self._reference(name, {word: [run[name] for run in seen] for word, seen in by_precision.items()})
            for name in self._measured
        }
        for name in self._remainders(known) if FLOAT32 in precisions else ():
            known[name] = replace(known[name], is_remainder=True)
        return {name: known.get(name) for name in self._found.tensors}

    def _modes(self, precision: Precision) -> list[Rounding]:
        runs, noise = RUNS, NOISE
        if precision.is_low:
            runs, noise = (KINKED_RUNS, NOISE) if self._kinked else (RUNS, SMOOTH_NOISE)
        modes = [
            Rounding(precision, seed_generator("probe", *self._question.seed, precision.name, run), noise, self._scale)
            for run in range(runs)
        ]
        return [*modes, *([Nearest(precision, self._scale)] if precision.low_dtype else [])]

    def _stray(self, precision: Precision, mode: Rounding) -> dict[TensorName, _Seen]:
        """What one run shows of each tensor."""
        seen = {}
        with blame_noise(str(self._question.seed[-1]), precision):
            perturbed = self._oracle.evaluate(self._question, mode).tensors
        for name, measured in self._measured.items():
            tensor, truth = perturbed.get(name), measured.raw
            if tensor is None or tuple(tensor.shape) != measured.shape:
                raise SpecError(f"case {self._question.seed[-1]}: {name} changes shape with rounding")
            summed = precision.low_dtype and measured.is_rounded
            seen[name] = _Seen(
                measured.distance(tensor),
                not measured.stays_finite(tensor),
                _same_numbers(tensor, measured),
                None if measured.is_rounded else tensor == truth,
                sums_of([sample(tensor)], [sample(truth)]) if summed else None,
            )
        return seen

    def _reference(self, name: TensorName, runs: dict[str, list[_Seen]]) -> TensorReference:
        """What the runs show of a tensor, by precision name."""
        measured = self._measured[name]
        spread, settled, sums = {}, {}, {}
        for word, seen in runs.items():
            if 2 * sum(run.lost for run in seen) > len(seen):  # rounding decides whether there is a number
                spread[word] = measured.without_bound()
            else:
                spread[word] = farthest([run.distance for run in seen])
            if equal := [run.equal for run in seen if run.equal is not None]:
                settled[word] = reduce(torch.logical_and, equal)
            if summed := [run.sums for run in seen if run.sums is not None]:
                sums[word] = farthest_sums(summed)
        exact = all(run.same for seen in runs.values() for run in seen)
        scale = self._scale if name.is_gradient else 1.0
        return TensorReference(measured, spread, exact, settled, self._kinked, scale, sums)

    def _remainders(self, known: dict[TensorName, TensorReference]) -> list[TensorName]:
        """The gradients that are what is left where larger terms cancel.

        An example is the weight of a batch norm before another one: but for the eps of the second, its gradient is
        zero, and most of what float32 holds of it is noise of the terms that cancelled. Wider noise moves it by many
        times its own size. The gradients of a chaotic model have as much noise in float32, but wider noise moves them
        by a few times their size at most. Of an output, nobody wants only the size: it stays without power.
        """
        gradients = {name: reference for name, reference in known.items() if name.is_gradient}
        strayed = {name: (one.spread[FLOAT32.name].absolute, one.oracle.norm) for name, one in gradients.items()}
        near = [name for name, (far, norm) in strayed.items() if REMAINDER * norm <= far < NOISY * norm]
        if not near:
            return []
        noise = seed_generator("probe", *self._question.seed, FLOAT32.name, "wider")
        seen = self._stray(FLOAT32, Rounding(FLOAT32, noise, WIDER * NOISE, self._scale))
        far = [name for name in near if seen[name].distance.absolute >= FAR * known[name].oracle.norm]
        return [name for name in far if not seen[name].lost]


def _same_numbers(a: torch.Tensor, truth: OracleTensor) -> bool:
    """Whether a tensor has the oracle's shape and numbers, where NaN equals NaN and a zero has no sign."""
    b = truth.raw
    if truth.all_finite or a.dtype != b.dtype:
        return a.dtype == b.dtype and torch.equal(a, b)
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
