"""No right model is red, however odd it looks."""

import pytest
from harness.plans import judge_of
from harness.specs import CORRECT_CELLS, CORRECT_FILES


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
