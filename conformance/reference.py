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

from conformance import evaluation, inputs, oracle, tensorfile
from conformance.axes import PRECISIONS, Precision
from conformance.budget import Bounds
from conformance.discrepancy import Distance, Yardstick, farthest
from conformance.evaluation import Answer, Question
from conformance.failures import is_out_of_memory, one_line
from conformance.kinks import MARGIN, KinkWatch, flipped, tossed
from conformance.probes import KINKED_RUNS, RUNS, Rounding
from conformance.sources import Home
from zoo import catalog
from zoo.spec import Call, Case, Spec, SpecError

REDRAWS = 4  # of a case in which float32's rounding flips a unit
DRAWS = 16  # batches to pick rows from that stay away from kinks
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


def prepared_model(spec: Spec, seed: int, build: Callable[..., Any] | None = None) -> Any:
    """A model as every run of a cell or reference wants it: seeded, on representable weights."""
    torch.manual_seed(seed)
    model = (build or spec.build)()
    if spec.initialise is not None:
        with torch.no_grad():
            spec.initialise(model)
    inputs.round_weights(model)
    return model


def make(task: dict[str, Any], enter_phase: Callable[[str], None]) -> dict[str, Any]:
    """Child process: write the reference of task["model"] to task["path"].

    Returns: {"ending": "ok"}, or "invalid", "random", "no oracle" or "out of memory" with a message.
    """
    enter_phase("reference")
    started = time.perf_counter()
    torch.set_num_threads(1)
    spec = Home(**task["home"]).spec(task["model"])
    try:
        cases = _references(spec, task["seed"], [PRECISIONS[name] for name in task["precisions"]])
    except (oracle.TrialError, SpecError) as problem:
        return {"ending": "invalid", "message": str(problem)}
    except oracle.RandomError as problem:
        return {"ending": "random", "message": str(problem)}
    except _NoOracleError as problem:
        return {"ending": "no oracle", "message": str(problem)}
    except Exception as problem:  # noqa: BLE001 -- the model's own code may raise anything
        ending = "out of memory" if is_out_of_memory(problem) else "invalid"
        return {"ending": ending, "message": f"{type(problem).__name__}: {one_line(problem)}"}
    tensorfile.save(Path(task["path"]), cases)
    return {"ending": "ok", "seconds": time.perf_counter() - started}


class _NoOracleError(RuntimeError):
    """The model runs in float32 and not in float64."""


def _references(spec: Spec, seed: int, precisions: list[Precision]) -> dict[str, Any]:
    model = prepared_model(spec, seed)
    wide = oracle.wide_model(model)
    state = evaluation.state_of(wide)
    found: dict[str, Any] = {}
    smallest: tuple[float, Question, Answer] | None = None
    for case in spec.cases:
        pick = _away_from_kinks if case.independent_samples else _off_the_kinks
        picks = pick(wide, case, seed, state)
        question, answer, tree = _one_case(model, wide, spec, case, seed, state, precisions, picks)
        found[case.name] = tree
        size = sum(t.numel() for t in question.names.values() if isinstance(t, torch.Tensor))
        if size and (smallest is None or size < smallest[0]):
            smallest = (size, question, answer)
    if spec.differentiable and spec.surrogate_gradient is None and smallest is not None:
        evaluation.reset(wide, state)
        oracle.check_gradients(wide, spec, smallest[1], state, smallest[2])
    return found


def _one_case(  # noqa: PLR0913 -- everything a case is made of
    model: Any,
    wide: Any,
    spec: Spec,
    case: Case,
    seed: int,
    state: dict[str, torch.Tensor],
    precisions: list[Precision],
    picks: inputs.Picks,
) -> tuple[Question, Answer, dict[str, Any]]:
    question = question_of(spec, case, seed, picks, oracle.wide_call, wide)
    try:
        answer, watch = _watched_answer(wide, spec, question, state)
    except SpecError:
        raise
    except RuntimeError as problem:
        _explain(problem, spec, case, seed, model)
        raise
    oracle.try_oracle(wide, spec, question, state, answer)
    if spec.twin:
        twin = oracle.wide_model(prepared_model(catalog.get_spec(spec.twin), seed))
        oracle.check_twin(twin, spec, question, state, answer)
    return question, answer, _bounds_tree(wide, spec, question, state, answer, watch, precisions, picks)


def question_of(  # noqa: PLR0913 -- one question, asked in three places
    spec: Spec,
    case: Case,
    seed: int,
    picks: inputs.Picks,
    convert: Callable[[Any], Any],
    model: Any,
) -> Question:
    """The question of one case, its inputs drawn afresh and taken through `convert`."""
    call = convert(inputs.draw(case, seed, picks))
    names = inputs.named_inputs(model, call)
    return Question(
        call, names, (seed, case.name), spec.differentiable, spec.twice_differentiable, spec.mutates
    )


def _explain(problem: RuntimeError, spec: Spec, case: Case, seed: int, model: Any) -> None:
    """Tell a model that cannot run in float64 from one that cannot run at all."""
    question = question_of(spec, case, seed, 0, lambda call: call, model)
    try:
        evaluation.evaluate(model, model, question)
    except Exception:  # noqa: BLE001 -- it fails in float32 too, so the first problem stands
        raise SpecError(f"case {case.name}: {type(problem).__name__}: {one_line(problem)}") from problem
    raise _NoOracleError(f"case {case.name} runs in float32 but not in float64: {one_line(problem)}") from problem


def _away_from_kinks(
    wide: Any, case: Case, seed: int, state: dict[str, torch.Tensor]
) -> inputs.Picks:
    """(draw, row) pairs that keep the margin, topped up with the best of the others."""
    candidates: list[tuple[float, int, int]] = []
    rows = 0
    for draw in range(DRAWS):
        call = inputs.draw_batch(case, seed, draw)
        rows = inputs.row_count(call)
        evaluation.reset(wide, state)
        with KinkWatch(rows) as watch, oracle.widened(), torch.no_grad():
            wide_call = oracle.wide_call(call)
            wide(*wide_call.args, **wide_call.kwargs)
        candidates += [(min(m, MARGIN), draw, row) for row, m in enumerate(watch.margins.tolist())]
        if not watch.kinked:
            return 0
        if sum(margin >= MARGIN for margin, _, _ in candidates) >= rows:
            break
    best = sorted(candidates, key=lambda c: -c[0])[:rows]
    return [(draw, row) for _, draw, row in best] or 0


def _off_the_kinks(wide: Any, case: Case, seed: int, state: dict[str, torch.Tensor]) -> inputs.Picks:
    """The first of a few draws in which float32's rounding flips no unit, or the one with the fewest flips.

    Raises:
        TrialError: in every draw numbers sit on a kink exactly, but for rounding.
    """
    counts: list[tuple[int, int]] = []
    for draw in range(REDRAWS):
        call = oracle.wide_call(inputs.draw_batch(case, seed, draw))
        watch = _watched_forward(wide, call, state)
        if not watch.kinked:
            return 0
        flips, tosses = 0, 0
        for run in range(RUNS):
            with Rounding(PRECISIONS["fp32"], inputs.seeded("kink", seed, case.name, draw, run)):
                probe = _watched_forward(wide, call, state)
            flips, tosses = flips + flipped(watch, probe), tosses + tossed(watch, probe)
        if not flips:
            return draw
        if not tosses:
            counts.append((flips, draw))
    if not counts:
        raise oracle.TrialError(
            f"case {case.name}: numbers sit exactly on a kink (relu, abs, clamp) but for rounding, so their "
            "gradients are a coin toss even in float64; move the inputs off the tie"
        )
    return min(counts)[1]


def _watched_forward(wide: Any, call: Call, state: dict[str, torch.Tensor]) -> KinkWatch:
    evaluation.reset(wide, state)
    with KinkWatch() as watch, oracle.widened(), torch.no_grad():
        wide(*call.args, **call.kwargs)
    return watch


def _watched_answer(
    wide: Any, spec: Spec, question: Question, state: dict[str, torch.Tensor]
) -> tuple[Answer, KinkWatch]:
    with KinkWatch() as watch:
        answer = oracle.answer(wide, spec, question, state)
    return answer, watch


def _bounds_tree(  # noqa: PLR0913 -- everything a case is made of
    wide: Any,
    spec: Spec,
    question: Question,
    state: dict[str, torch.Tensor],
    answer: Answer,
    watch: KinkWatch,
    precisions: list[Precision],
    picks: inputs.Picks,
) -> dict[str, Any]:
    sticks = {name: Yardstick(t) for name, t in answer.tensors.items() if t is not None}
    spread: dict[str, dict[str, Any]] = {name: {} for name in sticks}
    settled: dict[str, dict[str, torch.Tensor]] = {name: {} for name in sticks}
    exact = dict.fromkeys(sticks, True)
    for precision in precisions:
        strayed: dict[str, list[Distance]] = {name: [] for name in sticks}
        many = watch.kinked and precision.autocast
        for run in range(KINKED_RUNS if many else RUNS):
            generator = inputs.seeded("probe", *question.seed, precision.name, run)
            with Rounding(precision, generator):
                probe = oracle.answer(wide, spec, question, state)
            for name, stick in sticks.items():
                tensor = probe.tensors.get(name)
                if tensor is None or tuple(tensor.shape) != stick.shape:
                    raise SpecError(f"case {question.seed[-1]}: {name} changes shape with rounding")
                strayed[name].append(stick.distance(tensor))
                same = evaluation.same_bytes(tensor, answer.tensors[name])  # type: ignore[arg-type]
                exact[name] = exact[name] and same
                if not stick.is_rounded:
                    equal = tensor == answer.tensors[name]
                    settled[name][precision.name] = settled[name].get(precision.name, True) & equal  # type: ignore[operator]
        for name in sticks:
            spread[name][precision.name] = farthest(strayed[name]).to_tree()
    return {
        "picks": picks,
        "scale": _scale(answer),
        "kinked": watch.kinked,
        "requires_grad": answer.requires_grad,
        "tensors": {
            name: None
            if tensor is None
            else {
                "oracle": tensor,
                "spread": spread[name],
                "exact": exact[name],
                "settled": settled[name] if not sticks[name].is_rounded else {},
            }
            for name, tensor in answer.tensors.items()
        },
    }


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

