"""Every miniature gets its verdict: the judge rejects what is wrong, by the gate that should."""

import os
import re
import signal
from pathlib import Path

import pytest
from harness.plans import gates_that_rejected, judge_of
from harness.processes import outlives
from harness.specs import GRANDCHILD, HANGING, MINIATURE_FILES, MINIATURES

from conformance.process import fork_server


@pytest.fixture(scope="module")
def patient():
    with judge_of(*MINIATURE_FILES, deadline=120.0) as judge:
        yield judge


@pytest.fixture(scope="module")
def hasty(patient):
    patient("linear", "eager", "fp32")  # the fork server has imported torch before the clock starts
    with judge_of(*MINIATURE_FILES, deadline=4.0) as judge:
        yield judge


def cases(miniatures):
    return [pytest.param(case, id=case.id) for case in miniatures]


@pytest.mark.parametrize("case", cases(MINIATURES))
def test_verdict(case, patient):
    verdict = patient(case.model, case.mode, case.precision)
    assert verdict.status == case.status, verdict.text
    assert re.search(case.text, verdict.text), verdict.text
    if case.status in ("FAIL", "PASS") or case.gates:
        assert gates_that_rejected(verdict) == case.gates
    assert verdict.red is (case.status not in ("PASS", "EXPECTED", "UNSUPPORTED"))


@pytest.mark.parametrize("case", cases(HANGING))
def test_verdict_at_the_deadline(case, hasty):
    verdict = hasty(case.model, case.mode, case.precision)
    assert verdict.status == case.status, verdict.text
    assert re.search(case.text, verdict.text), verdict.text
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
