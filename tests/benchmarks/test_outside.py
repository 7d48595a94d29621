"""The study of models outside the zoo: what it judges, and what it makes of the verdicts."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.outside.__main__ import Judged, print_tables
from conformance.records.cell import Verdict

ROOT = Path(__file__).parent.parent.parent
PLAN = """
import json, warnings
warnings.simplefilter("ignore")
from benchmarks.outside.__main__ import options_of, plan_of
plan, kinds = plan_of(options_of([]))
print(json.dumps([kinds, sorted(plan.models)]))
"""
CELL = "elman[double-fp32-cpu]"


@pytest.fixture(scope="module")
def planned():
    """The kinds of all cells and the names of all models, from a process of its own: the study registers modes."""
    done = subprocess.run([sys.executable, "-c", PLAN], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_the_study_is_as_large_as_it_claims_and_every_planted_fault_has_its_undamaged_model(planned):
    kinds, models = planned
    counts = Counter(kinds.values())
    assert len(models) >= 60
    assert min(counts[kind] for kind in ("value", "structure", "state", "mode", "second order")) >= 30
    assert counts["honest"] >= 41
    planted = [cell for cell, kind in kinds.items() if kind not in ("correct", "undamaged", "honest")]
    assert len(planted) >= 200
    for cell in planted:
        model, _, axes = cell.partition("[")
        precision = axes.split("-")[1]
        assert kinds[f"{model}[eager-{precision}-cpu]"] in ("correct", "undamaged")


@pytest.mark.parametrize(
    ("judged", "outcome"),
    [
        (Judged("correct", 0, Verdict("elman[eager-fp32-cpu]", "PASS")), "green"),
        (Judged("correct", 0, Verdict("elman[eager-fp32-cpu]", "ERROR")), "red"),
        (Judged("correct", 0, Verdict("elman[scripted-fp32-cpu]", "ERROR")), "refused"),
        (Judged("correct", 0, Verdict("elman[scripted-fp32-cpu]", "FAIL")), "red"),
        (Judged("honest", 0, Verdict(CELL, "ERROR")), "red"),
        (Judged("value", 0, Verdict(CELL, "FAIL")), "red"),
        (Judged("value", 0, Verdict(CELL, "FAIL"), blind=True), "blind"),
    ],
)
def test_the_outcome_of_a_cell(judged, outcome):
    assert judged.outcome == outcome


def test_the_tables_list_accusations_and_survivors(capsys):
    print_tables(
        [
            Judged("correct", 0, Verdict("elman[eager-fp32-cpu]", "FAIL", "error 2, budget 1")),
            Judged("state", 0, Verdict("elman[hook_left-fp32-cpu]", "PASS")),
            Judged("state", 1, Verdict("elman[hook_left-fp32-cpu]", "PASS")),
        ]
    )
    printed = capsys.readouterr().out
    assert "## Accused, though correct: 1\n\n- elman[eager-fp32-cpu] (correct, seeds 0): FAIL error 2" in printed
    assert "## Faults that survive: 2\n\n- elman[hook_left-fp32-cpu] (state, seeds 0, 1): PASS" in printed
    assert "| state | fp32 | 2 | 2 | 0 | 0 | 0 |  |" in printed
