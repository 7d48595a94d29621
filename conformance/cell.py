"""What the child process of a cell does: one cell in, one observation out."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version
from torch._functorch import config as functorch_config

from conformance import evaluation, inputs, modes, oracle, reference, tf32
from conformance.axes import MODES, PRECISIONS, Mode, NotProvenError, Precision, Prepared
from conformance.compare import compare, name_of, ruler
from conformance.evaluation import FIRST, SECOND, Answer, Question
from conformance.failures import is_out_of_memory, one_line
from conformance.records import Cell, Discrepancy, Measure, Observation
from conformance.reference import CaseReference
from conformance.sources import Home
from zoo.case import Call, Case
from zoo.spec import Spec

FOR_TENSORS = 0.9  # of a GPU's memory; every process has kernels and handles there too


def observe(task: dict[str, Any], enter_phase: Callable[[str], None]) -> dict[str, Any]:
    """Child process: run task["cell"] and return the observation as JSON."""
    clock = Phases(enter_phase)
    try:
        with clock.phase("import"):
            set_policy(PRECISIONS[task["cell"]["precision"]])
            for home in task["homes"]:
                Home(**home).load()
            spec = Home(**task["home"]).spec(task["cell"]["model"])
        run = Run(spec, Cell(**task["cell"]), task["seed"], clock)
        seen = run.observe(reference.load(Path(task["reference"])))
    except NotProvenError as problem:
        seen = Observation("not proven", clock.current, message=one_line(problem))
    except Exception as problem:  # noqa: BLE001 -- the model and the mode may raise anything
        ending = "out of memory" if is_out_of_memory(problem) else "raised"
        seen = Observation(ending, clock.current, type(problem).__name__, one_line(problem))
    return replace(seen, seconds=clock.seconds).to_json()


def set_policy(precision: Precision = PRECISIONS["fp32"]) -> None:
    """Everything global that a verdict may depend on, set rather than inherited."""
    warnings.simplefilter("ignore")  # models and compilers warn; the verdict is the report
    torch.set_num_threads(1)
    tf32.switch(precision)
    sound = Version(torch.__version__).release >= (2, 13)  # pytorch#181564: its key forgot the autocast dtype
    for switch in ("enable_autograd_cache", "autograd_cache_allow_custom_autograd_functions"):
        if hasattr(functorch_config, switch):
            setattr(functorch_config, switch, sound)


def leave_room(device: str) -> None:
    """Keep to this process's share of the GPU, so that a cell that wants all of it starves no other."""
    if device == "cuda":
        at_once = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        torch.cuda.set_per_process_memory_fraction(FOR_TENSORS / at_once)


class Phases:
    """Seconds by phase, reported as they begin."""

    def __init__(self, enter_phase: Callable[[str], None]) -> None:
        self.seconds: dict[str, float] = {}
        self.current = "start"
        self._enter = enter_phase

    def enter(self, name: str) -> None:
        """Say where the run is, whoever the time is charged to."""
        self.current = name
        self._enter(name)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.enter(name)
        started = time.perf_counter()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - started, 4)


@dataclass
class Run:
    """One cell being run.

    Attributes:
        spec, cell, seed: what runs.
        clock: of its phases.
        facts: proof of the mode, and what else is worth keeping.
        dtypes: of parameters and buffers, before any call.
    """

    spec: Spec
    cell: Cell
    seed: int
    clock: Phases
    facts: dict[str, Any] = field(default_factory=dict)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)

    @property
    def mode(self) -> Mode:
        return MODES[self.cell.mode]

    @property
    def precision(self) -> Precision:
        return PRECISIONS[self.cell.precision]

    @property
    def is_eager(self) -> bool:
        return self.cell.mode == "eager"

    def observe(self, references: dict[str, CaseReference]) -> Observation:
        with self.clock.phase("build"):
            leave_room(self.cell.device)
            eager = self.build()
        with self.clock.phase("prepare"):
            made = modes.prepare(self.mode, self.spec, self.build)
        self.dtypes = {name: t.dtype for name, t in evaluation.state_of(made.parameters_of).items()}
        found: list[Discrepancy] = []
        changed: dict[str, None] = {}
        for case in self.spec.cases:
            known = references[case.name]
            question = self.question(case, known, eager)
            with self.clock.phase("call"):
                answer, again = self._answers(made, question, known)
                baseline = None if self.is_eager else self.baseline(eager, question)
            changed |= dict.fromkeys(answer.changed)
            with self.clock.phase("judge"):
                found += self.compared(case, known, question, answer, again, baseline)
        self.facts |= made.proof() | tf32.prove(self.precision, self.cell.device)
        return Observation("finished", changed=tuple(changed), discrepancies=tuple(found), facts=self.facts)

    def build(self, build: Callable[..., Any] | None = None) -> Any:
        model = oracle.prepared_model(self.spec, self.seed, build)
        return model.to(self.cell.device) if isinstance(model, torch.nn.Module) else model

    def question(self, case: Case, known: CaseReference, model: Any) -> Question:
        def onto_device(call: Call) -> Call:
            return inputs.place(call, convert=lambda t: t.to(self.cell.device))

        question = oracle.question_of(self.spec, case, self.seed, known.picks, onto_device, model)
        scale = known.scale if self.precision.autocast == "float16" else 1.0
        return replace(question, precision=self.precision, device=self.cell.device, scale=scale)

    def _answers(self, made: Prepared, question: Question, known: CaseReference) -> tuple[Answer, Answer]:
        """The measured call and an identical second one."""
        state = evaluation.state_of(made.parameters_of)
        answers = []
        for _ in range(self.mode.warm_calls + 2):
            evaluation.reset(made.parameters_of, state)
            answers.append(evaluation.evaluate(made.call, made.parameters_of, question))
        answer, again = answers[-2:]
        if question.second:
            evaluation.reset(made.parameters_of, state)
            self.clock.enter("second order")
            self._add_second_order(answer, made, question, known)
            self.clock.enter("call")
        evaluation.reset(made.parameters_of, state)
        return answer, again

    def _add_second_order(self, answer: Answer, made: Prepared, question: Question, known: CaseReference) -> None:
        """Second derivatives must match or, outside eager, be refused out loud."""
        wanted = [name for name, bounds in known.bounds.items() if bounds is not None]
        try:
            answer.tensors |= evaluation.differentiate_twice(made.call, made.parameters_of, question, wanted)
        except RuntimeError as problem:
            if self.is_eager or is_out_of_memory(problem) or isinstance(problem, NotProvenError):
                raise
            answer.refused = self.facts["second order refused"] = one_line(problem)

    def baseline(self, eager: Any, question: Question) -> Answer | None:
        """Eager at the same precision; None where eager itself cannot."""
        try:
            state = evaluation.state_of(eager)
            answer = evaluation.evaluate(eager, eager, question)
            if question.second:
                evaluation.reset(eager, state)
                answer.tensors |= evaluation.differentiate_twice(eager, eager, question)
            evaluation.reset(eager, state)
        except RuntimeError as problem:
            if is_out_of_memory(problem):
                raise
            self.facts["no eager beside it"] = one_line(problem)
            return None
        return answer

    def compared(  # noqa: PLR0913 -- all that is known of a case
        self,
        case: Case,
        known: CaseReference,
        question: Question,
        answer: Answer,
        again: Answer,
        baseline: Answer | None,
    ) -> Iterator[Discrepancy]:
        names = [n for n in known.bounds if not (answer.refused and n.startswith(SECOND))]
        for name in [*names, *(n for n in answer.tensors if n not in known.bounds)]:
            y, bounds = answer.tensors.get(name), known.bounds.get(name)
            if bounds is None:
                if y is not None or name not in known.bounds:
                    extra = Measure("structure", float("inf"), 0.0, "a tensor, where the oracle has none")
                    yield Discrepancy(case.name, name, "absent", "", "", (extra,))
                continue
            beside = baseline.tensors.get(name) if baseline else None
            held = ruler(
                case.name,
                name,
                bounds,
                self.precision,
                dtype=self._dtype(name, question, beside),
                baseline=beside,
                accurate=name in self.spec.float32_accurate,
                bitwise=self.spec.deterministic and self.cell.device == "cpu",
            )
            yield compare(y, held, again.tensors.get(name), self._fault(name, y, known, answer))

    def _fault(self, name: str, y: torch.Tensor | None, known: CaseReference, answer: Answer) -> str:
        if y is not None and y.device.type != self.cell.device:
            return f"on device {y.device.type}, asked for {self.cell.device}"
        found, wanted = answer.requires_grad.get(name), known.requires_grad.get(name)
        if y is not None and found != wanted:
            return f"requires_grad is {found}, the oracle's is {wanted}"
        return ""

    def _dtype(self, name: str, question: Question, baseline: torch.Tensor | None) -> str:
        """The dtype the contract asks of a tensor; "" where nobody said and eager is the candidate."""
        if not name.startswith("output"):
            leaf = name.removeprefix(SECOND).removeprefix(FIRST).removeprefix("buffer").removesuffix(" after").strip()
            owner = question.names.get(leaf)
            dtype = owner.dtype if isinstance(owner, torch.Tensor) else self.dtypes.get(leaf)
            return name_of(dtype) if dtype is not None else ""
        word = self.spec.dtype_word(name, self.cell.device)
        if word == "follows":
            return self.precision.autocast or "float32"
        if word == "input":
            floating = [t.dtype for t in question.names.values() if inputs.is_rounded(t)]
            return name_of(reduce(torch.promote_types, floating)) if floating else ""
        return word or (name_of(baseline.dtype) if baseline is not None else "")
