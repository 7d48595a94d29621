"""Writes the pages that follow from specs, probes and docstrings: `python docs/build.py`."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import conformance
import zoo
from conformance.axes import MODES, PRECISIONS, exists
from conformance.cell.modes import BUILDERS
from conformance.commands import probes
from conformance.show import probes as probes_page
from conformance.torch_versions import DEFAULT, VERSIONS
from zoo.expect import Expect
from zoo.spec import Spec

FOLDER = Path(__file__).parent
DEVICE, TORCH = "cpu", DEFAULT  # the dtypes of the page are those of this device and version
COLUMNS = [name for name, precision in PRECISIONS.items() if exists(precision, DEVICE)]
TITLES = {
    "models": "Models",
    "ops": "Ops",
    "functions": "Custom Functions",
    "training": "Training",
    "counterexamples": "Counterexamples",
}

ZOO = f"""# The zoo

`python docs/build.py` writes this page from the specs. `zoo.create_model(name)` builds an entry, and
`zoo.example_inputs(name)` gives its inputs.

The columns `{"`, `".join(COLUMNS)}` give the dtype of the outputs at that precision on the {DEVICE.upper()} with
torch {TORCH}. It is the same in every mode unless a mode is named. *input* is the promoted dtype of the floating
inputs. *as eager* means that the spec declares no dtype, so eager decides.
"""


def zoo_page() -> str:
    """docs/zoo.md."""
    return "\n".join([ZOO, *(_section(folder, title) for folder, title in TITLES.items())])


def _section(folder: str, title: str) -> str:
    specs = [zoo.get_spec(name) for name in zoo.list_models(module=folder)]
    head = ["name", "formula", "shapes", *COLUMNS, "source"]
    rows = [head, ["---"] * len(head), *map(_row, specs)]
    known = [f"- `{spec.name}`, {_cells(e)}: {_what(e)}, {e.reason}." for spec in specs for e in spec.expectations]
    return "\n".join(
        [
            f"## {title}",
            "",
            *(f"| {' | '.join(map(_escaped, row))} |" for row in rows),
            "",
            *_transforms(specs),
            *([*_heading(folder), *dict.fromkeys(known), ""] if known else []),
        ]
    )


def _transforms(specs: list[Spec]) -> list[str]:
    """Which of the models are checked under vmap and in forward mode."""
    words = {"vmappable": "`torch.vmap`", "forward_mode": "Forward mode"}
    checked = {claim: [f"`{spec.name}`" for spec in specs if getattr(spec, claim)] for claim in words}
    return [
        f"{words[claim]} is checked for {', '.join(names)}, and unchecked for the others."
        if names
        else f"{words[claim]} is unchecked."
        for claim, names in checked.items()
    ] + [""]


def _heading(folder: str) -> list[str]:
    return ["What the matrix must find wrong with them:" if folder == "counterexamples" else "Known divergences:", ""]


def _row(spec: Spec) -> list[str]:
    dtypes = [_dtype(spec, precision) for precision in COLUMNS]
    return [f"`{spec.name}`<br>{spec.summary}", f"{spec.formula}", spec.shapes, *dtypes, spec.source]


def _dtype(spec: Spec, precision: str) -> str:
    """One word for all outputs and modes, or as many as it takes."""
    leaves = ["output"] if spec.dtypes is None or isinstance(spec.dtypes, str) else list(spec.dtypes)
    named: dict[str, list[str]] = {}
    for leaf in leaves:
        named.setdefault(_word(spec, leaf, precision), []).append(leaf.removeprefix("output"))
    if len(named) == 1:
        return next(iter(named))
    return ", ".join(f"{word} ({' '.join(group)})" for word, group in named.items())


def _word(spec: Spec, leaf: str, precision: str) -> str:
    asked = spec.dtype_word(leaf, DEVICE) or "as eager"
    usual = {"follows": PRECISIONS[precision].autocast or "float32"}.get(asked, asked)
    others = [
        f"{mode} {e.dtype}"
        for mode in BUILDERS  # without those registered from outside
        if exists(MODES[mode], DEVICE)
        for e in spec.expectations
        if e.outcome == "dtype" and e.tensor == leaf and e.concerns(mode, precision, DEVICE, TORCH)
    ]
    return "; ".join([usual, *others])


def _cells(expected: Expect) -> str:
    parts = [expected.modes, expected.precisions, expected.devices]
    words = [" and ".join(part) for part in parts if part]
    return ", ".join([*words, *([f"torch {expected.torch}"] if expected.torch else [])]) or "everywhere"


def _what(expected: Expect) -> str:
    if expected.outcome == "dtype":
        return f"{expected.tensor} is {expected.dtype}"
    where = " ".join(part for part in (expected.gate, expected.tensor) if part)
    return expected.outcome + (f" ({where})" if where else "")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


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
    rows = [f"| `{path.relative_to(package)}` | {_escaped(_summary(path))} |" for path in files]
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
    "zoo.md": zoo_page,
    "probes.md": lambda: probes_page.page(probes.read("cpu")),
    "architecture.md": architecture_page,
    **{name: functools.partial(with_versions, name) for name in ("ci.md", "../README.md", "../CHANGELOG.md")},
}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
