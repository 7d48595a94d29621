"""The pages of the zoo: an index with the dtypes of every entry, a page for each folder, and one of the probes."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import conformance
import zoo
from conformance.axes import DEVICES, MODES, PRECISIONS, exists, usual
from conformance.cell.modes import BUILDERS
from conformance.judging import toml_file
from conformance.records.tasks import ProbeInfo
from conformance.torch_versions import DEFAULT
from zoo.catalog import home_of
from zoo.expect import Expect
from zoo.sources import cited
from zoo.spec import Spec

DEVICE, TORCH = "cpu", DEFAULT  # the dtypes of the page are those of this device and version
COLUMNS = [name for name in usual(PRECISIONS) if exists(PRECISIONS[name], DEVICE)]
TITLES = {
    "models": "Models",
    "ops": "Ops",
    "functions": "Custom Functions",
    "training": "Training",
    "counterexamples": "Counterexamples",
}

LICENCE = toml_file.read(Path(conformance.__path__[0]).parent / "pyproject.toml")["project"]["license"]

INDEX = f"""# The zoo

`zoo.create_model(name)` builds an entry as the matrix judges it, and `zoo.example_inputs(name)` gives its inputs.
`zoo.create_model_and_inputs(name, batch_size=8)` does both. `zoo.list_models("soft*")` and `zoo.is_model(name)` find
names, as in timm; torchvision's `get_model` is `create_model` here. `zoo.register(spec)` adds a model of your own;
a name that exists needs `override=True`. No entry has trained weights, so nothing is downloaded. All are under the
licence of this project, {LICENCE}.

Behind each name are its class or function, its arguments, parameters, cases and sources. `python docs/build.py` writes
these pages from the specs.

The columns `{"`, `".join(COLUMNS)}` give the dtype of the outputs at that precision on the {DEVICE.upper()} with
torch {TORCH}. It is the same in every mode unless a mode is named. *input* is the promoted dtype of the floating
inputs. *as eager* means that the spec declares no dtype, so eager decides.
"""

PROBES = """# Probes

These are faults of torch that users of scripted, compiled or mixed-precision models meet. A few lines of plain torch
show each one. `conformance probes` looks for all of them in the installed torch, `conformance probes NAME` looks for
one, on the CPU or, with `--device=cuda`, on a GPU. The top of each file describes what a user sees and what to do
instead.

"Shows in" gives the torch versions that have the fault on that device. "Run with" lists the versions that were tried.
The versions between them and after the last one were not tried. An open range means that the last version tried has the
fault. Without an entry, the probe was never run on that device.
"""
UNSEEN = """
No probe was run on {device} yet. Nothing is declared there, and whatever a probe sees is INCONCLUSIVE.
"""

PROPERTIES = {
    "twice_differentiable": "second derivatives",
    "vmappable": "`torch.vmap`",
    "forward_mode": "forward mode",
    "one_graph": "one graph under torch.compile",
    "deterministic": "equal calls agree bit for bit",
}


def index() -> str:
    """docs/zoo.md."""
    return "\n".join([INDEX, *(_section(folder, title) for folder, title in TITLES.items())])


def _specs(folder: str) -> list[Spec]:
    return [zoo.get_spec(name) for name in zoo.list_models(module=folder)]


def _section(folder: str, title: str) -> str:
    head = ["name", *COLUMNS]
    rows = [head, ["---"] * len(head), *(_row(folder, spec) for spec in _specs(folder))]
    return "\n".join([f"## {title}", "", *(f"| {' | '.join(map(escaped, row))} |" for row in rows), ""])


def _row(folder: str, spec: Spec) -> list[str]:
    link = f"[`{spec.name}`](zoo/{folder}.md#{spec.name})"
    return [f"{link}<br>{spec.summary}", *(_dtype(spec, precision) for precision in COLUMNS)]


def entries(folder: str) -> str:
    """docs/zoo/FOLDER.md: what the docstring of the folder says, then its entries."""
    said = inspect.getdoc(_package(folder))
    head = f"# {TITLES[folder]}\n\n{said}\n\n`python docs/build.py` writes this page from the specs.\n"
    return "\n".join([head, *map(_entry, _specs(folder))])


def _package(folder: str) -> ModuleType:
    return importlib.import_module(f"zoo.{folder}")


def _entry(spec: Spec) -> str:
    wrong = home_of(spec.name).startswith("zoo.counterexamples")
    expected = "the matrix must find" if wrong else "diverges"
    lines = [
        f"- {'a `zoo.Trainer` of ' * (spec.fit is not None)}{_made_by(spec)}",
        *_namesake(spec),
        *([f"- also named `{spec.alias}`"] if spec.alias else []),
        *_parameters_of(spec),
        f"- computes: {escaped(spec.formula)}",
        f"- shapes: {escaped(spec.shapes)}",
        *(f"- case `{case.name}`: {_drawn(case)}" for case in spec.cases),
        *(f"- refuses `{case.name}`: {escaped(case.wanted)}" for case in spec.error_inputs),
        f"- checked: {', '.join(_checked(spec))}",
        *([f"- computes the same as `{spec.twin}`"] if spec.twin else []),
        *dict.fromkeys(f"- {expected}: {_cells(e)}: {_what(e)}, {e.reason}{_link(e)}" for e in spec.expectations),
        f"- source: {_source(spec)}",
    ]
    return "\n".join([f"## {spec.name}", "", f"{spec.summary[0].upper()}{spec.summary[1:]}.", "", *lines, ""])


def _made_by(spec: Spec) -> str:
    """The class or function of the entry with its signature, and what the spec gives it."""
    builder: Any = spec.build
    given: dict[str, Any] = {}
    if isinstance(builder, functools.partial):
        given = inspect.signature(builder.func).bind_partial(*builder.args, **builder.keywords).arguments
        builder = builder.func
    if builder.__name__.startswith(("<lambda>", "_")):  # what it builds is what people import
        builder, given = spec.build(), {}
        builder = type(builder) if isinstance(builder, torch.nn.Module) else builder
    if isinstance(builder, torch.jit.ScriptFunction):
        return f"`torch.jit.script({home_of(spec.name)}.{builder.name})`"
    parts = [p.name if p.default is p.empty else f"{p.name}={_value(p.default)}" for p in _parameters(builder)]
    text = f"`{builder.__module__}.{builder.__qualname__}({', '.join(parts)})`"
    arguments = ", ".join(f"{key}={_value(value)}" for key, value in given.items())
    return f"{text}, built with `{arguments}`" if arguments else text


def _parameters_of(spec: Spec) -> list[str]:
    """A line with the number of parameters of a module."""
    model = spec.build()
    return (
        [f"- {sum(p.numel() for p in model.parameters()):,} parameters"] if isinstance(model, torch.nn.Module) else []
    )


def _namesake(spec: Spec) -> list[str]:
    """A line that tells an entry from a function of its name which is not what the entry builds."""
    package = _package(home_of(spec.name).split(".")[1])
    other = getattr(package, spec.name, None)
    if not inspect.isfunction(other) or other in (spec.build, spec.build()):
        return []
    return [f"- not the function `{package.__name__}.{spec.name}`: {inspect.getdoc(other).partition(chr(10))[0]}"]


def _value(value: object) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)


def _parameters(made: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(made).parameters.values())


def _drawn(case: zoo.Case) -> str:
    drawn = case.draw(torch.Generator().manual_seed(0))
    words = [*map(_word_for, drawn.args), *(f"{key}={_word_for(value)}" for key, value in drawn.kwargs.items())]
    return ", ".join(words) or "no arguments"


def _word_for(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return f"`{value!r}`"
    dtype = "" if value.dtype == torch.float32 else f" {str(value.dtype).removeprefix('torch.')}"
    strided = "" if value.is_contiguous() else " with strides"
    return f"({', '.join(map(str, value.shape))}){dtype}{strided}"


def _checked(spec: Spec) -> list[str]:
    gradients = ["gradients"] if spec.differentiable else []
    formula = ["its formula"] if spec.reference is not None and not spec.trusts_model else []
    return ["dtypes", *formula, *gradients, *(words for name, words in PROPERTIES.items() if getattr(spec, name))]


def _link(expected: Expect) -> str:
    return f" ([report]({expected.link}))" if expected.link else ""


def _source(spec: Spec) -> str:
    """The source in the words of the spec, each known text a link."""
    text = escaped(spec.source)
    for name, known in cited(spec.source).items():
        text = text.replace(name, f"[{known.title}]({known.url})" if name == known.title else f"[{name}]({known.url})")
    return text


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


def escaped(text: str) -> str:
    """A text for a Markdown page."""
    return text.replace("|", "\\|").replace("*", "\\*")


def probes(found: Sequence[ProbeInfo]) -> str:
    """docs/probes.md, from the declarations of the probes; none is run for it."""
    devices = [device for device in DEVICES if any(device in probe.seen for probe in found)]
    head = ["probe", "at risk", "what is seen", "issue or source"]
    head += [f"{device.upper()}: {what}" for device in devices for what in ("shows in", "run with")]
    rows = [head, ["---"] * len(head), *(_probe(probe, devices) for probe in found)]
    unseen = "".join(UNSEEN.format(device=device.upper()) for device in DEVICES if device not in devices)
    return PROBES + unseen + "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _probe(probe: ProbeInfo, devices: Sequence[str]) -> list[str]:
    number = probe.issue.rpartition("/")[2]
    link = f"[pytorch#{number}]({probe.issue})" if number else probe.source
    row = [f"[{probe.name}](../zoo/probes/{probe.name}.py)", probe.summary, probe.symptom, link]
    for device in devices:
        seen = probe.seen.get(device)
        row += [f"`{seen.torch}`", ", ".join(seen.checked)] if seen else ["", ""]
    return row
