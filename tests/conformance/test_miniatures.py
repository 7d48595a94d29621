"""Every miniature gets its verdict: the judge rejects what is wrong, by the gate that should."""

import re
from pathlib import Path

import planning
import pytest

MATERIAL = planning.material("miniatures.py")
# Found by these tests and still open; strict, so that a repair must strike its line out.
OPEN = {
    "big_integers-plus_one-fp32": "integers beyond 2^53 are compared as float64",
    "big_integers-eager-fp32": "integers beyond 2^53 are compared as float64",
    "counted-buffer_narrowed-fp32": "the dtype of a buffer is not judged",
    "linear-second_call_nan-fp32": "a NaN of the second call counts as no difference",
    "stale-eager-fp32": "a dtype that is the contract's again is a FAIL, not STALE",
    "linear-leaving_runaway-fp32": "a process in a session of its own outlives its dead parent",
}


@pytest.fixture(scope="module")
def patient():
    with planning.execution("miniatures.py", deadline=120.0) as judge:
        yield judge


@pytest.fixture(scope="module")
def hasty(patient):
    patient("linear", "eager", "fp32")  # the fork server has imported torch before the clock starts
    with planning.execution("miniatures.py", deadline=4.0) as judge:
        yield judge


def cases(miniatures):
    for case in miniatures:
        marks = [pytest.mark.xfail(reason=OPEN[case.id], strict=True)] if case.id in OPEN else []
        yield pytest.param(case, id=case.id, marks=marks)


@pytest.mark.parametrize("case", cases(MATERIAL.MINIATURES))
def test_verdict(case, patient):
    verdict = patient(case.model, case.mode, case.precision)
    assert verdict.status == case.status, verdict.text
    assert re.search(case.text, verdict.text), verdict.text
    if case.status in ("FAIL", "PASS") or case.gates:
        assert planning.gates_that_refused(verdict) == case.gates
    assert verdict.red is (case.status not in ("PASS", "EXPECTED", "UNSUPPORTED"))


@pytest.mark.parametrize("case", cases(MATERIAL.HANGING))
def test_verdict_at_the_deadline(case, hasty):
    verdict = hasty(case.model, case.mode, case.precision)
    assert verdict.status == case.status, verdict.text
    assert re.search(case.text, verdict.text), verdict.text
    assert survivors() == []


def test_every_gate_has_a_miniature_that_it_alone_catches():
    alone = {next(iter(m.gates)) for m in MATERIAL.MINIATURES if m.status == "FAIL" and len(m.gates) == 1}
    assert alone == {"structure", "dtype", "class", "exact", "norm", "slice", "gain", "pointwise", "precision"}


def survivors():
    """Command lines of grandchildren still in the process table, zombies left out."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if MATERIAL.GRANDCHILD.encode() in words:
            found.append(entry.name)
    return found
