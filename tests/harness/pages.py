"""Runs for the pages of HTML: one whose every text is hostile and a large one; and what a parser sees of a page.

Also an atlas of torch versions whose every text is hostile.
"""

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from conformance.figures import atlas
from conformance.records.cell import Cell, Discrepancy, Measure, Observation, Rest, TensorName, Verdict
from conformance.records.measurements import Reason
from conformance.records.plan import Judge, PlannedCell, SpecLocation
from conformance.records.tasks import ProbeFinding
from conformance.show import page
from conformance.store.run_files import Contents
from harness.made_by_hand import ENVIRONMENT, plan_for, with_models

FOLDER = Path("a folder")
MODES, PRECISIONS = ("eager", "scripted", "compiled"), ("fp32", "amp_fp16", "amp_bf16")
STATUSES = ("PASS", "FAIL", "ERROR", "EXPECTED", "UNSTABLE", "CRASH", "SKIPPED", "INCONCLUSIVE")


def drawn(contents, folder=FOLDER, **options):
    """The page of a run."""
    return page.draw(contents, folder=folder, green=not any(v.red for v in contents.verdicts.values()), **options)


def tensor(leaf, case, detail, value, dtype="float32"):
    """A tensor that one gate measures; its budget is 1."""
    measures = (Measure("structure", 0.0, 0.0), Measure("norm", value, 1.0, detail))
    return Discrepancy(case, TensorName("output", leaf), "rounded", dtype, "float32", measures, rejected=5)


def hostile(text):
    """A run of one cell for each status, in which every text that a model or a person gives is this one."""
    cells = [PlannedCell(Cell(f"net_{status.lower()}", "eager", "fp32", "cpu")) for status in STATUSES]
    plan = plan_for(*cells, measure="speed")
    plan = replace(plan, environment=replace(ENVIRONMENT, cpu=text, torch=text))
    models = {p.cell.model: {"location": SpecLocation(file=f"/{text}"), "assumed": (text,)} for p in cells}
    seen = Observation(
        "finished",
        discrepancies=(tensor(text, text, text, 3.0, text), tensor("x", "y", "", 0.5)),
        facts={text: text},
        rest=Rest(1, {text: 0.5}, {}),
        said=(text, text),
    )
    links = {"EXPECTED": "https://a.test", "FAIL": "javascript:alert(1)"}
    verdicts = [
        Verdict(p.id, status, text, 3.0, text, text, links.get(status, text), (f"{text} ({text})",), 1.0, seen)
        for p, status in zip(cells, STATUSES, strict=True)
    ]
    results = {f"speed default net_pass[fp32-cpu] #{n}": Reason(text, text) for n in (0, 1)}
    return Contents(with_models(plan, models), tuple(p.id for p in cells), {v.cell: v for v in verdicts}, results)


def hostile_atlas(text):
    """An atlas in which a cell that is mended, one that never works, and a probe say nothing but this text."""
    mended = {"2.4.1": atlas.State(atlas.RED, "FAIL", text, text, text), "2.15.0": atlas.State(atlas.WORKS, "PASS")}
    never = {"2.4.1": atlas.State(atlas.DECLARED, "UNSUPPORTED", text, text, "javascript:alert(1)")}
    cells = (atlas.History(Cell(model, "eager", "fp32", "cpu"), of) for model, of in {"a": mended, "b": never}.items())
    finding = ProbeFinding("probe", "EXPECTED", text, "https://a.test", text, text)
    maker = atlas.Maker("2.4.1", "3.11", ("cpu",), {}, Judge(), text)
    return atlas.Atlas((maker,), tuple(cells), (atlas.Fault(finding, "cpu", {"2.4.1": atlas.SHOWN}),))


def large(models=112):
    """Nine cells of each model, with as many numbers as a run stores. Each tenth cell is red in its own way."""
    cells = [
        Cell(f"model_{n}", mode, precision, "cpu") for n in range(models) for mode in MODES for precision in PRECISIONS
    ]
    verdicts = {}
    for n, cell in enumerate(cells):
        numbers = [(1 + (n * 7919 + i * 104729) % 9973) / 1e4 for i in range(16)]
        found = tuple(tensor(f"layers.{i}.weight", "typical", f"slice {i} of axis 0", x) for i, x in enumerate(numbers))
        seen = Observation("finished", discrepancies=found, facts={"graphs": 1}, rest=Rest(40, {"norm": 0.1}, {}))
        red = n % 10 == 0
        text = f"norm  output, case typical: error {n}, budget 1" if red else ""
        verdicts[cell.id] = Verdict(
            cell.id, "FAIL" if red else "PASS", text, 2.0 if red else 0.5, "norm", observation=seen
        )
    plan = plan_for(*cells)
    return Contents(plan, tuple(verdicts), verdicts, complete=True)


class Markup(HTMLParser):
    """What a page holds without its scripts: the names of its tags and attributes, its links and its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.links, self.text, self.scripts, self._open = [], [], [], "", [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self._open = tag
        self.attributes += [name for name, _ in attributes]
        self.links += [value for name, value in attributes if name in ("href", "src")]

    def handle_endtag(self, _):
        self._open = ""

    def handle_data(self, data):
        if self._open == "script":
            self.scripts.append(data)
        elif self._open != "style":
            self.text += data
