"""The page of the model libraries: what it shows of runs, and what it says of those that are missing."""

import html
from dataclasses import replace

import pytest
from harness.whole_runs import plan_of_zoo, verdict, write

from benchmarks import model_libraries
from benchmarks.model_libraries import MODES, page
from conformance.records.cell import Verdict

UNSOURCED = "in phase prepare: OSError: Failed to get source for <function Config.__init__ at 0x7f>"
TORCH = "2.99.0"
KEY = "timm:net", "eval", "eager"
COLUMNS = [(training, mode) for training in ("eval", "train") for mode in MODES]


@pytest.fixture
def found(tmp_path):
    """Runs of a model in every mode, of which one refuses it and one is red, and a model that could not be judged."""
    refused = {"status": "ERROR", "text": UNSOURCED}
    scripted = {f"net[scripted-{p}-cpu]": refused for p in ("fp32", "amp_fp16", "amp_bf16")}
    wrong = {"net[compiled-amp_fp16-cpu]": {"status": "FAIL", "text": "norm  output, case given: error 2, budget 1"}}
    plan = plan_of_zoo(("net",))
    for training, changed in (("eval", scripted | wrong), ("train", {})):
        for mode in MODES:
            cells = tuple(one for one in plan.cells if one.cell.mode == mode)
            verdicts = {one.id: replace(verdict(one.id), margin=0.5, **changed.get(one.id, {})) for one in cells}
            write(tmp_path / f"timm-net-{training}-{mode}", replace(plan, cells=cells), verdicts)
    (tmp_path / "timm-gone-eval-eager.refused").write_text("timm:gone: no architecture 'gone'\n")
    keys = [(name, *column) for name in ("timm:net", "timm:gone") for column in COLUMNS]
    return {key: one for key in keys if (one := model_libraries.judged(key, tmp_path))}


@pytest.fixture
def written(found):
    return page(found, TORCH)


def row(written, name):
    """The cells of a row."""
    line = next(line for line in written.splitlines() if f"`{name}`" in line)
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_page_shows_each_mode_in_eval_and_in_train_mode_with_reasons_and_totals(written):
    assert row(written, "timm:net") == ["✓ 0.50", "– (1)", "✗ amp_fp16 (2)", "✓ 0.50", "✓ 0.50", "✓ 0.50"]
    assert row(written, "timm:gone") == ["– (3)", "", "", "", "", ""]
    assert "1. TorchScript finds no source" in written
    assert "2. not explained: <code>norm  output, case given: error 2, budget 1</code>" in html.unescape(written)
    assert "3. <code>timm:gone: no architecture 'gone'</code>" in html.unescape(written)
    ending = "in modes that refuse the architecture\n"
    assert f"- eval: 12 cells of 2 architectures; 5 pass, 1 do not, 6 {ending}" in written
    assert f"- train: 9 cells of 1 architecture; 9 pass, 0 do not, 0 {ending}" in written


def test_the_explanation_of_one_cell_is_not_that_of_another():
    text = "norm  gradient of blocks.0.norm1.bias, case given: error 2, budget 1"
    known, other = (
        model_libraries.shown({"amp_bf16": Verdict(f"{name}[eager-amp_bf16-cpu]", "FAIL", text)}).reasons[0]
        for name in ("test_maxvit", "net")
    )
    assert "not explained" in other
    assert "not explained" not in known


def test_what_a_page_shows_is_read_from_it_whole_as_that_of_the_project_and_no_other_torch_is_mixed_in(found, written):
    again = model_libraries.read(written, TORCH)
    assert again == found
    assert page(again, TORCH) == written
    with pytest.raises(SystemExit, match=r"the page is of torch 2\.99\.0, and this is torch 2\.98\.0: delete it first"):
        model_libraries.read(written, "2.98.0")
    text = model_libraries.PAGE.read_text(encoding="utf-8")
    version = next(line.removeprefix("- torch ") for line in text.splitlines() if line.startswith("- torch "))
    assert page(model_libraries.read(text, version), version) == text


def test_what_the_page_shows_is_not_judged_again(tmp_path, monkeypatch, found):
    place = tmp_path / "page.md"
    place.write_text(page({KEY: found[KEY]}, TORCH))
    asked = []
    monkeypatch.setattr(model_libraries, "PAGE", place)
    monkeypatch.setattr(model_libraries, "version", lambda _package: TORCH)
    monkeypatch.setattr(model_libraries, "ARCHITECTURES", ("timm:net", "timm:other"))
    monkeypatch.setattr(model_libraries, "judge", lambda key, _folder: asked.append(key))
    arguments = [str(tmp_path / "new"), "--mode=eager", "--training=eval"]
    monkeypatch.setattr(model_libraries.sys, "argv", ["study", *arguments])
    model_libraries.main()
    assert asked == [("timm:other", "eval", "eager")]
    assert model_libraries.read(place.read_text(), TORCH) == {KEY: found[KEY]}


def ends_with(code, tmp_path, monkeypatch):
    """Let the command end with an exit code and a word."""
    command = tmp_path / "command"
    command.write_text(f"#!/bin/sh\necho no such model >&2\nexit {code}\n")
    command.chmod(0o700)
    monkeypatch.setattr(model_libraries.sys, "executable", str(command))


def test_a_model_that_the_command_refuses_is_not_tried_again(tmp_path, monkeypatch):
    ends_with(4, tmp_path, monkeypatch)
    assert model_libraries.judged(KEY, tmp_path) is None
    model_libraries.judge(KEY, tmp_path)
    assert model_libraries.judged(KEY, tmp_path) == model_libraries.Shown("–", ("<code>no such model</code>",))


@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_run_that_did_not_come_about_is_no_refusal(code, tmp_path, monkeypatch):
    ends_with(code, tmp_path, monkeypatch)
    with pytest.raises(SystemExit, match=f"timm:net was not judged.* ended with {code}: no such model"):
        model_libraries.judge(KEY, tmp_path)
    assert model_libraries.judged(KEY, tmp_path) is None
