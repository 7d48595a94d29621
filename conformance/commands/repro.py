"""`conformance repro`: writes one script that shows why a cell is red, and hands it out once it has shown it."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from conformance.commands import planning, stored
from conformance.commands.explain import cut_to, explanation, find_verdict
from conformance.commands.output import say, tell
from conformance.errors import ExitCode, UsageError, with_last_lines
from conformance.judging import resuming
from conformance.judging.executor import Executor, cell_task
from conformance.process import child
from conformance.records.cell import Discrepancy, Verdict
from conformance.records.tasks import REPRO, ReproTask
from conformance.store.run_files import REFERENCES, Contents
from conformance.verdict import VALUES, named_failure

SHOWN = ("FAIL", "ERROR", "CRASH")  # the verdicts that a script can show, beside that of a wrong backward
WRONG_BACKWARD = "gradcheck in float64: Jacobian mismatch"  # so begins its text
OWN_ERROR = "an error of its own: "  # with which Python also exits with 1
ISSUE = """\
{model} in the mode {mode}, precision {precision}, on {device}: {text}

```python
{script}```

It prints:

```
{printed}
```

torch {env.torch}, Python {env.python}, {env.system}, {env.cpu} ({env.cpu_capability}){gpus}

What `conformance explain` says of it:

```
{explained}
```"""


@dataclass(frozen=True)
class Repro:
    """A script that has run.

    Attributes:
        path: where it is; None if it did not show the fault, so it is not handed out.
        printed: what it printed.
        imports: why it imports the model; "" if it holds its source.
    """

    path: Path | None
    printed: str
    imports: str


def hand_out(folder: Path, cell: str, named: Sequence[str], into: Path | None, *, issue: bool) -> ExitCode:
    """`conformance repro`: write the script for a cell of a stored run, and with `issue` print a text for an issue.

    `named` are the sources of the cell. Returns `RED` if the script did not show the fault, so that there is none.

    Raises:
        UsageError: the run cannot be read or has changed, has no such cell, a source must be named, or no script can
            show the cell.
        MachineError: the machine failed.
    """
    contents = stored.read(folder)
    _red_verdict(contents, cell)
    plan = cut_to(contents.plan, cell)
    resuming.refuse_unnamed(folder, plan, named, resuming.of_cell("repro", folder, plan, cell))
    planning.refuse_changed(folder, plan)
    made = reproduce(contents, cell, into)
    if made.path is None:
        say(f"{cell}: its script did not show the fault, so it is not handed out; it printed: {made.printed}")
        return ExitCode.RED
    if made.imports:
        say(f"{made.path} imports the model: {made.imports}")
    if not issue:
        tell(f"{made.path} ends with 1 and prints:\n{made.printed}")
        return ExitCode.OK
    gpus = "".join(f", {gpu}, CUDA {plan.environment.cuda}" for gpu in plan.environment.gpus)
    verdict, script = contents.verdicts[cell], made.path.read_text(encoding="utf-8")
    said = {"text": verdict.text, "script": script, "printed": made.printed, "explained": explanation(plan, verdict)}
    tell(ISSUE.format(**vars(plan.cells[0].cell), **said, env=plan.environment, gpus=gpus))
    return ExitCode.OK


def reproduce(contents: Contents, cell: str, into: Path | None = None) -> Repro:
    """Write the script for a cell, run it in a fresh process, and put it into a file if it shows the fault.

    Args:
        contents: the stored run.
        cell: id of the cell.
        into: the file; it must not exist. None: one in the working folder, named after the cell.

    Raises:
        UsageError: the run has no such cell, no script can show it, or the file exists or cannot be written.
        MachineError: the machine failed.
    """
    verdict, plan = _red_verdict(contents, cell), cut_to(contents.plan, cell)
    planned = plan.cells[0]
    path = into or Path("_".join(["repro", *vars(planned.cell).values()]).replace("@", "_") + ".py")
    if path.exists():
        raise UsageError(f"{path} exists; name another file by --into, or remove it")
    with TemporaryDirectory(prefix="conformance-repro-", ignore_cleanup_errors=True) as temporary:
        script = Path(temporary, path.name)
        with planning.children_prepared(plan):
            reference = Executor(plan, Path(temporary, REFERENCES)).reference(planned.cell.model)
            wrong_backward = verdict.text.startswith(WRONG_BACKWARD)
            if not (isinstance(reference, Path) or wrong_backward):
                raise UsageError(f"{cell} cannot be called again: its reference ended with {reference.message}")
            task = cell_task(plan, planned.cell, reference if isinstance(reference, Path) else None)
            task = replace(task, left_out=planned.left_out)
            fault = _fault(verdict) if verdict.status == "FAIL" else None
            asked = ReproTask(task, verdict.text, fault, verdict.observation.error, str(script), wrong_backward)
            ending = child.run(REPRO, asked, deadline=plan.deadline)
        if ending.result is None:
            told = with_last_lines(f"{cell}: its script was not written: {ending.message}", ending.said)
            raise UsageError(ending.message if ending.kind == "refused" else told)
        code, printed = _run(script, plan.deadline)
        shown = code == 1 and not printed.startswith(OWN_ERROR)
        if shown:
            _move(script, path)
        return Repro(path if shown else None, printed, ending.result.imports)


def _red_verdict(contents: Contents, cell: str) -> Verdict:
    verdict = find_verdict(contents, cell)
    if not verdict.red:
        margin = "" if verdict.margin is None else f": its worst error is {verdict.margin:.2g} of its budget"
        raise UsageError(f"{cell} is {verdict.status}, so there is nothing to reproduce{margin}")
    if verdict.status not in SHOWN and not verdict.text.startswith(WRONG_BACKWARD):
        raise UsageError(f"{cell} is {verdict.status}, which no script can show: {verdict.text}")
    return verdict


def _fault(verdict: Verdict) -> Discrepancy:
    """The tensor that the line of a verdict names, with one measure of one call that fails; the norm, if that does."""
    named = named_failure(verdict)
    if named is None:
        raise UsageError(f"{verdict.cell}: what was measured of the tensor is not stored: {verdict.text}")
    found, gate = named
    sizes = [m for m in found.measures if gate.gate in VALUES and m.gate in VALUES and not m.met]
    of_one_call = [m for m in sizes if " draws" not in m.detail] or [gate]
    return replace(found, measures=(min(of_one_call, key=lambda m: (m.gate != "norm", m != gate)),))


def _run(script: Path, deadline: float) -> tuple[int, str]:
    """The exit code of a script in a process of its own, and the last lines that it printed."""
    try:
        done = subprocess.run(  # noqa: S603 -- the person's own model
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"nothing within {deadline:g} s"
    lines = done.stderr.strip().splitlines() or ["nothing"]
    return done.returncode, done.stdout.strip() or f"{OWN_ERROR}{lines[-1]}"


def _move(script: Path, path: Path) -> None:
    try:
        for file in script.parent.glob(f"{script.stem}.*"):
            path.with_suffix(file.suffix).write_bytes(file.read_bytes())
    except OSError as problem:
        raise UsageError(f"{path} cannot be written: {problem.strerror}") from None
