"""Shards: every model in one of them, about equal seconds, and the same split on every machine."""

import json
import random
import subprocess
import sys
from dataclasses import replace

import pytest
from harness.sources import ROOT
from harness.whole_runs import plan_of_zoo, verdict, write

from conformance.errors import RecordError, UsageError
from conformance.records.plan import PlannedCell, Shard
from conformance.store import durations, run_files, shards

NAMES = tuple(f"model{i}" for i in range(76))


def test_each_model_is_in_one_shard():
    plan = plan_of_zoo(NAMES)
    split = shards.shard(plan, 2, 5, None)
    assert split.index == 2
    assert sorted(name for part in split.parts for name in part) == sorted(NAMES)
    chosen = [replace(plan, shard=Shard(number, split.parts)).own_cells for number in range(1, 6)]
    assert sorted(cell.id for own in chosen for cell in own) == sorted(cell.id for cell in plan.cells)


def test_every_shard_computes_the_same_split_also_in_another_process():
    plan = plan_of_zoo(NAMES)
    parts = shards.shard(plan, 1, 4, None).parts
    assert shards.shard(plan, 3, 4, None).parts == parts
    code = (
        "import sys, json; sys.path[:0] = ['.', 'tests']\n"
        "from harness.whole_runs import plan_of_zoo\n"
        "from conformance.store import shards\n"
        f"print(json.dumps(shards.shard(plan_of_zoo({NAMES!r}), 4, 4, None).parts))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert tuple(map(tuple, json.loads(done.stdout))) == parts


def of_seconds(folder, plan, seconds):
    """A run in which each cell of a model took so many seconds."""
    cells = {p.id: replace(verdict(p.id), seconds=seconds[p.cell.model]) for p in plan.cells}
    return write(folder, plan, cells)


@pytest.mark.parametrize("count", [2, 3, 4, 6, 8])
def test_recorded_seconds_balance_the_shards(tmp_path, count):
    plan, random_numbers = plan_of_zoo(NAMES), random.Random(0)
    run = of_seconds(tmp_path / "run", plan, {name: random_numbers.uniform(0.1, 3.0) for name in NAMES})
    seconds = durations.of_run(run_files.read(run))
    assert len(seconds) == len(NAMES)
    taken = {name: 2.0 + sum(known.cell for _ in range(9)) for name, known in seconds.items()}
    loads = [sum(taken[name] for name in part) for part in shards.shard(plan, 1, count, run).parts]
    assert max(loads) <= 1.1 * sum(loads) / count


def test_without_seconds_a_model_that_compiles_counts_more():
    plan = plan_of_zoo(("a", "b", "c", "d"))
    short = {"c", "d"}
    cells = tuple(p for p in plan.cells if p.cell.model not in short or p.cell.mode == "eager")
    parts = shards.shard(replace(plan, cells=cells), 1, 2, None).parts
    assert [len(short & set(part)) for part in parts] == [1, 1]


def test_cells_that_are_skipped_take_no_time():
    plan = plan_of_zoo(("a", "b", "c"))
    cells = tuple(PlannedCell(p.cell, "" if p.cell.model == "a" else "absent") for p in plan.cells)
    parts = shards.shard(replace(plan, cells=cells), 1, 2, None).parts
    assert {frozenset(part) for part in parts} == {frozenset("a"), frozenset("bc")}


def test_more_shards_than_models_are_refused():
    with pytest.raises(UsageError, match=r"^--shard 1/4: 3 models make at most as many shards$"):
        shards.shard(plan_of_zoo(), 1, 4, None)


def test_a_run_without_verdicts_has_no_seconds(tmp_path):
    plan = plan_of_zoo()
    run = write(tmp_path / "run", plan, left_out=[p.id for p in plan.cells])
    with pytest.raises(UsageError, match=f"^--balance {run}: no cell of it was judged$"):
        shards.shard(plan, 1, 2, run)


def test_a_shard_is_a_complete_run_of_its_own_cells(tmp_path):
    plan = replace(plan_of_zoo(), shard=Shard(2, (("net",), ("gate", "line"))))
    run = write(tmp_path / "run", plan)
    contents = run_files.read(run)
    assert len(contents.selected) == 18
    assert contents.complete
    assert not contents.missing


def test_a_verdict_of_another_shard_is_damage(tmp_path):
    parts = (("net",), ("gate", "line"))
    run = write(tmp_path / "run", plan_of_zoo())
    lines = (run / run_files.LINES).read_bytes()
    other = write(tmp_path / "other", replace(plan_of_zoo(), shard=Shard(1, parts)), left_out=["net[eager-fp32-cpu]"])
    (other / run_files.LINES).write_bytes(lines)
    with pytest.raises(UsageError, match=r"line \d+: the plan has no cell 'gate"):
        run_files.read(other)


@pytest.mark.parametrize(
    "shard",
    [Shard(1, (("net",),)), Shard(1, (("net", "gate"), ("gate", "line"))), Shard(3, (("net", "gate"), ("line",)))],
)
def test_a_split_that_does_not_hold_each_model_once_is_refused(shard):
    with pytest.raises(RecordError, match=r"^Plan\.shard: "):
        replace(plan_of_zoo(), shard=shard).check()
