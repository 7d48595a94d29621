"""`conformance run` and `conformance bench`: plan, judge under pytest, measure the cells that pass, print tables."""

import contextlib
import os
import secrets
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from conformance.commands import interrupts, judging, on_ray, planning, progress, stored
from conformance.commands.output import say, tell, what_was_lost
from conformance.errors import ExitCode, StoreError, UsageError, counted
from conformance.figures import speed
from conformance.judging import keeping, resuming
from conformance.judging.executor import Executor
from conformance.process import environment, pool
from conformance.records.convert import to_json
from conformance.records.measurements import Result
from conformance.records.plan import Plan
from conformance.records.tasks import PlanRequest
from conformance.show import ci, matrix, text
from conformance.store import files, run_files, shards
from conformance.store.run_files import Contents, Writer

JOBS: dict[str, Callable[[Contents, Executor], list[dict[str, Callable[[], Result]]]]] = {
    "speed": speed.default_jobs,
    "bench": speed.bench_jobs,
}


@dataclass(frozen=True)
class RunOptions:
    """The options of a run."""

    request: PlanRequest
    measure: str | None  # "" for nothing, "speed", or "bench"; None for the speeds of models of the zoo
    resume: Path | None  # the folder of a run to finish
    folder: Path  # in which new runs are stored
    fresh: bool = False  # reuse no verdict, reference or compiled code of earlier runs
    choice: judging.Choice = field(default_factory=judging.Choice)
    junit: Path | None = None  # the file for the results in JUnit's XML
    shard: tuple[int, int] | None = None  # number of the part to judge, from 1, and of all parts
    balance: Path | None = None  # a run whose seconds balance the parts; None for those of the zoo
    every_tensor: bool = False  # store what is measured of every tensor
    full: bool = False  # judge every case and time every model, although nobody has named a model
    strict: bool = False  # a mode that is not proven is red, and an undeclared graph break
    on: str = ""  # "ray", or the address of a Ray cluster that judges the cells; "" for this machine
    command: tuple[str, ...] = ()  # what was typed after `conformance`


def run(options: RunOptions) -> int:
    """Start a new run or resume a stored one, and print its report.

    Returns:
        An exit code; never `OK` if a cell is red or has no verdict.

    Raises:
        UsageError: the run cannot be planned, stored or resumed, or pytest does not take the further options.
        MachineError: the file for JUnit cannot be written; the run is stored.
        KeyboardInterrupt: it was interrupted before it had a folder.
    """
    if options.junit:
        _check_writable(options.junit.parent, f"--junitxml {options.junit}")
    judging.check_options(options.choice)
    folder = folder_to_resume(options.resume, options.request) if options.resume else _new_run(options)
    started = time.monotonic()
    plan = run_files.read_plan(folder)
    if plan.shard and plan.is_empty_shard:
        tell(f"shard {plan.shard} is empty: the other shards have all {counted(plan.shard.cells, 'cell')}")
    again = resuming.command(folder, plan)
    interrupts.speak(f"interrupted: {text.visible(again)}", lambda: _report(options, folder, started))
    code = _session(options, folder, Writer(folder))
    if code == ExitCode.NOTHING_SELECTED:
        expression = options.choice.expression
        say(f"no cell is selected{f' by -k {expression!r}' if expression else ''}")
        if not options.resume:
            shutil.rmtree(folder)
            return code
    with interrupts.hold():
        if (folder / run_files.PLAN).exists():  # nobody has removed it, or that is said
            _report(options, folder, started)
    return code


def _session(options: RunOptions, folder: Path, writer: Writer) -> int:
    """Do what is not stored yet; the writer keeps everybody else out. What the machine could not do is said."""
    try:
        try:
            files.remove(folder / run_files.REFERENCES)  # those of an earlier session, or of somebody else
            return _judge_and_measure(options, folder, writer)
        finally:
            with interrupts.hold():
                with contextlib.suppress(StoreError):  # the next session removes them
                    files.remove(folder / run_files.REFERENCES)
                writer.close()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except (StoreError, OSError) as problem:
        say(str(problem))
        return ExitCode.RED
    except UsageError:
        if not options.resume and not (folder / run_files.LINES).stat().st_size:  # nothing is lost with it
            shutil.rmtree(folder)
        raise


def _judge_and_measure(options: RunOptions, folder: Path, writer: Writer) -> int:
    contents = stored.read(folder)
    choice = options.choice
    if contents.changed:  # everything holds what was planned again, or it would not be resumed
        writer.note_changed(())
    with planning.children_prepared(contents.plan, fresh=options.fresh, cores=choice.workers), _engine(options) as on:
        with _kept_verdicts(options, contents, folder, writer):
            contents = run_files.read(folder)
            code = on.judge_missing(choice, contents, folder, writer) if contents.missing else ExitCode.OK
        code = stored.exit_code(run_files.read(folder)) if code == ExitCode.OK else code
        if code in (ExitCode.OK, ExitCode.RED) and contents.plan.measure:
            with on.held_alone():
                _measure(options, folder, writer)
    return code


class _Here:
    """The engine without a cluster: pytest and its workers judge the cells, and the meter has a lock of its own."""

    judge_missing = staticmethod(judging.judge_missing)
    held_alone = contextlib.nullcontext


def _engine(options: RunOptions) -> contextlib.AbstractContextManager[_Here | on_ray.Cluster]:
    return on_ray.connected(options.on, fresh=options.fresh) if options.on else contextlib.nullcontext(_Here())


@contextlib.contextmanager
def _kept_verdicts(options: RunOptions, contents: Contents, folder: Path, writer: Writer) -> Iterator[None]:
    """Store the verdicts that earlier runs keep, and afterwards keep those that were given now."""
    references = environment.references_in_use()
    if references is None or options.choice.expression or os.environ.get("CI"):
        yield
        return
    known = keeping.KeptVerdicts(contents.plan, Executor(contents.plan, folder / run_files.REFERENCES), references)
    shown, again = keeping.split(known.find(contents.missing))
    if shown:
        writer.add_kept(kept.marked for kept in shown.values())
    try:
        yield
    finally:
        verdicts = run_files.read(folder).verdicts
        given = {cell: verdicts[cell] for cell in contents.missing if cell in verdicts}
        for cell in again.keys() & given.keys():
            if other := keeping.contradiction(given[cell], again[cell]):
                writer.add(to_json(other))
                given[cell] = other
        known.keep(given)


def _report(options: RunOptions, folder: Path, started: float) -> None:
    """Print what is stored, and how to go on if something is missing. Tell GitHub and JUnit what they ask for."""
    seconds = time.monotonic() - started
    contents = run_files.read(folder)
    tell(f"\n{stored.report(contents, folder, seconds)}")
    again = text.visible(shlex.quote(str(folder)))
    lost = what_was_lost()
    if lost:
        say(f"the output could not be written: {lost}; conformance show {again} prints it again")
    stored.announce(contents, folder)
    if options.junit:
        ci.write_junit(contents, options.junit)


def _measure(options: RunOptions, folder: Path, writer: Writer) -> None:
    """Take the measurements that are not stored yet, if all cells are judged. The verdicts are shown before."""
    contents = run_files.read(folder)
    if contents.missing:
        return
    executor = Executor(contents.plan, folder / run_files.REFERENCES)
    jobs = JOBS[contents.plan.measure](contents, executor)
    taken = dict(contents.results)
    pending = [name for batch in jobs for name in batch if speed.is_needed(name, taken)]
    if not pending:
        return
    if contents.plan.measure == "speed":
        tell(f"\n{stored.report(contents, folder)}")
    tell(f"\ntaking up to {counted(len(pending), 'measurement')}")
    work = progress.Progress(dict.fromkeys(pending, progress.SPEED_SECONDS), "speed")
    ticker = progress.Ticker(work, every_line=options.choice.verbose)
    environment.compile_for(contents.plan.compiles_for)

    def needed() -> Iterator[dict[str, Callable[[], Result]]]:
        for batch in jobs:
            yield {name: job for name, job in batch.items() if speed.is_needed(name, taken)}
            work.keep([name for name in pending if name in taken or speed.is_needed(name, taken)])

    try:
        for name, result in pool.measure(needed()):
            executor.refuse_changed(contents.plan.digests)
            writer.add_result(name, result)
            taken[name] = result
            work.finish(name)
            ticker.show(matrix.measured_line(replace(contents, results=taken), name), urgent=False)
    finally:
        ticker.clear()


def _new_run(options: RunOptions) -> Path:
    """The folder of a new run."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder = (options.folder / "runs" / name).resolve()
    _check_writable(options.folder, f"--store {options.folder}")
    bench = options.measure == "bench"
    quick = not (bench or options.full or options.request.sources)
    plan = planning.make_plan(replace(options.request, all_sizes=bench, first_case=quick))
    plan = replace(_with_measures(plan, options, quick=quick), every_tensor=options.every_tensor, strict=options.strict)
    plan = replace(plan, judge=planning.describe_judge(), command=options.command)
    if options.shard:
        index, count = options.shard
        plan = shards.cut(plan, shards.split(plan, count, options.balance)[index - 1])
    run_files.create(folder, plan)
    return folder


def _with_measures(plan: Plan, options: RunOptions, *, quick: bool) -> Plan:
    """The plan with what is measured: without a wish, the speeds of models of the zoo, in a quick run of its heart."""
    if options.measure is not None or options.full:
        return replace(plan, measure="speed" if options.measure is None else options.measure)
    precisions = tuple(dict.fromkeys(one.cell.precision for one in plan.cells))
    chosen = [
        name
        for name, model in plan.models.items()
        if model.location.is_of_zoo and model.shape is None and (name in speed.HEART or not quick)
    ]
    timed = dict.fromkeys(chosen, speed.HEART_PRECISIONS if quick else precisions)
    models = {name: replace(model, timed=timed.get(name, ())) for name, model in plan.models.items()}
    return replace(plan, measure="speed" if timed else "", models=models)


def _check_writable(folder: Path, asked: str) -> None:
    """Refuse a folder that cannot be written, before anything is planned. The only test is to write into it.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        nearest = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as problem:
        raise UsageError(f"{asked}: {problem.strerror}") from None


def folder_to_resume(folder: Path, request: PlanRequest) -> Path:
    """The folder of a stored run that can go on, as a user asks for it: with each source that is not of the zoo.

    Raises:
        UsageError: it is no run folder, other cells were asked for, its sources are not named, or a verdict could
            come out differently than when the run was planned; the message names all that has changed.
    """
    if request.modes or request.precisions or request.devices or request.shapes:
        raise UsageError("--resume takes its cells from the stored run; leave out axes and --shapes")
    folder = folder.resolve()
    contents = run_files.read(folder)
    stored.report(contents, folder)  # refuses records that contradict each other
    plan = contents.plan
    named = (*request.sources, *[resuming.TRUST] * request.given.trusted)
    resuming.refuse_unnamed(folder, plan, named, resuming.command(folder, plan))
    planning.refuse_changed(folder, plan)
    stored.tell_torn(contents, folder)
    return folder
