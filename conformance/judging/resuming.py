"""Says with which command a stored run goes on, and refuses to execute code that this command does not name.

Resuming a run executes the files and modules that its plan names, and the run folder may come from somebody else. So
the command names each of them again. The models of the zoo are part of this project and need no name.
"""

import shlex
from collections.abc import Collection
from pathlib import Path

from conformance.cache import sources
from conformance.errors import UsageError
from conformance.records.plan import Plan


def command(folder: Path, plan: Plan) -> str:
    """The words for a shell that resume the run of a folder."""
    return shlex.join(["conformance", "run", *_sources(plan), "--resume", str(folder)])


def refuse_unnamed(folder: Path, plan: Plan, named: Collection[str]) -> None:
    """Refuse to resume a run unless the command line names each of its sources.

    Raises:
        UsageError: a source must be named, or a named one is not part of the run; the message names it.
    """
    wanted = _sources(plan)
    given = {source if source in wanted else _place(source): source for source in named}
    for place, source in given.items():
        if place not in wanted:
            raise UsageError(f"{folder} has no source {source}; a resumed run takes its cells from the stored run")
    missing = [place for place in wanted if place not in given]
    if missing:
        raise UsageError(f"{folder} would execute {missing[0]}; name its sources to allow it: {command(folder, plan)}")


def _sources(plan: Plan) -> list[str]:
    """The files, modules and architectures of a plan that are not of the zoo, each once."""
    every = (*(model.location for model in plan.models.values()), *plan.modes.values())
    places = [place for place in every if not place.is_of_zoo]
    return list(dict.fromkeys(name for place in places for name in (place.name, *place.paths)))


def _place(source: str) -> str:
    """The name of the location of a source: the path of its file, or its module."""
    file = source if Path(source).is_file() else source.rpartition(":")[0]
    if Path(file).is_file():
        return str(Path(file).resolve())
    return (sources.place_of(source) or source).partition(":")[0]
