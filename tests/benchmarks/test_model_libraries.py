"""The page of the model libraries: what it shows of runs, and what it says of those that are missing."""

import html
from dataclasses import replace

import pytest
from harness.whole_runs import plan_of_zoo, verdict, write

from benchmarks import model_libraries
from benchmarks.model_libraries import ARCHITECTURES, MODES, Judged, page
from conformance.records.verdicts import Verdict
from conformance.run import store
from conformance.target import libraries

UNSOURCED = "in phase prepare: OSError: Failed to get source for <function Config.__init__ at 0x7f>"


def judged(folder, training, changed):
    """An architecture in every mode, green but for the cells that are changed."""
    plan = plan_of_zoo(("net",))
    verdicts = {p.id: replace(verdict(p.id), margin=0.5, **changed.get(p.id, {})) for p in plan.cells}
    for mode in MODES:
        cells = tuple(one for one in plan.cells if one.cell.mode == mode)
        run = write(folder / training / mode, replace(plan, cells=cells), {one.id: verdicts[one.id] for one in cells})
        yield Judged("timm:net", training, mode, store.read(run))


@pytest.fixture
def written(tmp_path):
    refused = {"status": "ERROR", "text": UNSOURCED}
    scripted = {f"net[scripted-{p}-cpu]": refused for p in ("fp32", "amp_fp16", "amp_bf16")}
    wrong = {"net[compiled-amp_fp16-cpu]": {"status": "FAIL", "text": "norm  output, case given: error 2, budget 1"}}
    found = [*judged(tmp_path, "eval", scripted | wrong), *judged(tmp_path, "train", {})]
    gone = Judged("timm:gone", "eval", "eager", None, "timm:gone: no architecture 'gone'")
    return html.unescape(page([*found, gone]))


def test_a_row_shows_each_mode_in_eval_and_in_train_mode(written):
    row = next(line for line in written.splitlines() if "`timm:net`" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["`timm:net`", "✓ 0.50", "– (1)", "✗ amp_fp16 (2)", "✓ 0.50", "✓ 0.50", "✓ 0.50"]


def test_a_reason_is_explained_or_said_not_to_be(written):
    assert "1. TorchScript finds no source" in written
    assert "2. not explained: <code>norm  output, case given: error 2, budget 1</code>" in written


def test_the_explanation_of_one_cell_is_not_that_of_another():
    text = "norm  gradient of blocks.0.norm1.bias, case given: error 2, budget 1"
    known, other = (Verdict(f"{name}[eager-amp_bf16-cpu]", "FAIL", text) for name in ("test_maxvit", "net"))
    reasons = model_libraries.Reasons()
    assert [reasons.number(known), reasons.number(other)] == ["(1)", "(2)"]
    assert "not explained" in list(reasons.numbers)[1]


def test_the_totals_count_what_passes_and_name_what_was_not_judged(written):
    ending = "in modes that refuse the architecture\n"
    assert f"- eval: 9 cells of 1 architecture; 5 pass, 1 do not, 3 {ending}" in written
    assert f"- train: 9 cells of 1 architecture; 9 pass, 0 do not, 0 {ending}" in written
    assert "- `timm:gone`, eager, eval: <code>timm:gone: no architecture 'gone'</code>" in written


def test_every_architecture_is_a_name_that_the_command_takes():
    assert all(libraries.is_named(name) for name in ARCHITECTURES)
    assert len(set(ARCHITECTURES)) == len(ARCHITECTURES)


def ends_with(code, tmp_path, monkeypatch):
    """Let the command end with an exit code and a word."""
    command = tmp_path / "command"
    command.write_text(f"#!/bin/sh\necho no such model >&2\nexit {code}\n")
    command.chmod(0o700)
    monkeypatch.setattr(model_libraries.sys, "executable", str(command))


def test_a_model_that_the_command_refuses_is_not_tried_again(tmp_path, monkeypatch):
    ends_with(4, tmp_path, monkeypatch)
    assert model_libraries.judged("timm:net", "eval", "eager", tmp_path) is None
    model_libraries.judge("timm:net", "eval", "eager", tmp_path)
    known = model_libraries.judged("timm:net", "eval", "eager", tmp_path)
    assert (known.contents, known.problem) == (None, "no such model")


@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_run_that_did_not_come_about_is_no_refusal(code, tmp_path, monkeypatch):
    ends_with(code, tmp_path, monkeypatch)
    with pytest.raises(SystemExit, match=f"timm:net was not judged.* ended with {code}: no such model"):
        model_libraries.judge("timm:net", "eval", "eager", tmp_path)
    assert model_libraries.judged("timm:net", "eval", "eager", tmp_path) is None
