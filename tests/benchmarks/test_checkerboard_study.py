"""The study of the checkerboard: what is done, in which order, what is kept, and what the table says."""

import contextlib
import json

import pytest
import torch
from planning import benchmark
from torch.utils.flop_counter import FlopCounterMode

SETTING = {"device": "cpu", "size": 8, "steps": 4, "torch": "2.13.0", "machine": "a machine"}
TRAINED = {"first": 0.5, "rest": 0.02, "loss": 0.25, "skipped": 1, "peak": 2_500_000, "flops": 8_000_000_000}
RATIO = {"middle": 2.0, "low": 1.9, "high": 2.1, "pairs": 20, "clean": 1.0, "processes": 1}
COMPARED = {"ratio": RATIO, "seconds": 0.1, "eager_seconds": 0.2}


@pytest.fixture(name="study")
def _study():
    return benchmark("checkerboard")


@pytest.fixture(name="trial")
def _trial():
    return benchmark("checkerboard_trial")


def names(study, results, device="cpu"):
    return [job.name for job in study.missing({"setting": SETTING | {"device": device}, "results": results})]


def test_trainings_come_first_then_ratios_then_ceilings(study):
    wanted = names(study, {})
    assert wanted[:4] == ["train eager fp32", "train eager amp_fp16", "train eager amp_bf16", "train compiled fp32"]
    assert [name.split()[0] for name in wanted] == ["train"] * 9 + ["compare"] * 8 + ["ceilings"]
    assert "compare eager fp32" not in wanted


def test_tf32_is_for_cuda_alone(study):
    assert not [name for name in names(study, {}) if "tf32" in name]
    assert len([name for name in names(study, {}, "cuda") if "tf32" in name]) == 6


def test_what_is_done_is_left_out_and_what_failed_comes_last(study):
    results = {"train eager fp32": TRAINED, "train eager amp_fp16": {"reason": "crashed"}}
    wanted = names(study, results)
    assert "train eager fp32" not in wanted
    assert (wanted[0], wanted[-1], len(wanted)) == ("train eager amp_bf16", "train eager amp_fp16", 17)


def test_the_table_shows_every_figure(study):
    results = {"train eager fp32": TRAINED, "train compiled amp_bf16": TRAINED, "compare compiled amp_bf16": COMPARED}
    rates = {"flop_rates": {"fp32": 2e11, "amp_bf16": 1.6e11}}
    page = study.page({"setting": SETTING, "results": results | {"ceilings": rates}})
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    shown = ["0.50 s", "20.00", "0.2500", "1", "2.5"]
    assert rows[2] == ["eager", "fp32", *shown, "1", "0.04", "20%"]
    assert rows[3] == ["eager", "amp_fp16"] + [""] * 8
    assert rows[7] == ["compiled", "amp_bf16", *shown, "2.00 (1.90 to 2.10)", "0.08", "50%"]
    assert "Not done" not in page


def test_failures_stand_in_the_table_with_their_reason(study):
    results = {
        "train eager fp32": {"reason": "crashed: out of memory"},
        "train scripted fp32": TRAINED,
        "compare scripted fp32": {"reason": "crashed: too noisy"},
    }
    page = study.page({"setting": SETTING, "results": results})
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    assert rows[2] == ["eager", "fp32", "failed"] + [""] * 7
    assert rows[8][:8] == ["scripted", "fp32", "0.50 s", "20.00", "0.2500", "1", "2.5", "no figure"]
    assert page.endswith(
        "Not done:\n\n- train eager fp32: crashed: out of memory.\n- compare scripted fp32: crashed: too noisy."
    )


def test_results_are_kept_as_they_come_and_a_second_call_goes_on(study, tmp_path, monkeypatch, capsys):
    done, path = [], tmp_path / "results.json"

    def answer(target, task, deadline):
        if target == "conformance.plan.matrix:probe":
            return {"gpus": [], "cpu": "a machine", "torch": "2.13.0"}
        done.append((target, task.get("mode"), task.get("precision")))
        if len(done) == 2:
            raise KeyboardInterrupt
        return {"checkerboard_trial:train": TRAINED, "checkerboard_trial:compare": COMPARED}.get(
            target, {"flop_rates": {}}
        )

    monkeypatch.setattr(study.jobs, "answer", answer)
    monkeypatch.setattr(study.machine, "alone", contextlib.nullcontext)
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
    with pytest.raises(SystemExit, match="holds results for size 8, asked for 16"):
        study.main([*arguments[:-3], "16", "--steps", "4"])


@pytest.mark.parametrize("arguments", [["--size", "12"], ["--size", "0"], ["--steps", "3"]])
def test_sizes_and_steps_that_cannot_be_are_refused(study, tmp_path, arguments, capsys):
    with pytest.raises(SystemExit):
        study.main(["--device", "cpu", "--json", str(tmp_path / "results.json"), *arguments])
    assert "want a positive multiple of 8" in capsys.readouterr().err


def test_the_steps_counted_apart_are_those_the_table_names(study, trial):
    assert study.FEWEST_STEPS == trial.FIRST_STEPS + 1
    assert f"first {trial.FIRST_STEPS} steps" in study.NOTES


def test_operations_are_those_torch_counts(trial):
    model = trial.Checkerboard(channels=8)
    step = trial._step(model, {"precision": "fp32", "device": "cpu", "size": 8})
    counter = FlopCounterMode(display=False)
    with counter:
        step()
    assert trial.step_flops(model, 8) == counter.get_total_flops() == 2 * 64 * (3 * (16 + 64 + 64 + 8) - 16)


@pytest.mark.parametrize("mode", ["eager", "scripted"])
def test_a_step_of_the_trial_learns(trial, mode):
    model = trial._network(mode, "cpu")
    step = trial._step(model, {"precision": "amp_bf16", "device": "cpu", "size": 8})
    losses = [step().loss.item() for _ in range(4)]
    assert losses[-1] < losses[0]


def test_a_network_begins_the_same_in_every_mode(trial):
    states = [trial._network(mode, "cpu").state_dict() for mode in ("eager", "scripted")]
    assert all(torch.equal(a, b) for a, b in zip(*(s.values() for s in states), strict=True))
