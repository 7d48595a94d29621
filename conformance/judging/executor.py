"""Runs each cell in its own process, after the reference of its model and the probes on which divergences hang."""

import contextlib
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from conformance.axes import MODES, PRECISIONS
from conformance.cache.references import KeptReferences, References
from conformance.cache.sources import Watch, written_since
from conformance.errors import FAULT, ChangedError, MachineError, with_last_lines
from conformance.process import child, child_side, environment, process_table
from conformance.records import tasks
from conformance.records.cell import PROBED, Cell, Observation, Verdict
from conformance.records.plan import Plan, PlannedCell, SpecLocation, say_set
from conformance.verdict import judge
from zoo.expect import Expect

UNTOLD = "the probe {name} did not tell whether its fault shows on this machine, so nothing is declared by it: {why}"


def run_probe(name: str, device: str, deadline: float) -> child.Ending[tasks.ProbeSighting]:
    """Run one probe in a process of its own, with its own compile cache."""
    with TemporaryDirectory(prefix="conformance-probe-", ignore_cleanup_errors=True) as cache:
        return child.run(tasks.RUN_PROBE, tasks.ProbeTask(f"{tasks.PACKAGE}.{name}", device, cache), deadline=deadline)


def probe_outcome(ending: child.Ending[tasks.ProbeSighting]) -> tuple[str, str]:
    """How a probe ended, or what kind of sighting it was; and what it said."""
    result = ending.result
    return (result.kind, result.text) if result is not None else (ending.kind, ending.message)


def shows_fault(symptom: str, kind: str, text: str) -> bool | None:
    """Whether a probe saw its fault, by what it told; None if it saw something else, or could not look."""
    if text == symptom and kind in ("saw", "crashed"):
        return True
    return False if kind == "unavailable" or (kind == "saw" and not text) else None


class Probed:
    """What probes show on this machine. Each runs once, when a cell first asks for it.

    Args:
        deadline: seconds that a probe may take.
        symptoms: what each returns where its fault shows, by its name.
    """

    def __init__(self, deadline: float, symptoms: Mapping[str, str]) -> None:
        self._deadline, self._symptoms = deadline, symptoms
        self._known: dict[tuple[str, str], tuple[bool | None, str]] = {}

    def facts(self, expected: Iterable[Expect], device: str) -> tuple[dict[str, bool], tuple[str, ...]]:
        """For the judge, whether each fault shows on which one of these divergences hangs; and remarks for the report.

        Raises:
            OSError: the system starts no process.
        """
        found: dict[str, bool] = {}
        remarks = []
        for one in expected:
            if one.probe:
                shown, why = self._find_out(one.probe, device)
                found[PROBED + one.probe] = bool(shown)
                remarks += [UNTOLD.format(name=one.probe, why=why)] if shown is None else []
        return found, tuple(remarks)

    def _find_out(self, probe: str, device: str) -> tuple[bool | None, str]:
        key = probe, device
        if key not in self._known:
            found = probe_outcome(run_probe(probe, device, self._deadline))
            self._known[key] = shows_fault(self._symptoms[probe], *found), ": ".join(filter(None, found))
        return self._known[key]


# Runs the cells.

REFERENCE_FACTOR = 2  # a reference runs a model some fifty times
REFERENCE_SECONDS = 3600.0  # at least, so that a large model gets its reference; a shorter limit must be asked for
REFERENCES_MADE_AGAIN = 1  # if the file of one is damaged
WRITTEN = "{} was written to while this was judged, twice, and holds the same again"
NOTHING_RAN = ("start", child_side.WAITING)  # phases before any of a model's code runs
DAMAGED, MACHINE = "damaged reference", "machine failed"
SPOILED = ("ERROR", "CRASH")  # how a cell ends whose stored code is damaged
NO_COMPILER = "NoCompilerError"  # no stored code is to blame for that
SIMPLEST_SECONDS = 120.0  # to compile the simplest model
OF_COMPILER = "torch.compile of x * 2 fails on this machine too, so its compiler is to blame and not the model: {}"
BEFORE_COMPILING = (*NOTHING_RAN, "reference", "import", "build")  # phases in which nothing is compiled
CONFIRMED = "compiled once more without the compile cache, with the same result"
HEALED = (
    "the first try, with stored code of the compile cache, ended in {status} ({text}); the verdict is that of code "
    "compiled anew, and the cache was emptied"
)


class Executor:
    """Judges the cells of a plan. All processes of a run share the folder of its references."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self._references = References(folder)
        self._kept = KeptReferences(environment.references_in_use(), plan.environment, plan.digests)
        self._stored: Path | None = None  # the compile cache, once a cell has found code in it
        self._probed = Probed(plan.deadline, plan.symptoms)
        self._watch = Watch()
        self._compiler: str | None = None  # what is wrong with it, once that is known

    def verdict(self, planned: PlannedCell) -> Verdict:
        """Run one planned cell and judge it.

        Raises:
            MachineError: the machine failed, so the cell has no verdict.
            ChangedError: a file has changed on which the cell depends.
        """
        if planned.skip:
            return Verdict(planned.id, "SKIPPED", planned.skip, short="skipped")
        found = (
            self._judge_compiled(planned) if planned.cell.mode in self.plan.compiling_modes else self._judge(planned)
        )
        switches = say_set(self.plan.environment.variables) if planned.cell.mode != "eager" else ""
        limit = process_table.say_memory_limit() if found.status == "OOM" else ""
        return replace(found, text="; ".join(filter(None, (found.text, switches, limit)))) if found.red else found

    def _judge_compiled(self, planned: PlannedCell) -> Verdict:
        environment.compile_for(self.plan.compiles_for)
        self._stored = self._stored or _filled_cache()
        found = self._judge(planned)
        if self._stored and _is_spoiled(found):
            found = self._judge_anew(planned, found, self._stored)
        why = self.fault_of_compiler() if needs_cpp(planned.cell) and _is_spoiled(found, (*SPOILED, "TIMEOUT")) else ""
        seen = replace(found.observation, error=NO_COMPILER)
        return replace(found, text=OF_COMPILER.format(why), observation=seen) if why else found

    def fault_of_compiler(self) -> str:
        """What goes wrong if the simplest model is compiled; "" if nothing does."""
        if self._compiler is None:
            with _starting("the compiler"):
                ending = child.run(tasks.SIMPLEST, tasks.Nothing(), deadline=min(self.plan.deadline, SIMPLEST_SECONDS))
            self._compiler = ending.message if ending.result is None else ""
        return self._compiler

    def _judge_anew(self, planned: PlannedCell, first: Verdict, stored: Path) -> Verdict:
        """The verdict of code that is compiled anew, in a process that shares nothing with the others."""
        with TemporaryDirectory(prefix="conformance-cache-", ignore_cleanup_errors=True) as cache:
            found = self._judge(planned, cache=cache, method="spawn")
        if _is_spoiled(found):
            return replace(found, notes=(*found.notes, CONFIRMED))
        shutil.rmtree(stored, ignore_errors=True)
        return replace(found, notes=(*found.notes, HEALED.format(status=first.status, text=first.text)))

    def _judge(self, planned: PlannedCell, *, cache: str = "", method: str = "forkserver") -> Verdict:
        cell = planned.cell
        with _starting(cell.id):
            shown, untold = self._probed.facts(planned.expect, cell.device)
        for _ in range(1 + REFERENCES_MADE_AGAIN):
            made = self._references.of(cell.model, self._make)
            if made.refused is not None:
                return judge(cell.id, replace(made.refused, facts=shown), planned.expect)
            task = cell_task(self.plan, cell, self._references.path(cell.model))
            kept = made.fingerprint if made.kept else ""
            task = replace(task, cache=cache, fingerprint=kept, left_out=planned.left_out, plain=planned.plain)
            known = self._known_of(cell, made)
            run = partial(_run_child, cell.id, tasks.CELL, task, deadline=self.plan.deadline, method=method)
            ending = self._undisturbed(known, run)
            seen = ending.result or Observation(ending.kind, ending.phase, message=ending.message, said=ending.said)
            if seen.ending != DAMAGED:
                break
            self._references.forget(cell.model, made)
            self._kept.forget(self.reference_task(cell.model))
        if seen.ending in (DAMAGED, MACHINE):
            raise MachineError(f"{cell.id} was not judged: {seen.message}")
        seconds = {tasks.KEPT if made.kept else "reference": made.seconds, **seen.seconds}
        seen = replace(seen, seconds=seconds, facts={**seen.facts, **shown, **self._gpu_of(cell)})
        whole = not planned.left_out and self.plan.models[cell.model].shape is None
        verdict = judge(cell.id, seen, planned.expect, whole=whole, strict=self.plan.strict)
        notes = (*verdict.notes, *ending.remarks, *untold)
        return replace(verdict, seconds=ending.seconds, notes=notes)

    def _gpu_of(self, cell: Cell) -> dict[str, str]:
        """The fact which GPU judged a cell, by its number and name; nothing on the CPU."""
        number = environment.gpu_in_use()
        if cell.device != "cuda" or number is None:
            return {}
        return {"gpu": f"cuda:{number}, {self.plan.environment.gpus[number]}"}

    def reference(self, model: str) -> Observation | Path:
        """Path of a model's reference file, made if needed; if that fails, the observation for each of its cells.

        The model may be one at a size that is not planned, such as "merge@4096": its reference is only for timing.

        Raises:
            MachineError: the machine failed, so there is no reference.
            ChangedError: a file has changed on which it depends.
        """
        return self._references.of(model, self._make).refused or self._references.path(model)

    def reference_task(self, model: str) -> tasks.ReferenceTask:
        """The task of making the reference of a model, which may be one at a size that is not planned."""
        wanted = {planned.cell.precision for planned in self.plan.cells} | {"fp32"}
        wanted |= {*self.plan.shard.precisions} if self.plan.shard else set()
        precisions = tuple(name for name in PRECISIONS if name in wanted)
        plan, path, is_sized = self.plan, self._references.path(model), model not in self.plan.models
        location = plan.models[model.partition("@")[0] if is_sized else model].location
        light = is_sized or (location.part is not None and location.part.light)
        return tasks.ReferenceTask(model, location, plan.seed, precisions, str(path), light)

    def _make(self, model: str) -> tasks.MadeReference:
        task = self.reference_task(model)
        kept = self._kept.fetch(task)
        if kept is not None:
            return kept
        deadline = REFERENCE_FACTOR * self.plan.deadline
        if self.plan.deadline >= tasks.CELL_SECONDS:
            deadline = max(deadline, REFERENCE_SECONDS)
        started = time.time_ns()
        run = partial(
            _run_child, f"the reference of {model}", tasks.REFERENCE, task, deadline=deadline, method="forkserver"
        )
        ending = self._undisturbed(self._located(task.location), run, self._planned_of)
        seconds, result = round(ending.seconds, 4), ending.result
        if result is None:
            seen = Observation(ending.kind, "reference", message=ending.message, said=ending.said)
            return tasks.MadeReference(seconds, seen)
        if result.ending == MACHINE:
            raise MachineError(f"the reference of {model} was not made: {result.message}")
        if result.ending != "ok":
            return tasks.MadeReference(seconds, Observation(result.ending, message=result.message))
        made = tasks.MadeReference(
            seconds, files=result.files, variables=result.variables, fingerprint=result.fingerprint
        )
        self._kept.keep(task, made)
        unsteady = written_since(made.files.keys() - self.plan.digests.keys(), started)  # perhaps by the model itself
        return replace(made, files={path: what for path, what in made.files.items() if path not in unsteady})

    def _known_of(self, cell: Cell, made: tasks.MadeReference) -> Mapping[str, str]:
        """What the files hold on which a cell depends. What a mode from outside imports is not told apart."""
        own = (
            self.plan.digests if cell.mode in self.plan.modes else self._located(self.plan.models[cell.model].location)
        )
        return {**made.files, **own}

    def _located(self, location: SpecLocation) -> Mapping[str, str]:
        """What the files hold that a location names."""
        return {path: self.plan.digests[path] for path in location.paths if path in self.plan.digests}

    def _planned_of(self, ending: child.Ending[tasks.ReferenceResult]) -> Mapping[str, str]:
        """What the planned files hold on which a reference depends; one that tells nothing may depend on all."""
        files = self.plan.digests if ending.result is None else ending.result.files
        return {path: what for path, what in self.plan.digests.items() if path in files}

    def _undisturbed(
        self,
        known: Mapping[str, str],
        run: Callable[[], child.Ending[tasks.ResultT]],
        depends: Callable[[child.Ending[tasks.ResultT]], Mapping[str, str]] | None = None,
    ) -> child.Ending[tasks.ResultT]:
        """How a process ends all of whose files hold what was planned, from its start to its end.

        Args:
            known: what some of them hold.
            run: runs it.
            depends: what all of them hold, by how it ended; None if these are all.
        """
        for again in (True, False):  # once more, if somebody wrote to a source meanwhile, and it holds the same again
            self.refuse_changed(known)
            started = time.time_ns()
            ending = run()
            known = depends(ending) if depends else known
            self.refuse_changed(known)
            disturbed = written_since(known.keys() & self.plan.digests.keys(), started)
            if not disturbed or not again:
                break
        return replace(ending, remarks=(*ending.remarks, *(WRITTEN.format(file) for file in disturbed)))

    def refuse_changed(self, known: Mapping[str, str]) -> None:
        """Do nothing if files hold what is known of them; ChangedError if one does not."""
        if changed := self._watch.changed(known):
            raise ChangedError(changed)


def _run_child(
    what: str, target: tasks.Target[tasks.TaskT, tasks.ResultT], task: tasks.TaskT, *, deadline: float, method: str
) -> child.Ending[tasks.ResultT]:
    """How a child process ended.

    Raises:
        MachineError: it did not start, or it ended before anything of the model ran.
    """
    with _starting(what):
        ending = child.run(target, task, deadline=deadline, method=method)
    if ending.kind == "crashed" and ending.message.startswith(FAULT):
        raise MachineError(f"{what} was not judged: {ending.message}")
    if ending.kind == "crashed" and ending.phase in NOTHING_RAN:
        text = f"{what} was not judged: its process ended before the model ran: {ending.message}"
        raise MachineError(with_last_lines(text, ending.said))
    return ending


@contextlib.contextmanager
def _starting(what: str) -> Iterator[None]:
    """Let a process that does not start be a failure of the machine."""
    try:
        yield
    except (OSError, MemoryError) as problem:
        raise MachineError(f"{what} was not judged: no process could be started: {problem}") from problem


def needs_cpp(cell: Cell) -> bool:
    """Whether a cell needs a compiler for C++."""
    mode = MODES.get(cell.mode)
    return cell.device == "cpu" and mode is not None and mode.needs_cpp


def _filled_cache() -> Path | None:
    """The compile cache; None if nothing is stored in it, or if it is torch's own."""
    folder = environment.cache_in_use()
    return folder if folder is not None and any(folder.glob("*")) else None


def _is_spoiled(verdict: Verdict, endings: Collection[str] = SPOILED) -> bool:
    """Whether a verdict may be that of damaged code or of a compiler, and not of the model."""
    seen = verdict.observation
    return verdict.status in endings and seen.phase not in BEFORE_COMPILING and seen.error != NO_COMPILER


def cell_task(plan: Plan, cell: Cell, reference: Path | None = None, expect: tuple[Expect, ...] = ()) -> tasks.CellTask:
    """The task with which a child process opens a cell of a plan."""
    sources = (plan.modes[cell.mode],) if cell.mode in plan.modes else ()
    return tasks.CellTask(cell, plan.models[cell.model].location, sources, plan.seed, str(reference or ""), expect)
