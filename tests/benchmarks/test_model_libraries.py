"""The page of the model libraries: what it shows of runs, and what is not judged again."""

import html
from dataclasses import replace

import pytest
from harness.whole_runs import plan_of_zoo, verdict, write

from benchmarks import model_libraries
from benchmarks.model_libraries import judged, page
from conformance.records.cell import Verdict
from conformance.records.plan import OwnModel

UNSOURCED = "in phase prepare: OSError: Failed to get source for <function Config.__init__ at 0x7f>"
KEY = "timm:net", "eval", "eager"


@pytest.fixture
def found(tmp_path):
    """Runs of a model in every mode, of which one refuses it and one is red; one was ended before its last cell."""
    refused = {"status": "ERROR", "text": UNSOURCED}
    scripted = {f"net[scripted-{p}-cpu]": refused for p in ("fp32", "amp_fp16", "amp_bf16")}
    wrong = {"net[compiled-amp_fp16-cpu]": {"status": "FAIL", "text": "norm  output, case given: error 2, budget 1"}}
    plan = plan_of_zoo(("net",))
    for training, changed in (("eval", scripted | wrong), ("train", {})):
        own = OwnModel(library="timm:net", training=training)
        location = replace(plan.models["net"].location, own=own)
        models = {"net": replace(plan.models["net"], location=location)}
        verdicts = {one.id: replace(verdict(one.id), margin=0.5, **changed.get(one.id, {})) for one in plan.cells}
        left_out = ["net[compiled-amp_bf16-cpu]"] * (training == "train")
        write(tmp_path / "runs" / training, replace(plan, models=models), verdicts, left_out=left_out)
    return judged(tmp_path)


def row(written, name):
    """The cells of a row."""
    line = next(line for line in written.splitlines() if f"`{name}`" in line)
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_page_shows_each_mode_in_eval_and_in_train_mode_with_reasons_and_totals(found):
    written = page(found)
    assert row(written, "timm:net") == ["✓ 0.50", "– (1)", "✗ amp_fp16 (2)", "✓ 0.50", "✓ 0.50"]
    assert "1. TorchScript finds no source" in written
    assert "2. not explained: <code>norm  output, case given: error 2, budget 1</code>" in html.unescape(written)
    totals = [line.split()[1:-1] for line in written.splitlines() if line.startswith("| compiled, eval")]
    assert [words[3:12:2] for words in totals] == [["1", "3", "2", "1", "0"]]


def test_the_explanation_of_one_cell_is_not_that_of_another():
    text = "norm  gradient of blocks.0.norm1.bias, case given: error 2, budget 1"
    known, other = (
        model_libraries.shown({"amp_bf16": Verdict(f"{name}[eager-amp_bf16-cpu]", "FAIL", text)}, "").reasons[0]
        for name in ("test_maxvit", "net")
    )
    assert "not explained" in other
    assert "not explained" not in known


def test_what_is_kept_is_read_whole_and_the_page_of_the_project_shows_it(tmp_path, found):
    model_libraries.write(found, tmp_path / "kept.json")
    assert model_libraries.read(tmp_path / "kept.json") == found
    kept = model_libraries.PAGE.with_suffix(".json")
    assert page(model_libraries.read(kept)) == model_libraries.PAGE.read_text(encoding="utf-8")


def test_what_is_known_is_not_judged_again(tmp_path, monkeypatch, found):
    place = tmp_path / "page.md"
    model_libraries.write({KEY: found[KEY]}, place.with_suffix(".json"))
    asked = []
    monkeypatch.setattr(model_libraries, "PAGE", place)
    monkeypatch.setattr(model_libraries, "ARCHITECTURES", ("timm:net", "timm:other", "transformers:net"))
    monkeypatch.setattr(model_libraries, "judge", lambda *given: asked.append(given))
    arguments = [str(tmp_path / "new"), "--mode=eager", "--mode=program", "--training=eval", "-n", "2", "--on", "ray"]
    monkeypatch.setattr(model_libraries.sys, "argv", ["study", *arguments])
    model_libraries.main()
    assert [(given[0], given[2]) for given in asked] == [
        (["timm:other"], "eager"),
        (["transformers:net"], "eager"),
        (["timm:net", "timm:other"], "scripted"),
        (["transformers:net"], "exported"),
    ]
    assert asked[0][-1] == ["-n", "2", "--on", "ray"]
    assert model_libraries.read(place.with_suffix(".json")) == {KEY: found[KEY]}
    assert row(place.read_text(), "timm:net") == ["✓ 0.50"]


@pytest.mark.parametrize("code", [3, 4])
def test_a_run_that_did_not_come_about_is_no_finding(code, tmp_path, monkeypatch):
    command = tmp_path / "command"
    command.write_text(f"#!/bin/sh\nexit {code}\n")
    command.chmod(0o700)
    monkeypatch.setattr(model_libraries.sys, "executable", str(command))
    with pytest.raises(SystemExit, match=f"timm:net .* ended with {code}"):
        model_libraries.judge(["timm:net"], "eval", "eager", tmp_path, [])
