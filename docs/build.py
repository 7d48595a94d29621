"""Writes the pages that follow from the specs: `python docs/build.py`."""

from __future__ import annotations

from pathlib import Path

import zoo
from conformance.commands import probes
from conformance.axes import MODES, PRECISIONS, exists
from conformance.cell.modes import BUILDERS
from zoo.expect import Expect
from zoo.spec import Spec

FOLDER = Path(__file__).parent
DEVICE, TORCH = "cpu", "2.13.0"  # the dtypes of the page are those of this device and version
COLUMNS = [name for name, precision in PRECISIONS.items() if exists(precision, DEVICE)]
TITLES = {
    "models": "Models",
    "ops": "Ops",
    "functions": "Custom Functions",
    "training": "Training",
    "counterexamples": "Counterexamples",
}

ZOO = f"""# The zoo

Written from the specs by `python docs/build.py`. Every entry is made with `zoo.create_model(name)`, its inputs
with `zoo.example_inputs(name)`.

The columns `{"`, `".join(COLUMNS)}` give the dtype of the outputs at that precision on the {DEVICE.upper()} with
torch {TORCH}, in every mode; where a mode differs, it is named. *input* is the promoted dtype of the floating
inputs. Where nothing is said, what eager does is the contract.
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
            *([*_heading(folder), *dict.fromkeys(known), ""] if known else []),
        ]
    )


def _heading(folder: str) -> list[str]:
    return ["What must be wrong with them:" if folder == "counterexamples" else "Known divergences:", ""]


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


PAGES = {"zoo.md": zoo_page, "probes.md": probes.markdown}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
