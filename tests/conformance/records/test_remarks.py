"""What a report remarks of a cell, and what is so little that the cell is inconclusive."""

import pytest

from conformance.cell.policy import IN_FLOAT32
from conformance.records.observation import OTHER_WEIGHTS, OUTPUT, Discrepancy, Measure, Observation, TensorName
from conformance.verdict import judge

PLAIN = {"kind": "rounded", "rejected": 3}
LEFT = {"kind": "remainder", "rejected": 1}
UNRESOLVED = {**PLAIN, "left_to": "fp32"}


def judged(output=PLAIN, facts=None, **gradients):
    """Judge a cell with these tensors, all within their budgets; each is given by its fields."""
    tensors = {OUTPUT: output, **{TensorName("gradient", name): fields for name, fields in gradients.items()}}
    measures = (Measure("norm", 0.5, 1.0),)
    found = [
        Discrepancy("typical", name, dtype="", dtype_asked="", measures=measures, **fields)
        for name, fields in tensors.items()
    ]
    seen = Observation("finished", discrepancies=tuple(found), cases=("typical",), facts=facts or {})
    return judge("model[eager-fp32-cpu]", seen)


def test_it_is_remarked_that_only_the_size_of_a_gradient_is_judged():
    found = judged(w=LEFT, x=PLAIN)
    assert found.status == "PASS"
    assert [note.rpartition("judged ")[2] for note in found.notes] == ["(gradient of w)"]


def test_a_weak_canary_is_a_remark_and_no_verdict():
    found = judged(x={**PLAIN, "weak": ("slice 3 of axis 0 zeroed",)})
    assert found.status == "PASS"
    assert "too small to judge" in found.notes[0]


def test_it_is_remarked_that_numbers_were_drawn_in_float32():
    (note,) = judged(facts={IN_FLOAT32: True}).notes
    assert note.endswith("so they were drawn in float32 and rounded")


def test_of_many_gradients_two_are_named():
    (note,) = judged(w=LEFT, v=LEFT, u=LEFT, x=PLAIN).notes
    assert note.endswith("judged (gradient of u, gradient of v and 1 more)")


def test_what_a_low_precision_cannot_tell_is_inconclusive_if_nothing_else_is_told():
    assert judged(x=UNRESOLVED, w=UNRESOLVED).status == "INCONCLUSIVE"
    found = judged(x=UNRESOLVED, w=PLAIN)
    assert found.status == "PASS"
    assert any("gradient of x" in note for note in found.notes)
    assert judged(output=UNRESOLVED).status == "INCONCLUSIVE"


def test_the_remark_says_who_judges_what_a_cell_cannot():
    (note,) = judged(x={**PLAIN, "left_to": OTHER_WEIGHTS}, w=PLAIN).notes
    assert note.endswith("so only fp32 with other weights judges a tensor (gradient of x)")


@pytest.mark.parametrize("others", [{"w": LEFT}, {"w": LEFT, "v": LEFT}, {"w": LEFT, "v": UNRESOLVED}], ids=len)
def test_a_cell_in_which_no_gradient_is_told_from_a_wrong_one_is_inconclusive(others):
    found = judged(**others)
    assert (found.status, found.short) == ("INCONCLUSIVE", "power")
    assert judged(**others, x=PLAIN).status == "PASS"
