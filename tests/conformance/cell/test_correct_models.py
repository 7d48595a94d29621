"""No right model is red, however odd it looks; wrong casts and wrong trainings get their verdict."""

import re
from dataclasses import replace

import pytest
import torch
from harness.plans import gates_that_rejected, judge_of, material
from harness.specs import CORRECT_CELLS, CORRECT_FILES

from conformance import check
from conformance.errors import UsageError
from conformance.plan.matrix import plan
from conformance.records.tasks import PlanRequest
from zoo.case import SpecError
from zoo.spec import Spec


@pytest.fixture(scope="module")
def judge():
    with judge_of(*CORRECT_FILES, deadline=240.0) as judge:
        yield judge


@pytest.mark.parametrize(
    ("model", "mode", "precision"), [pytest.param(*cell, id="-".join(cell)) for cell in CORRECT_CELLS]
)
def test_is_green(model, mode, precision, judge):
    verdict = judge(model, mode, precision)
    assert verdict.status in ("PASS", "EXPECTED"), f"{verdict.status}  {verdict.text}"
    assert verdict.margin <= 1.0


# Models that are cast to a narrow dtype as a whole

RIGHT, WRONG = "correct_models/whole_casts.py", "miniatures/whole_casts.py"


@pytest.fixture(scope="module")
def judge_of_casts():
    with judge_of(RIGHT, WRONG, deadline=240.0, precisions=("fp32", "amp_bf16", "fp16", "bf16")) as judge_of_casts:
        yield judge_of_casts


@pytest.mark.parametrize("cell", [pytest.param(cell, id="-".join(cell)) for cell in material(RIGHT).CELLS])
def test_right_models_are_green(cell, judge_of_casts):
    verdict = judge_of_casts(*cell)
    assert verdict.status == "PASS", verdict.text
    assert verdict.margin <= 1.0


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in material(WRONG).MINIATURES])
def test_wrong_models_get_their_verdict(case, judge_of_casts):
    verdict = judge_of_casts(case.model, case.mode, case.precision)
    assert verdict.status == case.status, verdict.text
    assert re.search(case.text, verdict.text), verdict.text
    if case.status == "FAIL":
        assert gates_that_rejected(verdict) == case.gates


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


@pytest.fixture(scope="module")
def judge_of_training():
    with judge_of("training_specs.py", deadline=120.0) as judge_of_training:
        yield judge_of_training


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
        ("hasty scripted amp_bf16", "FAIL", "norm  output, case typical"),
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
