"""Divergences that hang on a probe: declared where its fault shows on this machine, and asked for nowhere else."""

from dataclasses import replace

import pytest
from harness.command import ROOT, conformance
from harness.spec_files import file_of, planned

from conformance.judging import executor
from conformance.process.child import Ending
from conformance.records.tasks import ProbeSighting
from zoo.expect import Expect

SHOWS, HIDDEN = "script_promotes_arithmetic", "idle_cast_in_function"  # the second is mended in every torch to come
NETS = str(ROOT / "docs" / "nets.py")
FORGETFUL = """
[[forgetful]]
outcome = "FAIL"
reason = "known on such machines"
precisions = ["amp_bf16"]
gate = "norm"
probe = "{probe}"
"""


@pytest.mark.parametrize(
    ("ending", "shown"),
    [
        (Ending("answered", ProbeSighting("saw", "the symptom")), True),
        (Ending("crashed", message="the symptom"), True),
        (Ending("answered", ProbeSighting("saw", "")), False),
        (Ending("answered", ProbeSighting("unavailable", "no such processor")), False),
        (Ending("answered", ProbeSighting("saw", "something else")), None),
        (Ending("answered", ProbeSighting("raised", "ValueError: no")), None),
        (Ending("crashed", message="killed by SIGKILL"), None),
        (Ending("timed out", message="no answer within 3 s"), None),
    ],
)
def test_a_probe_runs_once_and_what_it_did_not_tell_is_remarked(monkeypatch, ending, shown):
    asked = []
    monkeypatch.setattr(executor, "run_probe", lambda *task: asked.append(task) or ending)
    probes = executor.Probed(3.0, {SHOWS: "the symptom"})
    one = Expect(outcome="FAIL", reason="known", probe=SHOWS)
    facts, remarks = probes.facts((one, replace(one, probe="")), "cpu")
    assert (facts, probes.facts((one,), "cpu")) == ({f"shows {SHOWS}": bool(shown)}, (facts, remarks))
    assert asked == [(SHOWS, "cpu", 3.0)]
    assert [SHOWS in text for text in remarks] == ([True] if shown is None else [])


def test_the_plan_knows_what_the_probe_would_say(tmp_path):
    source = file_of(tmp_path, "one", f'Expect(outcome="FAIL", reason="known", probe="{SHOWS}"),')
    assert planned(source, devices=("cpu",)).symptoms == {SHOWS: "twice a bfloat16 product is float32"}


@pytest.mark.parametrize(
    ("probe", "code", "told"),
    [(SHOWS, 0, "1 expected"), (HIDDEN, 1, "1 fail"), ("sideways", 4, "no probe 'sideways'")],
)
def test_a_wrong_cell_is_as_declared_only_where_the_probe_shows_its_fault(tmp_path, probe, code, told):
    (tmp_path / "known.toml").write_text(FORGETFUL.format(probe=probe))
    chosen = ("--mode=eager", "--precision=amp_bf16", "--device=cpu", "--no-speed", "-k", "forgetful")
    ended, printed = conformance(tmp_path, "run", NETS, *chosen, "--expect=known.toml")
    assert (ended, told in printed) == (code, True), printed


def test_a_right_cell_is_stale_only_where_the_probe_shows_its_fault(tmp_path):
    chosen = ("--mode=eager", "--precision=amp_bf16", "--device=cpu", "--no-speed", "-k", "gate")
    for probe, wanted in ((SHOWS, (1, "1 stale")), (HIDDEN, (0, "1 pass"))):
        (tmp_path / "known.toml").write_text(FORGETFUL.format(probe=probe).replace("forgetful", "gate"))
        ended, printed = conformance(tmp_path, "run", NETS, *chosen, "--expect=known.toml")
        assert (ended, wanted[1] in printed) == (wanted[0], True), printed
