"""Writes the pages that follow from specs, probes, docstrings and records: `python docs/build.py`."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.append(str(FOLDER.parent))  # else docs/zoo, which has no __init__.py, is imported for an editable zoo

import run_schema  # noqa: E402
import zoo_pages  # noqa: E402

import conformance  # noqa: E402
import zoo  # noqa: E402
from conformance.commands import probes  # noqa: E402
from conformance.figures import atlas  # noqa: E402
from conformance.figures.atlas import RED, Atlas  # noqa: E402
from conformance.records.plan import Judge  # noqa: E402
from conformance.torch_versions import PYTHONS, VERSIONS  # noqa: E402

DAY = len("2026-11-28")
OF_THE_PROJECT = ("README", "CHANGELOG", "CONTRIBUTING")


def architecture_page() -> str:
    """docs/architecture.md, its tables of rooms and files written anew."""
    text = (FOLDER / "architecture.md").read_text(encoding="utf-8")
    return re.sub(r"(?s)(<!-- rooms -->\n).*(<!-- /rooms -->)", lambda m: f"{m[1]}{_rooms()}{m[2]}", text)


def _rooms() -> str:
    """A table with one row for each room, and one for each file at the top."""
    package = Path(conformance.__path__[0])
    rooms = [(f"{path.parent.name}/", path) for path in sorted(package.glob("*/__init__.py"))]
    files = [(path.name, path) for path in sorted(package.glob("*.py")) if path.name != "__init__.py"]
    rows = [f"| `{name}` | {zoo_pages.escaped(_summary(path))} |" for name, path in (*rooms, *files)]
    return "\n".join(["| room or file | what it does |", "|---|---|", *rows, ""])


def _summary(path: Path) -> str:
    """A module's docstring up to its first empty line, on one line."""
    return " ".join(_docstring(path).partition("\n\n")[0].split())


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def written_anew(name: str) -> str:
    """A page: between its marks, the versions of torch and of Python that are supported, and what was seen of them."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    found = atlas.read(FOLDER / "compat.json")
    assert found
    runs = seen(found)
    for mark, words in {
        "torch versions": in_words(VERSIONS),
        "Pythons": f"{PYTHONS[0]} to {PYTHONS[-1]}",
        "seen": bulleted(runs),
        "seen last": bulleted(run for run in runs if run[:DAY] == runs[0][:DAY]),
    }.items():
        begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
        text = re.sub(f"(?s)({begin}).*?({end})", rf"\g<1>{words}\g<2>", text)
    return text


def bulleted(lines: Iterable[str]) -> str:
    """A list in Markdown, between two line breaks."""
    return "".join(f"\n- {line}" for line in lines) + "\n"


def seen(found: Atlas) -> list[str]:
    """What the runs of an atlas show, the newest first: one line for all modes and versions that were judged alike.

    A line holds the date, the revision, torch, Python, the devices, the modes, how many of their cells were judged, and
    how many of these are red now.
    """
    versions: dict[tuple[Judge, str, str, int, str], list[str]] = {}
    for maker in found.makers:
        for mode, judged in maker.cells.items():
            versions.setdefault((maker.judge, maker.python, in_words(maker.devices), judged, mode), []).append(
                maker.torch
            )
    modes: dict[tuple[Judge, str, str, int, tuple[str, ...]], list[str]] = {}
    for (*alike, mode), torch in versions.items():
        modes.setdefault((*alike, tuple(torch)), []).append(mode)
    lines = []
    for (judge, python, devices, judged, torch), names in sorted(
        modes.items(), key=lambda item: item[0][0].day, reverse=True
    ):
        cells = [history.states for history in found.cells if history.cell.mode in names]
        red = sum(states[v].kind == RED for states in cells for v in torch if v in states)
        lines.append(
            f"{judge.day}, revision {judge.revision or 'unknown'}: torch {in_words(torch)}, Python {python}, "
            f"{devices}: {judged * len(names)} of {len(cells)} cells ({in_words(names)}), {red or 'none'} red"
        )
    unseen = sorted({*zoo.list_models()} - {history.cell.model for history in found.cells})
    return lines + [f"not judged yet: {in_words(unseen)}"] * bool(unseen)


def in_words(names: Sequence[str]) -> str:
    """Such as "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


PAGES = {
    "zoo.md": zoo_pages.index,
    **{f"zoo/{folder}.md": functools.partial(zoo_pages.entries, folder) for folder in zoo_pages.TITLES},
    "probes.md": lambda: zoo_pages.probes(probes.read("cpu").probes),
    "architecture.md": architecture_page,
    "run.schema.json": run_schema.page,
    **{
        name: functools.partial(written_anew, name)
        for name in ("ci.md", "../README.md", "../CHANGELOG.md", "../CONTRIBUTING.md")
    },
}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / name).parent.mkdir(exist_ok=True)
        (FOLDER / name).write_text(page(), encoding="utf-8")
