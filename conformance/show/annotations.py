"""Draws the red cells of a run as annotations of GitHub Actions: commands in the log that point at file and line."""

from __future__ import annotations

from pathlib import Path

from conformance.counted import counted, some
from conformance.one_line import one_line
from conformance.records.plan import Place
from conformance.show.causes import Cause, causes
from conformance.show.markdown import judged_verdicts
from conformance.show.text import visible
from conformance.store.run_files import Contents

MOST = 10  # GitHub shows no more of one step
OF_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
OF_PROPERTIES = OF_DATA | str.maketrans({":": "%3A", ",": "%2C"})


def error_commands(contents: Contents, root: Path) -> list[str]:
    """At most `MOST` commands: one for each cause, each at the line that names the model.

    Args:
        contents: contents of the run folder.
        root: the folder to which GitHub takes file names as relative; a file outside keeps its absolute path.
    """
    number = counted(len(contents.missing), "cell")
    missing = f"{number} not judged: {some(contents.missing)}"
    lines = [_command(missing, title="conformance")] if contents.missing else []
    found = causes(judged_verdicts(contents))
    room = MOST - len(lines)
    shown = found if len(found) <= room else found[: room - 1]
    lines += [_of_a_cause(cause, contents.plan.models[cause.model].written, root) for cause in shown]
    if len(shown) < len(found):
        left_out = f"{len(found) - len(shown)} more causes of red cells; the summary of this step lists them"
        lines.append(_command(left_out, title="conformance"))
    return lines


def _of_a_cause(cause: Cause, place: Place | None, root: Path) -> str:
    where = {} if place is None else {"file": _relative(place.file, root), "line": str(place.line)}
    title = f"{cause.model}: {counted(len(cause.cells), 'cell')} {cause.status}"
    return _command(f"{cause.text} ({cause.named})", **where, title=title)


def _relative(file: str, root: Path) -> str:
    path = Path(file)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else file


def _command(message: str, **properties: str) -> str:
    """A command that reports an error.

    >>> _command("50 % off", file="a,b.py", line="3")
    '::error file=a%2Cb.py,line=3::50 %25 off'
    """
    told = ",".join(f"{name}={_escape(value, OF_PROPERTIES)}" for name, value in properties.items())
    return f"::error {told}::{_escape(message, OF_DATA)}"


def _escape(text: str, signs: dict[int, str]) -> str:
    return one_line(visible(text)).translate(signs)
