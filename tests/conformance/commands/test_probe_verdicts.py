"""The verdict of a probe follows from how it ended, what it saw and what is declared."""

import pytest

from conformance.commands import probes
from conformance.process.child import Ending
from conformance.records.tasks import ProbeInfo, ProbeSighting


def answered(kind, text):
    return Ending("answered", ProbeSighting(kind, text))


def probe(symptom, declared, issue=""):
    about = {"name": "p", "summary": "s", "issue": issue, "source": "a source", "symptom": symptom}
    return ProbeInfo(**about, devices=(), seen={}, concerns=True, declared=declared)


SAW_IT = answered("saw", "a wrong number")
DIED_OF_IT = Ending("crashed", message="killed by SIGSEGV")


@pytest.mark.parametrize(
    ("ending", "symptom", "declared", "status", "seen"),
    [
        (SAW_IT, "a wrong number", True, "EXPECTED", "a wrong number"),
        (SAW_IT, "a wrong number", False, "FAIL", "a wrong number; declared for this torch: nothing"),
        (SAW_IT, "an old number", True, "FAIL", "a wrong number; declared for this torch: an old number"),
        (SAW_IT, "an old number", False, "FAIL", "a wrong number; declared for this torch: nothing"),
        (answered("saw", ""), "a wrong number", False, "PASS", ""),
        (answered("saw", ""), "a wrong number", True, "STALE", "not seen; declared for this torch: a wrong number"),
        (DIED_OF_IT, "killed by SIGSEGV", True, "EXPECTED", "killed by SIGSEGV"),
        (DIED_OF_IT, "killed by SIGSEGV", False, "FAIL", "killed by SIGSEGV; declared for this torch: nothing"),
        (DIED_OF_IT, "a wrong number", True, "CRASH", "killed by SIGSEGV; declared for this torch: a wrong number"),
        (
            Ending("crashed", message="killed by SIGABRT"),
            "killed by SIGSEGV",
            True,
            "CRASH",
            "killed by SIGABRT; declared for this torch: killed by SIGSEGV",
        ),
        (
            Ending("timed out", message="no answer within 2 s"),
            "a wrong number",
            False,
            "TIMEOUT",
            "no answer within 2 s; declared for this torch: nothing",
        ),
        (
            answered("raised", "a wrong number"),
            "a wrong number",
            True,
            "ERROR",
            "a wrong number; declared for this torch: a wrong number",
        ),
        (answered("unavailable", "no cache here"), "a wrong number", True, "UNSUPPORTED", "no cache here"),
    ],
)
def test_a_verdict_follows_from_what_was_seen_and_declared(ending, symptom, declared, status, seen):
    found = probes.judge_probe(probe(symptom, declared=declared), "cpu", ending)
    assert found == probes.ProbeFinding("p", status, seen, "a source", "s")


@pytest.mark.parametrize(
    ("ending", "status", "seen"),
    [
        (SAW_IT, "INCONCLUSIVE", "a wrong number; nothing is declared for cuda"),
        (answered("saw", ""), "INCONCLUSIVE", "not seen; nothing is declared for cuda"),
        (answered("saw", "another"), "INCONCLUSIVE", "another; nothing is declared for cuda"),
        (answered("raised", "LookupError: x"), "ERROR", "LookupError: x; nothing is declared for cuda"),
        (Ending("crashed", message="a wrong number"), "INCONCLUSIVE", "a wrong number; nothing is declared for cuda"),
        (Ending("crashed", message="killed by SIGABRT"), "CRASH", "killed by SIGABRT; nothing is declared for cuda"),
        (Ending("refused", message="no such thing"), "ERROR", "no such thing; nothing is declared for cuda"),
        (Ending("timed out", message="too slow"), "TIMEOUT", "too slow; nothing is declared for cuda"),
        (answered("unavailable", "no cache here"), "UNSUPPORTED", "no cache here"),
    ],
)
def test_where_nothing_is_declared_what_was_seen_is_reported_and_decides_nothing(ending, status, seen):
    found = probes.judge_probe(probe("a wrong number", declared=None), "cuda", ending)
    assert found == probes.ProbeFinding("p", status, seen, "a source", "s")


def test_a_finding_links_the_issue_or_else_the_source():
    with_issue = probe("s", declared=False, issue="https://issue")
    assert probes.judge_probe(with_issue, "cpu", SAW_IT).link == "https://issue"
    assert probes.judge_probe(probe("s", declared=False), "cpu", SAW_IT).link == "a source"
