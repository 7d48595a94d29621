"""No right model is red, however odd it looks."""

import planning
import pytest

MATERIAL = planning.material("correct_models.py")


def cells():
    return [pytest.param(*cell, id="-".join(cell)) for cell in MATERIAL.CELLS]


@pytest.fixture(scope="module")
def judge():
    with planning.execution("correct_models.py", deadline=240.0) as verdict_of:
        yield verdict_of


@pytest.mark.parametrize(("model", "mode", "precision"), cells())
def test_is_green(model, mode, precision, judge):
    verdict = judge(model, mode, precision)
    assert verdict.status in ("PASS", "EXPECTED"), f"{verdict.status}  {verdict.text}"
    assert verdict.margin <= 1.0
