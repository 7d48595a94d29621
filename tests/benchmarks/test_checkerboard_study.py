"""The study of the checkerboard: what is done, in which order, what is kept, and what the table shows."""

import json
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import checkerboard as study
from benchmarks import checkerboard_trial as trial
from benchmarks import children
from benchmarks.tasks import COMPARE, TRAIN, Comparison, Training, TrainingTask
from conformance.plan import matrix
from conformance.records.measurements import Ceilings, Ratio, Reason
from conformance.records.tasks import CEILINGS
from zoo.models.checkerboard import Checkerboard

SETTING = study.Setting("cpu", 8, 4, "2.13.0", "a machine")
TRAINED = Training(first=0.5, rest=0.02, loss=0.25, skipped=1, peak=2_500_000, flops=8_000_000_000)
COMPARED = Comparison(Ratio(2.0, 1.9, 2.1, pairs=20), seconds=0.1, eager_seconds=0.2)
NO_RATES = Ceilings({}, ())


def task(mode="eager", precision="fp32"):
    return TrainingTask("cpu", mode, precision, size=8, steps=4)


def names(results, device="cpu"):
    return [job.name for job in study.missing(study.Study(replace(SETTING, device=device), results))]


def table(results):
    """The page, and the cells of its table row by row."""
    page = study.page(study.Study(SETTING, results))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    return page, rows


def test_trainings_come_first_then_ratios_then_ceilings_and_tf32_is_for_cuda_alone():
    wanted = names({})
    assert wanted[:4] == ["train eager fp32", "train eager amp_fp16", "train eager amp_bf16", "train compiled fp32"]
    assert [name.split()[0] for name in wanted] == ["train"] * 9 + ["compare"] * 8 + ["ceilings"]
    assert "compare eager fp32" not in wanted
    assert not [name for name in names({}) if "tf32" in name]
    assert len([name for name in names({}, "cuda") if "tf32" in name]) == 6


def test_what_is_done_is_left_out_and_what_failed_comes_last():
    wanted = names({"train eager fp32": TRAINED, "train eager amp_fp16": Reason("crashed")})
    assert "train eager fp32" not in wanted
    assert (wanted[0], wanted[-1], len(wanted)) == ("train eager amp_bf16", "train eager amp_fp16", 17)


def test_the_table_shows_every_figure_and_failures_and_the_page_their_reason():
    results = {"train eager fp32": TRAINED, "train compiled amp_bf16": TRAINED, "compare compiled amp_bf16": COMPARED}
    page, rows = table({**results, "ceilings": Ceilings({"fp32": 2e11, "amp_bf16": 1.6e11}, ())})
    shown = ["0.50 s", "20.00", "0.2500", "1", "2.5"]
    assert rows[2] == ["eager", "fp32", *shown, "1", "0.04", "20%"]
    assert rows[3] == ["eager", "amp_fp16"] + [""] * 8
    assert rows[7] == ["compiled", "amp_bf16", *shown, "2.00 (1.90 to 2.10)", "0.08", "50%"]
    assert "Not done" not in page
    failed = {"train eager fp32": Reason("crashed", "out of memory"), "train scripted fp32": TRAINED}
    page, rows = table({**failed, "compare scripted fp32": Reason("crashed", "too noisy")})
    assert rows[2] == ["eager", "fp32", "failed"] + [""] * 7
    assert rows[8][:8] == ["scripted", "fp32", "0.50 s", "20.00", "0.2500", "1", "2.5", "no figure"]
    assert page.endswith(
        "Not done:\n\n- train eager fp32: crashed: out of memory.\n- compare scripted fp32: crashed: too noisy."
    )


@pytest.fixture(name="done")
def _done(monkeypatch):
    """What was asked of child processes, which answer at once. The second one is interrupted."""
    done = []
    answers = {TRAIN: TRAINED, COMPARE: COMPARED, CEILINGS: NO_RATES}

    def result(target, task, deadline):
        done.append((target.function, getattr(task, "mode", ""), getattr(task, "precision", "")))
        if len(done) == 2:
            raise KeyboardInterrupt
        return answers[target]

    here = replace(matrix.environment(), cpu="a machine", gpus=(), torch="2.13.0")
    monkeypatch.setattr(study.pool, "result", result)
    monkeypatch.setattr(children, "observe_environment", lambda: here)
    monkeypatch.setattr(children, "prepare", lambda *_, **__: None)
    return done


def test_results_are_kept_as_they_come_and_a_second_call_goes_on(done, tmp_path, capsys):
    path = tmp_path / "results.json"
    arguments = ["--device", "cpu", "--json", str(path), "--size", "8", "--steps", "4"]
    with pytest.raises(KeyboardInterrupt):
        study.main(arguments)
    assert list(json.loads(path.read_text())["results"]) == ["train eager fp32"]
    study.main([*arguments, "--seconds", "0"])
    assert len(done) == 2
    study.main(arguments)
    assert len(done) == 2 + 17
    assert len(set(done)) == 18
    assert "one thread of a machine" in capsys.readouterr().out
    kept = study.resume(path, study.setting(children.observe_environment(), "cpu", 8, 4))
    assert (kept.results["train eager fp32"], kept.results["compare scripted fp32"]) == (TRAINED, COMPARED)
    with pytest.raises(SystemExit, match="holds results for size 8, asked for 16"):
        study.main([*arguments[:-3], "16", "--steps", "4"])


def test_a_file_of_something_else_is_refused(done, tmp_path):
    path = tmp_path / "results.json"
    path.write_text("{}")
    with pytest.raises(SystemExit, match="holds no results of this study: Study has no setting"):
        study.main(["--device", "cpu", "--json", str(path)])
    assert done == []


def test_operations_are_those_torch_counts():
    model = Checkerboard(channels=8)
    step = trial.training_step(model, task())
    counter = FlopCounterMode(display=False)
    with counter:
        step()
    assert trial.step_flops(model, 8) == counter.get_total_flops() == 2 * 64 * (3 * (16 + 64 + 64 + 8) - 16)


@pytest.mark.parametrize("mode", ["eager", "scripted"])
def test_a_step_of_the_trial_learns(mode):
    step = trial.training_step(trial.network(mode, "cpu"), task(mode, "amp_bf16"))
    losses = [step().loss.item() for _ in range(4)]
    assert losses[-1] < losses[0]


def test_a_network_begins_the_same_in_every_mode():
    states = [trial.network(mode, "cpu").state_dict() for mode in ("eager", "scripted")]
    assert all(torch.equal(a, b) for a, b in zip(*(s.values() for s in states), strict=True))
