"""Every model of `tests/specs` gets its verdict: a wrong one from the gate that should see it, a right one is green."""

import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from harness.plans import gates_that_rejected, judge_of, material
from harness.processes import outlives
from harness.specs import CORRECT_CELLS, CORRECT_FILES, GRANDCHILD, HANGING, MINIATURE_FILES, MINIATURES

from conformance import check
from conformance.errors import UsageError
from conformance.plan.matrix import plan
from conformance.process import fork_server
from conformance.records.tasks import PlanRequest
from zoo import Spec, SpecError


def judging(*files, deadline, precisions=()):
    """A fixture that judges cells of some files."""

    @pytest.fixture(scope="module")
    def judge():
        with judge_of(*files, deadline=deadline, precisions=precisions) as judge:
            yield judge

    return judge


RIGHT, WRONG = "correct_models/whole_casts.py", "miniatures/whole_casts.py"
patient = judging(*MINIATURE_FILES, deadline=120.0)
judge = judging(*CORRECT_FILES, deadline=240.0)
judge_of_casts = judging(RIGHT, WRONG, deadline=240.0, precisions=("fp32", "amp_bf16", "fp16", "bf16"))
judge_of_training = judging("training_specs.py", deadline=120.0)


# Wrong models


@pytest.fixture(scope="module")
def hasty(patient):
    patient("linear", "eager", "fp32")  # the fork server has imported torch before the clock starts
    with judge_of(*MINIATURE_FILES, deadline=4.0) as judge:
        yield judge


def cases(miniatures):
    return [pytest.param(case, id=case.id) for case in miniatures]


def check_verdict(case, judge):
    verdict = judge(case.model, case.mode, case.precision)
    assert verdict.status == case.status, verdict.text
    assert re.search(case.text, verdict.text), verdict.text
    if case.status in ("FAIL", "PASS") or case.gates:
        assert gates_that_rejected(verdict) == case.gates
    assert verdict.red is (case.status not in ("PASS", "EXPECTED", "UNSUPPORTED"))


@pytest.mark.parametrize("case", cases(MINIATURES))
def test_verdict(case, patient):
    check_verdict(case, patient)


def test_what_a_model_keeps_on_itself_is_found_by_another_thread(patient):
    found = patient("shared_scratch", "eager", "fp32")
    assert (found.status, "from several threads at once" in found.text) == ("FAIL", True)


@pytest.mark.parametrize("case", cases(HANGING))
def test_verdict_at_the_deadline(case, hasty):
    check_verdict(case, hasty)
    left = [process for process in survivors() if outlives(process)]
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert left == []


def test_every_gate_has_a_miniature_that_it_alone_catches():
    alone = {next(iter(m.gates)) for m in MINIATURES if m.status == "FAIL" and len(m.gates) == 1}
    alone |= {"precision"}  # over many draws, the gain sees the same damage
    assert alone == set("structure dtype class exact norm slice gain pointwise precision recompile raises".split())


def survivors():
    """Grandchildren of this process's fork server still in the process table; zombies have no command line."""
    ours = [GRANDCHILD.encode(), str(fork_server.current().pid).encode()]
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[2:4] == ours:
            found.append(int(entry.name))
    return found


# Right models, however odd they look


@pytest.mark.parametrize("cell", CORRECT_CELLS, ids="-".join)
def test_is_green(cell, judge):
    verdict = judge(*cell)
    assert verdict.status in ("PASS", "EXPECTED"), f"{verdict.status}  {verdict.text}"
    assert verdict.margin <= 1.0


def test_the_numbers_flags_and_mode_of_an_exported_program_are_those_of_its_first_call():
    with judge_of("miniatures/staleness.py", deadline=120.0, modes=("exported",)) as judge:
        verdict = judge("switching", "exported", "fp32")
    assert verdict.status == "PASS", verdict.text


# Models that are cast to a narrow dtype as a whole


@pytest.mark.parametrize("cell", material(RIGHT).CELLS, ids="-".join)
def test_right_models_are_green(cell, judge_of_casts):
    verdict = judge_of_casts(*cell)
    assert verdict.status == "PASS", verdict.text
    assert verdict.margin <= 1.0


@pytest.mark.parametrize("case", cases(material(WRONG).MINIATURES))
def test_verdict_of_a_model_that_is_cast(case, judge_of_casts):
    check_verdict(case, judge_of_casts)


def test_a_model_in_half_precision_is_judged_as_it_is():
    net = torch.nn.Linear(5, 4).bfloat16()
    report = check(net, torch.randn(6, 5).bfloat16(), modes=("eager",))
    assert [cell.status for cell in report.cells] == ["PASS"]
    assert "bf16" in report.table()
    assert "it is in bfloat16" in report.table()
    with pytest.raises(UsageError, match="is in bfloat16, so want amp_bf16 or bf16, got fp32"):
        check(net, torch.randn(6, 5).bfloat16(), modes=("eager",), precisions=("fp32",))


def test_an_exported_program_is_not_cast():
    linear = torch.export.export(torch.nn.Linear(5, 4), (torch.randn(6, 5),))
    report = check(linear, torch.randn(6, 5), modes=("eager",), precisions=("fp32", "bf16"))
    assert [cell.cell for cell in report.cells] == ["exported_program[eager-fp32-cpu]"]
    assert "an exported program, which cannot be scripted" in "; ".join(report.assumed)
    assert "bf16" not in str(report.assumed)


def test_a_training_is_not_cast():
    asked = PlanRequest(("fit_line",), modes=("eager",), precisions=("fp32", "bf16"), devices=("cpu",))
    assert [planned.id for planned in plan(asked).cells] == ["fit_line[eager-fp32-cpu]"]
    with pytest.raises(UsageError, match="no model exists in eager at bf16"):
        plan(replace(asked, precisions=("bf16",)))


# A spec that trains is judged by its loss curve, in every mode and precision


@pytest.mark.parametrize("mode", ["eager", "scripted", "compiled"])
@pytest.mark.parametrize("precision", ["fp32", "amp_fp16", "amp_bf16"])
def test_right_training_is_green(judge_of_training, mode, precision):
    verdict = judge_of_training("right", mode, precision)
    assert verdict.status == "PASS", verdict.text
    assert 0 < verdict.margin < 1


@pytest.mark.parametrize(
    ("cell", "status", "text"),
    [
        ("hasty eager fp32", "PASS", ""),
        ("hasty eager amp_fp16", "FAIL", "norm  output, case typical"),
        ("hasty scripted amp_bf16", "FAIL", "gain  output, case typical"),
        ("wide eager amp_bf16", "VOID", "autocast was off when training called the model"),
        ("wide compiled amp_fp16", "VOID", "autocast was off when training called the model"),
        ("aloof eager fp32", "INVALID", "training never called the model"),
        ("aloof compiled amp_bf16", "INVALID", "training never called the model"),
        ("greedy eager fp32", "FAIL", "structure  input0, case typical: changed in training, undeclared"),
        ("wanders eager fp32", "UNSTABLE", "two identical float64 runs differ"),
    ],
)
def test_wrong_training_is_not(judge_of_training, cell, status, text):
    verdict = judge_of_training(*cell.split())
    assert verdict.status == status, verdict.text
    assert text in verdict.text


def test_a_fit_takes_its_own_gradients(judge_of_training):
    with pytest.raises(SpecError, match="greedy: fit takes its own gradients, so it needs differentiable=False"):
        Spec(**{**vars(material("training_specs.py").RIGHT), "name": "greedy", "differentiable": True})
