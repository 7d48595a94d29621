"""`conformance explain`: says of one cell how wrong it is, in which stage and module it goes wrong, and what mends it.

The cell is judged again in other modes, and parts of its model are judged in its own mode, all by the same judge. A
part is the forward up to the end of one module, and backward from there. A longer part holds a fault if a shorter one
does, so few parts are judged.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from conformance.axes import MODES
from conformance.commands.output import tell
from conformance.commands.planning import ask_child, children_prepared, make_plan, refuse_changed
from conformance.errors import ExitCode, UsageError, one_line, some, suggestion
from conformance.judging import resuming
from conformance.judging.executor import Executor, cell_task
from conformance.process import child, pool
from conformance.records.cell import STATUSES, Cell, Discrepancy, Verdict, case_of, mode_of
from conformance.records.explained import (
    BISECT,
    COMPILED,
    FIND_OP,
    LOOK,
    MENDING,
    SCRIPTED,
    SCRIPTED_PARTS,
    STAGES,
    CulpritTask,
    Exit,
    Look,
    Numbers,
)
from conformance.records.plan import Part, Plan, PlannedCell, SpecLocation, name_from
from conformance.records.tasks import PACKAGE, READ_PROBES, PlanRequest, ProbesRequest
from conformance.show.matrix import figure
from conformance.show.text import printable, table
from conformance.store import run_files
from conformance.verdict import VALUES, failed_gate, judge, named_failure

MOST_ROWS = 12  # of the table of numbers
UNSEARCHED = {  # what follows from verdicts that more cells would not explain
    "TIMEOUT": "Each further try could take as long; judge it with a longer --timeout first.",
    "OOM": "Each further try could take as much memory; judge it at smaller inputs first.",
    "STALE": "What was declared no longer happens; take the declaration out.",
    "INCONCLUSIVE": "Nothing is wrong with it that these checks could see; the line above says what would tell more.",
}
NO_FAULT = ("PASS", "UNSUPPORTED", "SKIPPED", "NOTRUN")
PLACE = "the place"  # a job beside those of the cells
PLAIN_PHASES = ("prepare", "call", "judge")  # of a cell that ends before it is asked in other ways
BY_INDUCTOR = ("compiled", "compiled_dynamic", "graphed")
BESIDE = ("fp32", "amp_fp16", "amp_bf16")
STAGE = SpecLocation(module=STAGES)
STAGED = {*COMPILED, *MENDING, *SCRIPTED, SCRIPTED_PARTS} - {*MODES}


def explain(words: Sequence[str]) -> ExitCode:
    """`conformance explain [RUN] CELL [SOURCE…]`: print the four blocks.

    Raises:
        UsageError: no word names a cell, the run has no such cell or has changed, or a source must be named.
        MachineError: the machine failed.
    """
    at = next((number for number, word in enumerate(words) if "[" in word), None)
    if at not in (0, 1):
        raise UsageError(f"explain {' '.join(words)}: want [RUN] MODEL[MODE-PRECISION-DEVICE] [SOURCE…]")
    name, sources = words[at], tuple(words[at + 1 :])
    if not at:
        plan = _plan_cell(name, sources)
        with _folder_of(plan) as place:
            verdict = Executor(plan, place).verdict(plan.cells[0])
    else:
        folder = Path(words[0])
        contents = run_files.read(folder)
        verdict = find_verdict(contents, name)
        plan = cut_to(contents.plan, name)
        resuming.refuse_unnamed(folder, plan, sources, resuming.of_cell("explain", folder, plan, name))
        refuse_changed(folder, plan)
    tell(explanation(plan, verdict))
    return ExitCode.OK


def _plan_cell(name: str, sources: tuple[str, ...]) -> Plan:
    model, _, axes = name.rstrip("]").partition("[")
    asked = axes.split("-")
    if len(asked) != len(("mode", "precision", "device")):
        raise UsageError(f"explain {name}: want MODEL[MODE-PRECISION-DEVICE]")
    mode, precision, device = asked
    plan = make_plan(PlanRequest(sources or (model,), (mode,), (precision,), (device,)))
    known = [planned.id for planned in plan.cells]
    if name not in known:
        raise UsageError(f"there is no cell {name}{suggestion(name, known)}")
    return cut_to(plan, name)


def find_verdict(contents: run_files.Contents, name: str) -> Verdict:
    """The verdict on a cell of a run.

    Raises:
        UsageError: the run has no such cell, or has not judged it.
    """
    known = [planned.id for planned in contents.plan.cells]
    if name not in known:
        raise UsageError(f"the run has no cell {name}{suggestion(name, known)}")
    if name not in contents.verdicts:
        raise UsageError(f"{name} has no verdict; finish the run first")
    return contents.verdicts[name]


def explain_cell(contents: run_files.Contents, name: str) -> str:
    """The four blocks of a cell of a run.

    Raises:
        UsageError: the run has no such cell, or has not judged it.
        MachineError: the machine failed.
    """
    return explanation(cut_to(contents.plan, name), find_verdict(contents, name))


def cut_to(plan: Plan, name: str) -> Plan:
    """The plan of one cell alone."""
    return replace(plan.with_cells([one for one in plan.cells if one.id == name]), shard=None, measure="")


@contextmanager
def _folder_of(plan: Plan) -> Iterator[Path]:
    """A folder for the references of a plan, while child processes can judge its cells."""
    temporary = TemporaryDirectory(prefix="conformance-explain-", ignore_cleanup_errors=True)
    with children_prepared(plan, compiles_for=plan.compiles_for), temporary as folder:
        yield Path(folder)


@dataclass(frozen=True)
class Rung:
    """A mode and precision in which the model is judged too.

    Attributes:
        said: what it is, in a few words.
        kind: "stage", of which each holds the one before it; "beside"; or "mending", if a fault is gone with it.
    """

    said: str
    cell: Cell
    kind: str


@dataclass(frozen=True)
class Step:
    """A part of the model, and the module with which it ends."""

    cell: Cell
    end: Exit
    location: SpecLocation


@dataclass(frozen=True)
class Place:
    """Where a fault begins: the first part that shows it, and what was found about it in a sentence each."""

    said: tuple[str, ...]
    end: Exit | None = None
    stage: str = ""
    cell: Cell | None = None


def explanation(plan: Plan, verdict: Verdict) -> str:
    """The text of four blocks: the numbers, the ladder, the place, and what follows.

    Args:
        plan: the plan of the cell alone.
        verdict: the verdict on it.

    Raises:
        MachineError: the machine failed.
    """
    cell, declared = plan.cells[0].cell, [*_declared(verdict)]
    blocks = [f"{STATUSES[verdict.status].glyph} {verdict.cell}  {verdict.status}  {verdict.text}".rstrip()]
    if verdict.status == "EXPECTED":
        verdict = judge(verdict.cell, verdict.observation)  # as it is if nothing is declared
    others = _other_cases(plan, verdict)
    with _folder_of(plan) as folder:
        rungs = [] if verdict.status in (*NO_FAULT, *UNSEARCHED) else _rungs(cell)
        seen = Look((), ()) if verdict.status in UNSEARCHED else _look(_widened(plan, rungs, ()), folder, others)
        blocks += [_numbers_text(seen.numbers)] if seen.numbers else []
        if not rungs:
            return printable("\n\n".join([*blocks, _say_unsearched(verdict)]))
        steps = _steps(plan, verdict, seen.exits)
        executor = Executor(_widened(plan, rungs, steps), folder)

        def verdict_on(cell: Cell) -> Verdict:
            left_out = others if cell.model in plan.models else ()
            return executor.verdict(PlannedCell(cell, left_out=left_out, plain=_is_plain(verdict)))

        jobs: dict[str, Callable[[], Any]] = {
            rung.cell.id: partial(verdict_on, rung.cell) for rung in rungs if rung.cell.id != verdict.cell
        }
        jobs[PLACE] = partial(find_place, steps, verdict_on, verdict)
        found: dict[str, Any] = dict(pool.carry_out(jobs))
        found[verdict.cell] = verdict
        place = found.pop(PLACE)
        accused = place.cell or cell
        culprit = _culprit(executor, accused, others, verdict, _first_wrong(verdict, rungs, found))
    known = [*declared, *_known_faults(_mended(rungs, found), cell.device)]
    said = [*place.said, *filter(None, [culprit])]
    blocks += [
        _ladder_text(rungs, found),
        "\n".join(["The place", *said]),
        "\n".join(["What follows", *_advice(verdict, place, rungs, found), *known]),
    ]
    return printable("\n\n".join(blocks))


def _look(plan: Plan, folder: Path, others: tuple[str, ...]) -> Look:
    """The look at the cell; an empty one if its process fails. Without a reference, it has no numbers."""
    planned = plan.cells[0]
    path = Executor(plan, folder).reference(planned.cell.model)
    task = cell_task(plan, planned.cell, path if isinstance(path, Path) else None)
    task = replace(task, left_out=others or planned.left_out, plain=True)
    return child.run(LOOK, task, deadline=plan.deadline).result or Look((), ())


def _other_cases(plan: Plan, verdict: Verdict) -> tuple[str, ...]:
    """The cases that are not to blame."""
    cases = {*verdict.observation.cases, *plan.cells[0].left_out}
    return tuple(sorted(cases - {case})) if (case := _case(verdict)) else ()


def _is_plain(verdict: Verdict) -> bool:
    """Whether the fault shows if a case is asked in one way alone, in its first draw."""
    named = named_failure(verdict)
    if named is None:
        return verdict.observation.phase in PLAIN_PHASES
    found, gate = named
    return _is_of_plain_call(found) and " draws" not in gate.detail


def _is_of_plain_call(found: Discrepancy) -> bool:
    kinds = ("output", "gradient", "buffer", "after", "put")
    return found.case == case_of(found.case) and found.tensor.kind in kinds


def _case(verdict: Verdict) -> str:
    """The case that the verdict blames; "" if it blames none."""
    named = named_failure(verdict)
    return case_of(named[0].case) if named else ""


def _rungs(cell: Cell) -> list[Rung]:
    """The rungs of the ladder of a cell, from eager to the cell itself; what mends it comes last."""

    def at(mode: str, said: str, kind: str = "stage", precision: str = cell.precision) -> Rung:
        return Rung(said, replace(cell, mode=mode, precision=precision), kind)

    is_scripted = cell.mode == "scripted"
    stages = {} if is_scripted or cell.mode == "eager" else COMPILED
    mending = SCRIPTED if is_scripted else MENDING if cell.mode in BY_INDUCTOR else {}
    found = [at("eager", "eager")] if cell.mode != "eager" else []
    found += [at(mode, said) for mode, said in stages.items() if mode != cell.mode]
    found += [at(cell.mode, "the cell itself")]
    beside = [name for name in BESIDE if name != cell.precision] if cell.precision != "fp32" else []
    found += [at(cell.mode, f"the same in {name}", "beside", name) for name in beside]
    return found + [at(mode, said, "mending") for mode, said in mending.items() if mode != cell.mode]


def _steps(plan: Plan, verdict: Verdict, exits: Sequence[Exit]) -> list[Step]:
    """The parts of the model, each longer than the one before; none if it has no modules inside, or is a candidate."""
    (planned,) = plan.cells
    model = plan.models[planned.cell.model]
    if planned.cell.mode in model.candidates:
        return []
    steps = []
    for number, end in enumerate(exits):
        name = f"{name_from(planned.cell.model)}_part_{number + 1}"
        part = Part(planned.cell.model, _case(verdict), name, end.done, light=_is_plain(verdict))
        mode = SCRIPTED_PARTS if planned.cell.mode == "scripted" else planned.cell.mode
        steps.append(Step(replace(planned.cell, model=name, mode=mode), end, replace(model.location, part=part)))
    return steps


def _widened(plan: Plan, rungs: Sequence[Rung], steps: Sequence[Step]) -> Plan:
    """The plan with all cells that may be judged."""
    (own,) = plan.models.values()
    asked = [*(rung.cell for rung in rungs), *(step.cell for step in steps)]
    cells = (*plan.cells, *map(PlannedCell, asked))
    ours = {one.cell.mode: STAGE for one in cells if one.cell.mode in STAGED}
    return replace(
        plan,
        cells=cells,
        models={
            **plan.models,
            **{step.cell.model: replace(own, location=step.location, candidates=()) for step in steps},
        },
        modes={**plan.modes, **ours},
        compiling_modes=(*plan.compiling_modes, *COMPILED, *MENDING),
    )


def find_place(steps: Sequence[Step], verdict_on: Callable[[Cell], Verdict], whole: Verdict) -> Place:
    """Find the first part with the fault, by halving.

    Args:
        steps: the parts, each longer than the one before.
        verdict_on: judges a cell.
        whole: the verdict on the whole model.
    """
    if not steps:
        return Place(("No part of it can be judged alone: it has no modules inside, or it is a training.",))
    found: dict[int, Verdict] = {}
    shown = _shown(whole)

    def is_wrong(number: int) -> bool:
        found[number] = verdict_on(steps[number].cell)
        return found[number].status in shown

    low, high = 0, len(steps)  # the first part with the fault; after the last comes the whole
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_wrong(middle) else (middle + 1, high)
    if low < len(steps):
        beyond = (max(number for number, verdict in found.items() if verdict.status in shown) + len(steps)) // 2
        if beyond not in found:
            is_wrong(beyond)
    unsure = [n for n, verdict in found.items() if verdict.status not in (*shown, *(("PASS",) if n < low else ()))]
    doubts = [f"Up to the end of {steps[n].end}, the verdict is {_in_words(found[n])}" for n in sorted(unsure)]
    if any(_breaks(verdict) > _breaks(whole) for verdict in found.values()):
        doubts.append("This torch compiles parts in more graphs than the whole, and a fault may be gone with that.")
    if doubts:
        doubts[0] = f"This is not sure. {doubts[0]}"
    if low == len(steps):
        said = f"No part shows it, up to the end of `{steps[-1].end.path}`: it is what the model does beside."
        return Place((said, *doubts))
    end, stage = steps[low].end, _stage(found[low])
    said = f"{end} is the first module at whose end the model is wrong{', ' * bool(stage)}{stage}: {found[low].text}"
    right = f"At the end of {steps[low - 1].end} it is right: the fault lies between the two."
    return Place((said, *[right] * bool(low), *doubts), end, stage, steps[low].cell)


def _culprit(executor: Executor, cell: Cell, others: tuple[str, ...], whole: Verdict, first: str) -> str:
    """The op, or the pass of Inductor, with which a cell goes wrong, in a sentence; "" if it is not found.

    Args:
        executor: of the plan.
        cell: the part with the fault, or the whole.
        others: the cases of the whole that are not to blame.
        whole: the verdict on the whole.
        first: the first stage of the ladder that is wrong.
    """
    by_inductor, is_eager = first in BY_INDUCTOR, first == "eager"
    reference = executor.reference(cell.model)
    named = named_failure(whole)
    told_by_ops = named is not None and named[1].gate in (*VALUES, "class") and _is_of_plain_call(named[0])
    if not first or not isinstance(reference, Path) or not (by_inductor or told_by_ops):
        return ""
    task = cell_task(executor.plan, replace(cell, mode=first) if first in COMPILED else cell, reference)
    task = replace(task, left_out=others if cell.id == whole.cell else (), plain=True)
    beside = replace(
        task, cell=replace(cell, mode="eager", precision="fp32" if is_eager else cell.precision), sources=()
    )
    asked = CulpritTask(task, beside, _shown(whole))
    found = child.run(BISECT if by_inductor else FIND_OP, asked, deadline=executor.plan.deadline).result
    return found.said if found else ""


def _shown(whole: Verdict) -> tuple[str, ...]:
    """The statuses that show the fault of a verdict: what raises an error further on may be wrong before."""
    return (whole.status, "FAIL") if whole.status == "ERROR" else (whole.status,)


def _breaks(verdict: Verdict) -> int:
    return int(verdict.observation.facts.get("graph breaks", 0))


def _in_words(verdict: Verdict) -> str:
    return f"{verdict.status}{': ' * bool(verdict.text)}{one_line(verdict.text)}."


def _stage(verdict: Verdict) -> str:
    """Whether forward or backward is wrong, or what forward leaves; "" if the verdict does not tell."""
    kinds = {one.tensor.kind for one in verdict.observation.discrepancies if failed_gate(one)}
    if not kinds:
        return ""
    if kinds <= {"buffer", "attribute"}:
        return "in what forward leaves in buffers or attributes"
    return "in backward" if kinds <= {"gradient", "second", "buffer", "attribute"} else "in forward"


# The text.


def _numbers_text(numbers: Sequence[Numbers]) -> str:
    """The table of the tensors, worst first."""
    cases = len({one.case for one in numbers}) > 1
    rows = [
        (
            f"{one.tensor}{f', case {one.case}' * cases}",
            one.dtype,
            one.gate,
            figure(one.margin),
            *map(_number, (one.error, one.eager)),
            one.at,
            _number(one.ulps),
        )
        for one in numbers[:MOST_ROWS]
    ]
    head = ("tensor", "dtype", "gate", "of its budget", "error", "eager's", "worst at", "ULPs")
    more = f"\n… and {len(numbers) - MOST_ROWS} tensors more" if len(numbers) > MOST_ROWS else ""
    return f"The numbers: errors relative to float64, ‖y − y*‖ / ‖y*‖\n{table(rows, head)}{more}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _sign(verdict: Verdict) -> str:
    word = figure(verdict.margin or 0.0) if verdict.status == "PASS" else verdict.short
    return f"{STATUSES[verdict.status].glyph} {word}"


def _ladder_text(rungs: Sequence[Rung], found: Mapping[str, Verdict]) -> str:
    """The table of the modes, each with its verdict."""
    rows = [(rung.cell.mode, rung.cell.precision, rung.said, _sign(found[rung.cell.id])) for rung in rungs]
    return f"The ladder\n{table(rows, ('mode', 'precision', 'what it is', 'verdict'))}"


def _advice(whole: Verdict, place: Place, rungs: Sequence[Rung], found: Mapping[str, Verdict]) -> Iterator[str]:
    """In which stage and module the fault begins, and with which switches it is gone, a sentence each."""
    mode, statuses = mode_of(whole.cell), {rung.cell: found[rung.cell.id].status for rung in rungs}
    first = _first_wrong(whole, rungs, found)
    where = f", before the end of {place.end}{', ' * bool(place.stage)}{place.stage}" if place.end else ""
    if first == "eager":
        right = [rung.cell.precision for rung in rungs if rung.kind == "beside" and statuses[rung.cell] == "PASS"]
        alone = f"; the same in {' and '.join(right)} is right" if right else ""
        yield f"Eager is wrong{where}, so the model or a kernel of torch is to blame, and no compiler{alone}."
    elif first:
        yield f"The fault begins with {first}{where}."
    right_by = [rung.cell.mode for rung in rungs if rung.kind == "stage" and statuses[rung.cell] == "PASS"]
    if first == mode not in COMPILED and "compiled" in right_by:
        yield "Inductor computes the same rightly."
    mended = [f"`{rung.said}`" for rung in _mended(rungs, found)]
    if any(rung.kind == "mending" for rung in rungs):
        yield f"It is gone with {some(mended, 2)}." if mended else "None of the switches mends it."


def _first_wrong(whole: Verdict, rungs: Sequence[Rung], found: Mapping[str, Verdict]) -> str:
    """The first stage that shows the fault; "" if none does."""
    stages = [rung.cell for rung in rungs if rung.kind == "stage"]
    return next((cell.mode for cell in stages if found[cell.id].status in _shown(whole)), "")


def _mended(rungs: Sequence[Rung], found: Mapping[str, Verdict]) -> list[Rung]:
    return [rung for rung in rungs if rung.kind == "mending" and found[rung.cell.id].status == "PASS"]


def _declared(verdict: Verdict) -> Iterator[str]:
    if verdict.reason:
        yield f"It is declared: {verdict.reason}{f' ({verdict.link})' if verdict.link else ''}"


def _known_faults(mended: Sequence[Rung], device: str) -> Iterator[str]:
    """The known faults of this torch for which the text of a probe names a switch that mends the cell."""
    if not mended:
        return
    asked = ProbesRequest(PACKAGE, device)
    for probe in ask_child("reading the probes", READ_PROBES, asked, "forkserver").probes:
        if probe.declared and any(rung.said in probe.remedy for rung in mended):
            yield f"A known fault of torch is gone with it too: {probe.summary} ({probe.name}, {probe.link})."


def _say_unsearched(verdict: Verdict) -> str:
    """What follows for a cell of which nothing more is judged; of one that is not red, how far it is from that."""
    if verdict.status in UNSEARCHED:
        return f"What follows\n{UNSEARCHED[verdict.status]}"
    far = (
        ""
        if verdict.margin is None
        else f": its worst error is {figure(verdict.margin)} of the budget, and 1 is the limit"
    )
    return f"What follows\nThe cell is not red{far}."
