"""Models that are cast to a narrow dtype as a whole: right ones are green, and wrong ones get their verdict."""

import re
from dataclasses import replace

import pytest
import torch
from harness.plans import gates_that_rejected, judge_of, material

from conformance import check
from conformance.errors import UsageError
from conformance.plan.matrix import plan
from conformance.records.tasks import PlanRequest

RIGHT, WRONG = "correct_models/whole_casts.py", "miniatures/whole_casts.py"


@pytest.fixture(scope="module")
def judge():
    with judge_of(RIGHT, WRONG, deadline=240.0, precisions=("fp32", "amp_bf16", "fp16", "bf16")) as judge:
        yield judge


@pytest.mark.parametrize("cell", [pytest.param(cell, id="-".join(cell)) for cell in material(RIGHT).CELLS])
def test_right_models_are_green(cell, judge):
    verdict = judge(*cell)
    assert verdict.status == "PASS", verdict.text
    assert verdict.margin <= 1.0


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in material(WRONG).MINIATURES])
def test_wrong_models_get_their_verdict(case, judge):
    verdict = judge(case.model, case.mode, case.precision)
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
