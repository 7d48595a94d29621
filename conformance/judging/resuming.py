"""Says with which command a stored run goes on, and refuses to execute code that this command does not name.

Resuming a run executes the files and modules that its plan names, and the run folder may come from somebody else. So
the command names each of them again. The models of the zoo are part of this project and need no name.
"""

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from conformance.cache import sources
from conformance.errors import UsageError, some
from conformance.records.plan import Plan, SpecLocation

TRUST = "--trust"  # the word that allows saved models to run code when they are opened


def command(folder: Path, plan: Plan) -> str:
    """The words for a shell that resume the run of a folder."""
    return shlex.join(["conformance", "run", *_sources(plan), "--resume", str(folder)])


def next_step(folder: Path, plan: Plan, changed: Sequence[str]) -> str:
    """How a run that lacks verdicts goes on: it is resumed, or started again if files have changed meanwhile."""
    if not changed:
        return command(folder, plan)
    again = f": {shlex.join(['conformance', *plan.command])}" if plan.command else ""
    return f"{some(changed)} changed while the run went on, so start a new one{again}"


def of_cell(asked: str, folder: Path, plan: Plan, cell: str) -> str:
    """The words for a shell of a command, such as "explain", on a cell of a run, whose plan is cut to this cell."""
    return shlex.join(["conformance", asked, str(folder), cell, *_sources(plan)])


def refuse_unnamed(folder: Path, plan: Plan, named: Collection[str], again: str) -> None:
    """Refuse to execute what a stored plan names unless the command line names each of its sources.

    Args:
        folder: the run folder.
        plan: its plan, or a part of it.
        named: the sources that the command line names.
        again: the command with all of them.

    Raises:
        UsageError: a source must be named, or a named one is not part of the run; the message names it.
    """
    wanted = _sources(plan)
    given = {source if source in wanted else _place(source): source for source in named}
    for place, source in given.items():
        if place not in wanted:
            raise UsageError(f"{folder} has no source {source} there; want {again}")
    missing = [place for place in wanted if place not in given]
    if missing == [TRUST]:
        raise UsageError(f"what {folder} names may run code when it is opened; if you trust those who made it: {again}")
    if missing:
        raise UsageError(f"{folder} would execute {missing[0]}; name its sources to allow it: {again}")


def sources_of(place: SpecLocation) -> tuple[str, ...]:
    """What a command must name to judge the model of a location: all that it executes; nothing if it is of the zoo."""
    trust = (TRUST,) if place.needs_trust else ()
    return () if place.is_of_zoo else (*dict.fromkeys(place.executed), *trust)


def _sources(plan: Plan) -> list[str]:
    """The sources of a plan, each once."""
    every = (*(model.location for model in plan.models.values()), *plan.modes.values())
    return list(dict.fromkeys(name for place in every for name in sources_of(place)))


def _place(source: str) -> str:
    """The name of the location of a source: the path of its file, or its module."""
    file = source if Path(source).is_file() else source.rpartition(":")[0]
    if Path(file).is_file():
        return str(Path(file).resolve())
    return (sources.place_of(source) or source).partition(":")[0]
