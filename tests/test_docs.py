"""The pages that follow from the specs say what the specs say."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from harness.made_by_hand import timed
from harness.whole_runs import plan_of_zoo, write
from jsonschema import Draft202012Validator

import zoo
from conformance.figures.atlas import Atlas, History, Maker, State
from conformance.records.cell import Cell
from conformance.records.convert import to_json
from conformance.records.measurements import Result
from conformance.records.plan import Judge
from zoo.functions.cube_cpp import missing_tools

DOCS = Path(__file__).parent.parent / "docs"
sys.path.append(str(DOCS))
found = importlib.util.spec_from_file_location("docs_build", DOCS / "build.py")
build = importlib.util.module_from_spec(found)
found.loader.exec_module(build)


MISSING = [*missing_tools(), *([] if importlib.util.find_spec("numpy") else ["NumPy"])]  # which specs declare


@pytest.mark.parametrize("page", build.PAGES)
def test_a_generated_page_is_what_the_specs_say(page):
    if page == "zoo/functions.md" and MISSING:
        pytest.skip(f"NOT TESTED: this page is of a machine with {' and '.join(MISSING)}")
    assert (DOCS / page).read_text(encoding="utf-8") == build.PAGES[page](), "run: python docs/build.py"


def test_the_command_that_writes_the_pages_runs_as_documented(tmp_path):
    for name in ("docs", "zoo", *(f"{page}.md" for page in build.OF_THE_PROJECT)):
        copy = shutil.copytree if (DOCS.parent / name).is_dir() else shutil.copy
        copy(DOCS.parent / name, tmp_path / name)
    page = tmp_path / "docs" / "zoo" / "ops.md"
    page.write_text("stale", encoding="utf-8")
    ended = subprocess.run([sys.executable, "docs/build.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert page.read_text(encoding="utf-8") == build.PAGES["zoo/ops.md"]()


def test_a_stored_run_fits_the_published_schema_and_a_damaged_one_does_not(tmp_path):
    plan = plan_of_zoo(("net",))
    results = {"speed default net[fp32-cpu] #0": to_json(timed(compiled=2.0), Result)}
    folder = write(tmp_path / "run", plan, {"net[eager-fp32-cpu]": "FAIL"}, results=results)
    texts = [(folder / name).read_text(encoding="utf-8") for name in ("plan.json", "cells.jsonl", "run.json")]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    schema = Draft202012Validator(json.loads((DOCS / "run.schema.json").read_text(encoding="utf-8")))
    assert len(lines) == 12  # a plan, nine verdicts, a result, and the sum of them
    for line in lines:
        schema.validate(line)
        assert not schema.is_valid({**line, "mood": 1})
    for damage in ({"status": "FINE"}, {"margin": "small"}, {"notes": [1]}, {"observation": {}}):
        assert not schema.is_valid({**lines[1], "verdict": {**lines[1]["verdict"], **damage}})


def seen(state="works", **of_maker):
    """What the pages say of a net that one run judged with torch 2.15.0."""
    cells = [Cell("net", mode, "fp32", "cpu") for mode in ("eager", "compiled")]
    states = {"2.15.0": State(state, "")}
    maker = Maker("2.15.0", "3.11", ("cpu",), {"eager": 1, "compiled": 1}, Judge("2026-11-28", "a2f07bf"), "")
    found = Atlas((replace(maker, **of_maker),), tuple(History(cell, states) for cell in cells))
    return build.seen(found)[0]


def test_what_was_seen_is_said_no_better_than_it_was():
    said = "2026-11-28, revision a2f07bf: torch 2.15.0, Python 3.11, cpu: 2 of 2 cells (eager and compiled), none red"
    assert seen() == said
    assert seen("red") == said.replace("none", "2")
    assert seen(cells={"eager": 1}) == said.replace("2 of 2", "1 of 1").replace(" and compiled", "")
    assert seen(cells={"eager": 0}) == said.replace("2 of 2", "0 of 1").replace(" and compiled", "")
    assert seen(judge=Judge("2026-11-28")) == said.replace("a2f07bf", "unknown")


def test_a_model_that_no_run_has_judged_is_named():
    (line,) = build.seen(Atlas())
    assert line == f"not judged yet: {build.in_words(sorted(zoo.list_models()))}"


MADE_BY = re.compile(
    r"^- (?:a `zoo.Trainer` of )?`(?:torch\.jit\.script\()?([\w.]+)\(?(.*?)\)*`(?:, built with `(.*)`)?$", re.MULTILINE
)
ENTRIES = {
    name: text
    for folder in build.zoo_pages.TITLES
    for name, text in re.findall(
        r"(?ms)^## (\w+)\n(.*?)(?=^## |\Z)", (DOCS / "zoo" / f"{folder}.md").read_text("utf-8")
    )
}


@pytest.mark.parametrize("name", [*zoo.list_models(), *zoo.list_models(module="counterexamples")])
def test_the_documented_call_of_an_entry_gives_what_its_name_creates(name):
    home, parameters, given = MADE_BY.search(ENTRIES[name]).groups()
    model = zoo.create_model(name)
    model = model.model if isinstance(model, zoo.Trainer) else model
    module, _, attribute = home.rpartition(".")
    maker = getattr(importlib.import_module(module), attribute)
    if not isinstance(model, torch.nn.Module):
        assert maker is model or getattr(model, "name", "") == attribute  # a script has the name of its function
        return
    if any("=" not in one for one in parameters.split(", ") if one) and not given:  # it takes modules
        assert type(model) is maker
        return
    made = eval(f"maker({given or ''})", {"maker": maker, **vars(torch.nn), **vars(zoo.models)})
    assert type(made).__name__ == type(model).__name__
    shapes = [{key: value.shape for key, value in one.state_dict().items()} for one in (made, model)]
    assert shapes[0] == shapes[1]
