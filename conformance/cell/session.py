"""Opens one cell: its spec, its model, the question of each case, and the comparison of the results.

Every child process that works on a cell opens it here.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial, reduce
from pathlib import Path
from typing import Any

import torch

from conformance.axes import PRECISIONS, Mode, Precision, Prepared
from conformance.cell import compiler, modes, policy
from conformance.errors import DamagedReferenceError
from conformance.evaluate import attributes, error_text, evaluation, inputs, transforms, weights
from conformance.evaluate.evaluation import Evaluation, Question
from conformance.float64 import wide
from conformance.gates import compare, distance
from conformance.gates.budget import TensorCriteria, TensorReference, criteria_for
from conformance.gates.dropped_bits import is_in_float32
from conformance.oracle import reference_file
from conformance.oracle.reference import ANY_DRAW, CaseReference
from conformance.plan import find, matrix
from conformance.process import child_side, environment
from conformance.records.cell import ASKED_OTHERWISE, OTHER_WEIGHTS, Cell, Discrepancy, Measure, TensorName, case_of
from conformance.records.tasks import CellTask, Fingerprints, FingerprintsTask
from zoo import Call, Case, Expect, Spec

STATES = ("buffer", "attribute", "after")  # kinds of tensors that a call leaves

Comparison = Callable[
    [torch.Tensor | None, TensorCriteria, torch.Tensor | None, str, Sequence[torch.Tensor | None]], Discrepancy
]


@dataclass
class CellSession:
    """One open cell.

    Attributes:
        spec, cell, seed: the spec, the cell, and the seed of weights, inputs and cotangents.
        process: this process, which reports the phases.
        references: the reference of each case, by case name; empty if the work needs no oracle.
        at_float32: returns the references of a cell in float32; few cells need them.
        expect: the declared divergences that apply to the cell.
        left_out: the names of the cases that are not judged.
        plain: each case is asked in one way alone.
        facts: proof of the mode, and other facts for the record.
        eager: the eager model, whose signature names the inputs; None if the work builds its own.
        initial: the plain attributes of the eager model before its first call.
        made: the callable of the mode, set by `prepare`.
        dtypes: dtypes of the callable's parameters and buffers by name, set by `prepare`.
        returned: dtypes of the outputs of the measured call by case and leaf; every other call must return the same.
        draws_once: an identical second call draws other random numbers than the first, which may have built a part.
        comparison: compares one tensor; a study of the gates can replace it to see every tensor.
        recompiles: watches what the identical calls of each case compile.
        around_calls: returns a context for the calls of the callable; a study can simulate a device in it.
    """

    spec: Spec
    cell: Cell
    seed: int
    process: child_side.ChildProcess = field(default_factory=child_side.ChildProcess)
    references: dict[str, CaseReference] = field(default_factory=dict)
    at_float32: Callable[[], dict[str, CaseReference]] = dict
    expect: tuple[Expect, ...] = ()
    left_out: frozenset[str] = frozenset()
    plain: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    eager: Any = None
    initial: attributes.States = field(default_factory=dict)
    made: Prepared = field(init=False)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    returned: dict[str, dict[str, torch.dtype]] = field(default_factory=dict)
    draws_once: bool = False
    comparison: Comparison = compare.compare
    recompiles: modes.Recompiles = field(default_factory=modes.Recompiles)
    around_calls: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext

    @property
    def mode(self) -> Mode:
        """The cell's mode, or the candidate in its place."""
        return matrix.modes_of(self.spec)[self.cell.mode]

    @property
    def precision(self) -> Precision:
        """The cell's precision."""
        return PRECISIONS[self.cell.precision]

    @property
    def cast(self) -> torch.dtype | None:
        """The dtype that the model is cast to; None if the precision casts nothing, or if it is in that dtype."""
        return weights.cast_of(self.spec, self.precision)

    @property
    def is_eager(self) -> bool:
        """Whether the cell's mode is eager, the baseline of the other modes."""
        return self.cell.mode == "eager"

    @property
    def cases(self) -> list[Case]:
        """The cases that are judged."""
        return [case for case in self.spec.cases if case.name not in self.left_out]

    def known(self, case: Case) -> CaseReference:
        """The reference of a case; `ANY_DRAW`, the first draw, if the work needs no oracle."""
        known = self.references[case.name].of_call(self.precision) if self.references else ANY_DRAW
        if not self.mode.forward_only:
            return known
        tensors = {name: reference and replace(reference, redraws=None) for name, reference in known.tensors.items()}
        return replace(known, tensors=tensors, redraws=())

    def note_refusal(self, way: str, problem: Exception) -> None:
        """Note that the call raises an error, which it may, if it is asked in a way."""
        self.facts[f"{way} refused"] = error_text.one_line(problem)
        ways = (*self.facts.get(ASKED_OTHERWISE, "").split(", "), way)
        self.facts[ASKED_OTHERWISE] = ", ".join(dict.fromkeys(filter(None, ways)))

    def build(self, build: Callable[..., Any] | None = None) -> Any:
        """Build the model on the cell's device, with seeded weights that every precision represents exactly."""
        model = wide.prepared_model(self.spec, self.seed, build)
        return weights.model_in(model, self.cast, self.cell.device)

    def place(self, call: Call) -> Call:
        """A copy of the arguments of a call, on the device of the cell and in the dtypes of its precision."""
        return inputs.place(call, self.convert)

    def convert(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor on the device of the cell and, if it is floating, in the dtype that its precision casts to."""
        return tensor.to(self.cell.device, self.cast if self.cast and tensor.is_floating_point() else tensor.dtype)

    def prepare(self) -> Prepared:
        """Make the callable of the cell's mode.

        Raises:
            NoCompilerError: the cell is compiled for the CPU, and no C++ compiler works.
            Whatever the mode or the model raises.
        """
        if self.mode.needs_cpp and self.cell.device == "cpu":
            compiler.require()
        self.made = modes.prepare(self.mode, self.spec, self.build)
        self.dtypes = {name: t.dtype for name, t in weights.state_of(self.made.parameters_of).items()}
        return self.made

    def question(self, case: Case, model: Any) -> Question:
        """The question of one case, on the cell's device and at its precision; `model` names the inputs."""
        known = self.known(case)
        question = evaluation.question_of(self.spec, case, self.seed, known.picks, self.place, model)
        if self.mode.compiles and case.name != self.spec.cases[0].name:  # compiling a transform takes seconds
            question = replace(question, stacked=None, forward_mode=False)
        if self.mode.forward_only:
            question = replace(question, differentiate=False, second=False, stacked=None, forward_mode=False)
        scale = known.scale if self.precision.is_scaled else 1.0
        states = {path: self.initial.get(path, attributes.MISSING) for path in known.states}
        return replace(question, precision=self.precision, device=self.cell.device, scale=scale, states=states)

    def baseline(self, eager: Any, question: Question) -> Evaluation | None:
        """The evaluation of the eager model at the cell's precision; None if eager raises an error."""
        try:
            state = weights.state_of(eager)
            found = evaluation.evaluate_orders(eager, eager, question)
            weights.reset(eager, state)
            transforms.add(found, Prepared(eager, dict, eager), question, raises=True)
            weights.reset(eager, state)
        except RuntimeError as problem:
            if error_text.is_out_of_memory(problem) or error_text.is_machine_failure(problem):
                raise
            self.facts["no eager beside it"] = error_text.one_line(problem)
            return None
        return found

    def compared(  # noqa: PLR0913 -- all that is known of a case
        self,
        case: Case,
        known: CaseReference,
        question: Question,
        found: Evaluation,
        again: Evaluation,
        baseline: Evaluation | None,
        drawn: Mapping[TensorName, Sequence[torch.Tensor | None]],
    ) -> Iterator[Discrepancy]:
        """Compare every tensor of a case with the oracle's.

        `again` is of an identical second call. `baseline` is eager's at the same precision; None in eager cells, or if
        eager raised an error. `drawn` has the callable's tensors in further draws, by name.
        """
        trusted = trusted_answer(self.spec, self.seed, question)
        dtypes = output_dtypes(trusted)
        left_out = (*found.left_out, *transforms.left_out_kinds(question), *(("second",) if found.refused else ()))
        names = [n for n in known.tensors if n.kind not in left_out]
        names = [n for n in names if not _lost_without_loss(n, found.tensors.get(n), known.tensors[n])]
        for name in [*names, *(n for n in found.tensors if n not in known.tensors)]:
            y, reference = found.tensors.get(name), known.tensors.get(name)
            if reference is None:
                if y is not None or name not in known.tensors:
                    extra = Measure("structure", float("inf"), 0.0, "a tensor, where the oracle has none")
                    yield Discrepancy(case.name, name, "absent", "", "", (extra,))
                continue
            beside = baseline.tensors.get(name) if baseline else None
            held = (trusted.tensors.get(name) if trusted else beside) if name.kind in STATES else None
            is_output = name.kind == "output"
            is_number = is_output and name.leaf not in known.requires_grad
            contract = dtypes.get(name.leaf) if is_output else None
            contract = beside.dtype if contract is None and beside is not None else contract
            dtype = "" if is_number else self._dtype(name, question, contract, y)
            if y is not None and beside is not None and distance.same_bytes(y, beside):
                beside = None  # equal to eager, so it gets eager's verdict
            criteria = self._criteria(case.name, name, reference, dtype, beside)
            criteria = replace(
                criteria,
                others=partial(self.with_other_weights, case, name),
                keeps_float32=held is not None and is_in_float32(held, reference.oracle),
            )
            fault = self._fault(name, y, known, found)
            yield self.comparison(y, criteria, again.tensors.get(name), fault, drawn.get(name, ()))

    def compared_values(
        self, case: str, known: CaseReference, question: Question, found: Evaluation, *, same_dtypes: bool = True
    ) -> Iterator[Discrepancy]:
        """Compare every tensor of a case with the oracle's, without a second call, canaries and eager beside it.

        `case` is what a report calls it. If `same_dtypes`, its outputs must have the dtypes of the measured call.
        """
        for name, reference in known.tensors.items():
            if reference is not None and name.kind not in transforms.left_out_kinds(question):
                y, known_dtypes = found.tensors.get(name), self.returned.get(case_of(case), {})
                contract = known_dtypes.get(name.leaf) if name.kind == "output" and same_dtypes else None
                criteria = self._criteria(case, name, reference, self._dtype(name, question, contract, y))
                yield compare.compare_values(y, criteria, self._fault(name, y, known, found))

    def _criteria(
        self, case: str, name: TensorName, reference: TensorReference, dtype: str, baseline: torch.Tensor | None = None
    ) -> TensorCriteria:
        declared = name.leaf if name.kind == "vmapped" else str(name)
        return criteria_for(
            case,
            name,
            reference,
            self.precision,
            dtype=dtype,
            baseline=baseline,
            accurate=declared in self.spec.float32_accurate and not self.cast,
            bitwise=self.spec.deterministic and self.cell.device == "cpu",
        )

    def with_other_weights(self, case: Case, name: TensorName) -> tuple[TensorReference, ...]:
        """The references of a tensor with other weights; a low precision takes those of float32."""
        known = (self.at_float32() if self.precision.low_dtype else self.references).get(case.name, ANY_DRAW)
        others = [there.tensors.get(name) for redraw, there in known.changed if redraw.text == OTHER_WEIGHTS]
        return tuple(other for other in others if other is not None)

    def _fault(self, name: TensorName, y: torch.Tensor | None, known: CaseReference, found: Evaluation) -> str:
        if y is not None and y.device.type != self.cell.device:
            return f"on device {y.device.type}, asked for {self.cell.device}"
        if y is None or name.kind != "output":
            return ""
        has, wanted = found.requires_grad.get(name.leaf), known.requires_grad.get(name.leaf)
        wanted = wanted and not self.mode.forward_only
        return "" if has == wanted else f"requires_grad is {has}, the oracle's is {wanted}"

    def _dtype(self, name: TensorName, question: Question, contract: torch.dtype | None, y: torch.Tensor | None) -> str:
        """The dtype that the contract asks of a tensor; "" if it asks for none and eager is the candidate."""
        if name.kind == "vmapped" and self.precision.autocast and y is not None and y.dtype == torch.float32:
            return "float32"  # torch's rule for linear adds the bias after autocast has cast the product
        if name.kind in ("gradient", "second", "buffer", "after"):
            owner = question.names.get(name.leaf)
            dtype = owner.dtype if isinstance(owner, torch.Tensor) else self.dtypes.get(name.leaf)
            return compare.name_of(dtype) if dtype is not None else ""
        word = "" if name.kind in ("put", "attribute") else self.spec.dtype_word(name.leaf, self.cell.device)
        if word == "follows":
            return self.precision.low_dtype or "float32"
        if word == "input":
            floating = [t.dtype for t in question.names.values() if inputs.is_rounded(t)]
            return compare.name_of(reduce(torch.promote_types, floating)) if floating else ""
        if word and not (self.cast and inputs.is_rounded(y)):  # the name of a dtype is meant for autocast
            return word
        return compare.name_of(contract) if contract is not None else ""


def _lost_without_loss(name: TensorName, y: torch.Tensor | None, reference: TensorReference | None) -> bool:
    """Whether a mode has lost the graph of a second derivative that is zero, or holds no number."""
    return name.kind == "second" and y is None and reference is not None and not reference.oracle.raw.any()


def open_task(task: CellTask, process: child_side.ChildProcess) -> CellSession:
    """Import what registers the cell's mode, find the spec, and open the cell.

    Raises:
        UsageError: a source or the spec's module does not import.
    """
    if task.cache:
        environment.use_cache(task.cache)
    policy.set_policy(PRECISIONS[task.cell.precision])
    find.load_sources(task.sources)
    spec = find.spec_at(task.location, f"{task.cell.model}@{task.size}" if task.size else task.cell.model)

    def load(precision: str) -> dict[str, CaseReference]:
        return reference_file.load(Path(task.reference), precision) if task.reference else {}

    known = load(task.cell.precision)
    now = weights.fingerprint(spec, task.seed, wide.prepared_model(spec, task.seed)) if task.fingerprint else ""
    if task.fingerprint != now:
        raise DamagedReferenceError(f"the kept reference of {spec.name} is of other weights or inputs")
    at_float32, left_out = cache(partial(load, "fp32")), frozenset(task.left_out)
    return CellSession(spec, task.cell, task.seed, process, known, at_float32, task.expect, left_out, task.plain)


def take_fingerprints(task: FingerprintsTask, process: child_side.ChildProcess) -> Fingerprints:
    """The fingerprints of models; what cannot be built has none, and is judged."""
    found = {}
    with process.shared():
        for name, location in task.models.items():
            with contextlib.suppress(Exception):  # the model's own code may raise anything
                spec = find.spec_at(location, name)
                found[name] = weights.fingerprint(spec, task.seed, wide.prepared_model(spec, task.seed))
    return Fingerprints(found)


# Asks the trusted implementation of a model what it gives in a cell.


def trusted_answer(spec: Spec, seed: int, question: Question) -> Evaluation | None:
    """What a trusted implementation gives, eager at the precision of a question; None if the spec names none.

    The inputs of the question are restored before the run.
    """
    if not spec.trusts_model:
        return None
    trusted = wide.prepared_reference(spec, seed, wide.prepared_model(spec, seed))
    trusted = weights.model_in(trusted, weights.cast_of(spec, question.precision), question.device)
    return evaluation.evaluate(trusted, trusted, replace(question, differentiate=False))


def output_dtypes(found: Evaluation | None) -> dict[str, torch.dtype]:
    """The dtypes of the outputs, by leaf; none if there is no answer."""
    if found is None:
        return {}
    return {leaf: t.dtype for leaf, t in found.returned.items() if t is not None and leaf in found.requires_grad}
