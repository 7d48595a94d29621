"""Writes the pages that follow from specs, probes and docstrings: `python docs/build.py`."""

from __future__ import annotations

import ast
import functools
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.append(str(FOLDER.parent))  # else docs/zoo, which has no __init__.py, is imported for an editable zoo

import zoo_pages  # noqa: E402

import conformance  # noqa: E402
from conformance.commands import probes  # noqa: E402
from conformance.show import probes as probes_page  # noqa: E402
from conformance.torch_versions import VERSIONS  # noqa: E402


def architecture_page() -> str:
    """docs/architecture.md, its tables of rooms and files written anew."""
    text = (FOLDER / "architecture.md").read_text(encoding="utf-8")
    return re.sub(r"(?s)(<!-- rooms -->\n).*(<!-- /rooms -->)", lambda m: f"{m[1]}{_rooms()}{m[2]}", text)


def _rooms() -> str:
    package = Path(conformance.__path__[0])
    rooms = sorted(path.parent for path in package.glob("*/__init__.py"))
    parts = [_files("Top level", "Words that every room may use, and the doors into the rooms.", package)]
    parts += [_files(f"`{room.name}/`", _docstring(room / "__init__.py"), room) for room in rooms]
    return "\n".join(parts) + "\n"


def _files(title: str, summary: str, folder: Path) -> str:
    """A heading, a sentence, and a table with one row for each file."""
    package = Path(conformance.__path__[0])
    files = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
    rows = [f"| `{path.relative_to(package)}` | {zoo_pages.escaped(_summary(path))} |" for path in files]
    return "\n".join([f"### {title}", "", summary, "", "| file | what it does |", "|---|---|", *rows, ""])


def _summary(path: Path) -> str:
    """The first sentence of a module's docstring."""
    return " ".join(re.split(r"(?<=\.)\s", _docstring(path), maxsplit=1)[0].split())


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def with_versions(name: str) -> str:
    """A page, its list of the versions of torch written anew."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    listed = f"{', '.join(VERSIONS[:-1])} and {VERSIONS[-1]}"
    return re.sub(r"(<!-- torch versions -->).*?(<!-- /torch versions -->)", lambda m: f"{m[1]}{listed}{m[2]}", text)


PAGES = {
    "zoo.md": zoo_pages.index,
    **{f"zoo/{folder}.md": functools.partial(zoo_pages.entries, folder) for folder in zoo_pages.TITLES},
    "probes.md": lambda: probes_page.page(probes.read("cpu")),
    "architecture.md": architecture_page,
    **{name: functools.partial(with_versions, name) for name in ("ci.md", "../README.md", "../CHANGELOG.md")},
}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / name).parent.mkdir(exist_ok=True)
        (FOLDER / name).write_text(page(), encoding="utf-8")
