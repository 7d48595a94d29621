"""The reference of a model, made once in a process of its own: oracle, trial, and the probes' spread.

It ends in a file that all cells of the model read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from conformance import evaluation, inputs, sampling, tensorfile
from conformance.axes import PRECISIONS, Precision
from conformance.budget import NOISE, SMOOTH_NOISE, Bounds
from conformance.discrepancy import Distance, Yardstick, farthest
from conformance.evaluation import Answer, Question
from conformance.failures import is_out_of_memory, one_line
from conformance.kinks import KinkWatch
from conformance.oracle import NoOracleError, Oracle
from conformance.probes import KINKED_RUNS, RUNS, Rounding
from conformance.sources import Home
from conformance.trial import RandomError, Trial, TrialError
from zoo.case import SpecError
from zoo.spec import Spec

COTANGENT = 4.0  # the size random cotangents hardly ever pass
HEADROOM = 2.0**12  # scaled gradients stay this far inside float16's range of 2^16


@dataclass(frozen=True)
class CaseReference:
    """What is known of one case before any candidate runs.

    Attributes:
        picks: which draw the inputs are, or which rows of several.
        scale: of the cotangents under float16.
        bounds: by tensor name; None where the oracle gave None.
        requires_grad: of every output tensor.
    """

    picks: inputs.Picks
    scale: float
    bounds: dict[str, Bounds | None]
    requires_grad: dict[str, bool]


ANY_DRAW = CaseReference(0, 1.0, {}, {})  # for what depends on shapes alone


def make(task: dict[str, Any], enter_phase: Callable[[str], None]) -> dict[str, Any]:
    """Child process: write the reference of task["model"] to task["path"].

    Returns: {"ending": "ok"}, or "invalid", "random", "no oracle" or "out of memory" with a message.
    """
    enter_phase("reference")
    started = time.perf_counter()
    torch.set_num_threads(1)
    home = Home(**task["home"])
    try:
        spec = home.spec(task["model"])
        cases = _references(spec, home, task["seed"], [PRECISIONS[name] for name in task["precisions"]])
    except (TrialError, SpecError) as problem:
        return {"ending": "invalid", "message": str(problem)}
    except RandomError as problem:
        return {"ending": "random", "message": str(problem)}
    except NoOracleError as problem:
        return {"ending": "no oracle", "message": str(problem)}
    except Exception as problem:  # noqa: BLE001 -- the model's own code may raise anything
        ending = "out of memory" if is_out_of_memory(problem) else "invalid"
        return {"ending": ending, "message": f"{type(problem).__name__}: {one_line(problem)}"}
    tensorfile.save(Path(task["path"]), cases)
    return {"ending": "ok", "seconds": time.perf_counter() - started}


def _references(spec: Spec, home: Home, seed: int, precisions: list[Precision]) -> dict[str, Any]:
    oracle = Oracle(spec, seed)
    trial = Trial(oracle, home.spec(spec.twin) if spec.twin else None)
    found: dict[str, Any] = {}
    smallest: tuple[float, Question, Answer] | None = None
    for case in spec.cases:
        picks = sampling.choose(oracle, case)
        question = oracle.question(case, picks)
        with KinkWatch() as watch:
            answer = oracle.answer(question)
        trial.of_outputs(question, answer)
        spread = Spread(oracle, question, answer, kinked=watch.kinked)
        for precision in precisions:
            spread.probe(precision)
        found[case.name] = {
            "picks": picks,
            "scale": _scale(answer),
            "kinked": watch.kinked,
            "requires_grad": answer.requires_grad,
            "tensors": spread.tree(),
        }
        size = sum(t.numel() for t in question.names.values() if isinstance(t, torch.Tensor))
        if size and (smallest is None or size < smallest[0]):
            smallest = (size, question, answer)
    if spec.differentiable and spec.surrogate_gradient is None and smallest is not None:
        trial.of_gradients(smallest[1], smallest[2])
    return found


class Spread:
    """How far the probe runs of one case stray from the oracle's answer.

    Args:
        oracle, question, answer: what was asked and answered.
        kinked: the trace holds an op with a kink.
    """

    def __init__(self, oracle: Oracle, question: Question, answer: Answer, *, kinked: bool) -> None:
        self._oracle, self._question, self._answer, self._kinked = oracle, question, answer, kinked
        self._truth = {name: t for name, t in answer.tensors.items() if t is not None}
        self._sticks = {name: Yardstick(t) for name, t in self._truth.items()}
        self._spread: dict[str, dict[str, Any]] = {name: {} for name in self._sticks}
        self._settled: dict[str, dict[str, torch.Tensor]] = {name: {} for name in self._sticks}
        self._exact = dict.fromkeys(self._sticks, True)

    def probe(self, precision: Precision) -> None:
        """Run the probes of one precision.

        Raises:
            SpecError: a tensor changes its shape with rounding.
        """
        strayed: dict[str, list[Distance]] = {name: [] for name in self._sticks}
        runs, noise = RUNS, NOISE
        if precision.is_low:
            runs, noise = (KINKED_RUNS, NOISE) if self._kinked else (RUNS, SMOOTH_NOISE)
        for run in range(runs):
            generator = inputs.seeded("probe", *self._question.seed, precision.name, run)
            with Rounding(precision, generator, noise):
                probe = self._oracle.answer(self._question)
            for name, stick in self._sticks.items():
                tensor = probe.tensors.get(name)
                if tensor is None or tuple(tensor.shape) != stick.shape:
                    raise SpecError(f"case {self._question.seed[-1]}: {name} changes shape with rounding")
                strayed[name].append(stick.distance(tensor))
                self._exact[name] &= evaluation.same_bytes(tensor, self._truth[name])
                if not stick.is_rounded:
                    equal = tensor == self._truth[name]
                    self._settled[name][precision.name] = equal & self._settled[name].get(precision.name, equal)
        for name, distances in strayed.items():
            self._spread[name][precision.name] = farthest(distances).to_tree()

    def tree(self) -> dict[str, Any]:
        """Everything, by tensor name; None where the oracle gave none."""
        known = {
            name: {
                "oracle": tensor,
                "spread": self._spread[name],
                "exact": self._exact[name],
                "settled": self._settled[name],
            }
            for name, tensor in self._truth.items()
        }
        return {name: known.get(name) for name in self._answer.tensors}


def _scale(answer: Answer) -> float:
    """The power of two that lifts gradients as far as float16's range allows."""
    largest = COTANGENT
    for name, tensor in answer.tensors.items():
        if "gradient of" in name and tensor is not None and tensor.numel():
            largest = max(largest, float(tensor.abs().nan_to_num(0.0, posinf=0.0).amax()))
    return float(2.0 ** max(-10, math.floor(math.log2(HEADROOM / largest))))


def load(path: Path) -> dict[str, CaseReference]:
    """Read what `make` wrote, by case name."""
    return {name: _case_reference(tree) for name, tree in tensorfile.load(path).items()}


def _case_reference(tree: dict[str, Any]) -> CaseReference:
    bounds: dict[str, Bounds | None] = {}
    for name, saved in tree["tensors"].items():
        if saved is None:
            bounds[name] = None
            continue
        scale = tree["scale"] if "gradient of" in name else 1.0
        spread = {p: Distance.from_tree(d) for p, d in saved["spread"].items()}
        stick = Yardstick(saved["oracle"])
        bounds[name] = Bounds(stick, spread, saved["exact"], saved["settled"], tree["kinked"], scale)
    picks = tree["picks"] if isinstance(tree["picks"], int) else [(d, r) for d, r in tree["picks"]]
    return CaseReference(picks, tree["scale"], bounds, tree["requires_grad"])
