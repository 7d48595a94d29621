"""The calibration of the judge: what is damaged, what is counted, and which verdicts files of specs state."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from benchmarks import calibrate, children, damages, miniatures
from benchmarks.calibration_tables import as_json, print_tables, quantile
from benchmarks.results import CellTrial, Results
from benchmarks.tasks import UNDAMAGED, DamagedCell, Survivor
from conformance.records.cell import OUTPUT, Cell, Discrepancy, Measure, Observation
from conformance.records.plan import Plan
from conformance.records.tasks import PlanRequest
from conformance.verdict import judge

CELL = Cell("net", "eager", "fp32", "cpu")
MEASURES = (Measure("structure", 0.0, 0.0), Measure("norm", 1.0, 4.0))


@pytest.fixture(scope="module", name="trials")
def _trials() -> tuple[Plan, list[CellTrial]]:
    """The plan and the trials of one small model of the zoo, in a child process."""
    request = PlanRequest(("merge",), ("eager",), ("fp32", "amp_bf16"), ("cpu",), deadline=120.0)
    plan = children.plan_of(request)
    return plan, calibrate.trials_of(plan, "merge", seed=0)


def test_a_correct_cell_passes_and_its_damaged_tensors_do_not(trials):
    for trial in trials[1]:
        assert trial.verdict.status == "PASS", trial.verdict.text
        counts = trial.damaged.damages
        assert counts[UNDAMAGED]["tried"] > 20
        assert counts[UNDAMAGED]["killed"] == 0
        for damage in ("one row zeroed", "rows 0 and 1 swapped", "one NaN", "an axis more", "wrong dtype"):
            assert counts[damage]["killed"] == counts[damage]["tried"] > 0
        alive = sum(c["tried"] - c["killed"] for c in counts.values()) - counts[UNDAMAGED]["tried"]
        assert alive == len(trial.damaged.survivors)
    assert trials[1][0].damaged.survivors == ()  # float32 leaves no hole


def test_the_tables_and_the_json_show_the_trials(trials, capsys):
    plan, found = trials
    results = Results()
    for trial in found:
        results.add(0, trial)
    print_tables(results)
    printed = capsys.readouterr().out
    titles = ["(a) False alarms", "(b) Value over budget", "(c) Kills", "(d) Canaries", "(e) Rivals, fp32"]
    assert [title for title in titles if title not in printed] == []
    stored = as_json(plan, 1, results)
    assert stored["verdicts"] == [[0, trial.cell.id, "PASS", ""] for trial in found]
    assert stored["environment"]["torch"] == torch.__version__
    kills = {tuple(key): counts for *key, counts in stored["kills"]}
    assert kills["eager", "fp32", "one NaN"]["killed"] == kills["eager", "fp32", "one NaN"]["tried"]


def test_results_count_measures_canaries_and_survivors():
    found = Discrepancy("typical", OUTPUT, "null", "float32", "", MEASURES, ("zeros",), ("slice 3 of axis 0",))
    verdict = judge(CELL.id, Observation("finished", discrepancies=(found,)))
    survivor = Survivor("one NaN", "typical", "output", "rounded", math.nan, 0.5)
    results = Results()
    results.add(7, CellTrial(CELL, verdict, DamagedCell(verdict.observation, {"one NaN": {"tried": 1}}, (survivor,))))
    assert results.margins == {("eager", "fp32", "null"): [(0.25, "net[eager-fp32-cpu] seed 7, output, case typical")]}
    assert results.accepted == Counter({("eager", "fp32", "net", "output", "typical", "zeros"): 1})
    assert results.weak == Counter({("eager", "fp32", "net", "output", "a slice of axis 0"): 1})
    assert results.kills["eager", "fp32", "one NaN"]["tried"] == 1
    assert (results.survivors[0]["seed"], results.survivors[0]["size"]) == (7, "nan")  # as JSON has it
    assert results.verdicts == [(7, replace(verdict, observation=Observation("none")))]


def test_a_quantile_is_one_of_the_values_and_damage_that_changes_nothing_is_left_out():
    values = [float(n) for n in range(1, 201)]
    assert (quantile(values, 0.99), quantile(values, 1.0), quantile([3.0], 0.99)) == (198.0, 200.0, 3.0)
    assert not damages._same_values(torch.ones(2), torch.zeros(2))
    assert damages._same_values(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not damages._same_values(torch.ones(1, 2), torch.ones(2))


WRONG = """
from types import SimpleNamespace
MINIATURES = (SimpleNamespace(model="net", mode="bent", precision="fp32", status="FAIL"),)
"""
CORRECT = "CELLS: list = [('net', 'eager', 'fp32'), ('net', 'scripted', 'fp32')]\n"


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        (WRONG, {"net[bent-fp32-cpu]": ("FAIL",)}),
        (CORRECT, {"net[eager-fp32-cpu]": ("PASS", "EXPECTED")}),
        ("PARTS = 1\n", {}),
    ],
)
def test_a_file_of_specs_states_its_verdicts(tmp_path, text, stated):
    file = tmp_path / "specs.py"
    file.write_text(text)
    assert miniatures.states_verdicts(file) == bool(stated)
    assert miniatures.stated_in(file) == stated
