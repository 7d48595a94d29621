"""The judge on error inputs: which errors are right, which are a remark, and what exactly an expectation excuses."""

import json
import math

import pytest

from conformance.records.convert import from_json, to_json
from conformance.records.observation import RAISES, Discrepancy, Measure, Observation
from conformance.records.verdicts import Verdict
from conformance.show.causes import causes
from conformance.verdict import judge
from zoo.expect import Expect

ASKED, ANOTHER, NONE = 0.0, 1.0, math.inf
RIGHT = Discrepancy("typical", "output", "rounded", "", "", (Measure("norm", 0.5, 1.0),), rejected=3)
WRONG = Discrepancy("typical", "output", "rounded", "", "", (Measure("norm", 2.0, 1.0),), rejected=3)


def called(value, name="scalar", *, eager=False, text="ValueError: it is a scalar"):
    """Make what a call with an error input did."""
    measure = Measure(RAISES, value, ASKED if eager else ANOTHER, text)
    return Discrepancy(name, "output", "conduct", "", "", (measure,))


def verdict(*found, declared=None):
    seen = Observation("finished", discrepancies=found, cases=("typical",))
    expectations = [Expect(outcome="FAIL", reason="known", **declared)] if declared is not None else []
    return judge("model[scripted-fp32-cpu]", seen, expectations)


@pytest.mark.parametrize("eager", [True, False])
def test_the_error_that_was_asked_for_is_a_pass_without_a_remark(eager):
    found = verdict(RIGHT, called(ASKED, eager=eager))
    assert (found.status, found.margin, found.notes) == ("PASS", 0.5, ())


def test_another_error_is_a_remark_and_in_eager_a_fail():
    found = verdict(RIGHT, called(ANOTHER))
    assert (found.status, found.margin) == ("PASS", 0.5)
    assert found.notes == ("an error input raises another error than in eager (scalar)",)
    found = verdict(RIGHT, called(ANOTHER, eager=True))
    assert (found.status, found.text) == ("FAIL", "raises  output, case scalar: ValueError: it is a scalar")


@pytest.mark.parametrize("eager", [True, False])
def test_no_error_is_a_fail_in_every_mode(eager):
    found = verdict(RIGHT, called(NONE, eager=eager, text="float32 [3]; it must raise ValueError"))
    assert (found.status, found.short) == ("FAIL", "raises")
    assert found.text == "raises  output, case scalar: float32 [3]; it must raise ValueError"
    assert causes([found])[0].text == found.text


def test_the_other_gates_come_first():
    assert verdict(called(NONE), WRONG).text.startswith("norm  output, case typical")


@pytest.mark.parametrize(
    ("declared", "status"),
    [
        ({"gate": "raises", "tensor": "output", "case": "scalar"}, "EXPECTED"),
        ({"gate": "raises", "tensor": "output"}, "EXPECTED"),
        ({"gate": "raises", "tensor": "output", "case": "typical"}, "FAIL"),
        ({"gate": "raises", "case": "scalar"}, "FAIL"),
        ({"gate": "norm", "tensor": "output"}, "FAIL"),
        ({"tensor": "output"}, "FAIL"),
        ({}, "FAIL"),
    ],
)
def test_an_expectation_excuses_an_accepted_input_only_by_its_gate(declared, status):
    assert verdict(RIGHT, called(NONE), declared=declared).status == status


def test_an_expectation_excuses_nothing_beside_it():
    declared = {"gate": "raises", "tensor": "output", "case": "scalar"}
    assert verdict(RIGHT, called(NONE), called(NONE, "empty"), declared=declared).status == "FAIL"
    assert verdict(WRONG, called(NONE), declared=declared).status == "FAIL"
    assert verdict(RIGHT, called(ASKED), declared=declared).status == "STALE"
    assert verdict(RIGHT, called(ANOTHER), declared=declared).status == "STALE"


@pytest.mark.parametrize("value", [ASKED, ANOTHER, NONE])
def test_it_survives_the_way_to_json(value):
    found = verdict(RIGHT, called(value))
    assert from_json(Verdict, json.loads(json.dumps(to_json(found)))) == found
