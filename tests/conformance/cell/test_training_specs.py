"""A spec that trains is judged by its loss curve, in every mode and precision."""

import pytest
from harness.plans import judge_of, material

from zoo.case import SpecError
from zoo.spec import Spec


@pytest.fixture(scope="module")
def judge():
    with judge_of("training_specs.py", deadline=120.0) as judge:
        yield judge


@pytest.mark.parametrize("mode", ["eager", "scripted", "compiled"])
@pytest.mark.parametrize("precision", ["fp32", "amp_fp16", "amp_bf16"])
def test_right_training_is_green(judge, mode, precision):
    verdict = judge("right", mode, precision)
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
def test_wrong_training_is_not(judge, cell, status, text):
    verdict = judge(*cell.split())
    assert verdict.status == status, verdict.text
    assert text in verdict.text


def test_a_fit_takes_its_own_gradients(judge):
    with pytest.raises(SpecError, match="greedy: fit takes its own gradients, so it needs differentiable=False"):
        Spec(**{**vars(material("training_specs.py").RIGHT), "name": "greedy", "differentiable": True})
