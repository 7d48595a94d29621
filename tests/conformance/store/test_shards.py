"""Shards: each cell in one of them, the same cut everywhere; and what is judged once is there once when joined."""

import json
import random
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from harness.made_by_hand import with_models
from harness.sources import ROOT
from harness.whole_runs import at_first_case, plan_of_zoo, verdict, write, write_shards

from conformance import cli
from conformance.commands import stored
from conformance.errors import RecordError, UsageError
from conformance.judging.executor import Executor
from conformance.records.convert import to_json
from conformance.records.measurements import Reason, Result
from conformance.records.plan import Judge, PlannedCell, SpecLocation
from conformance.store import durations, run_files, shards

NAMES = tuple(f"model{i}" for i in range(76))
RED = "gate[compiled-fp32-cpu]"


# The cut


def all_parts(plan, count, balance=None):
    """The plans of all shards."""
    return [shards.cut(plan, own) for own in shards.split(plan, count, balance)]


def models_of(plan):
    return {planned.cell.model for planned in plan.cells}


@pytest.mark.parametrize(("models", "count"), [(76, 4), (3, 3), (1, 4), (2, 5), (3, 27), (1, 20)])
def test_each_cell_is_in_one_shard_whose_plan_holds_nothing_else(models, count):
    plan = plan_of_zoo(NAMES[:models])
    parts = all_parts(plan, count)
    placed = {place: cell for part in parts for place, cell in zip(part.shard.places, part.cells, strict=True)}
    assert tuple(placed[place] for place in range(len(plan.cells))) == plan.cells
    assert sum(len(part.cells) for part in parts) == len(plan.cells)
    assert all(part.models.keys() == models_of(part) for part in parts)
    assert {(part.shard.count, part.shard.cells) for part in parts} == {(count, len(plan.cells))}
    assert len({part.shard.whole for part in parts}) == 1
    with tempfile.TemporaryDirectory() as folder:
        tasks = {
            replace(Executor(part, Path(folder)).reference_task(name), path="")
            for part in parts
            for name in part.models
        }
        assert tasks == {replace(Executor(plan, Path(folder)).reference_task(name), path="") for name in plan.models}
    if count <= models:
        assert sum(len(part.models) for part in parts) == models  # none is split without need
    else:
        assert sum(not part.cells for part in parts) < count - models  # and otherwise some is


def test_every_process_cuts_in_the_same_way():
    code = (
        "import sys, json; sys.path[:0] = ['.', 'tests']\n"
        "from harness.whole_runs import plan_of_zoo\n"
        "from conformance.store import shards\n"
        f"shard = shards.split(plan_of_zoo({NAMES!r}), 100, None)[3]\n"
        "print(json.dumps([shard.places, shard.whole]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    shard = shards.split(plan_of_zoo(NAMES), 100, None)[3]
    assert json.loads(done.stdout) == [list(shard.places), shard.whole]


@pytest.mark.parametrize("count", [2, 8])
def test_recorded_seconds_balance_the_shards(tmp_path, count):
    plan, random_numbers = plan_of_zoo(NAMES), random.Random(0)
    taken = {name: random_numbers.uniform(0.1, 3.0) for name in NAMES}
    run = write(tmp_path / "run", plan, {p.id: replace(verdict(p.id), seconds=taken[p.cell.model]) for p in plan.cells})
    seconds = durations.of_run(run_files.read(run))
    whole = {name: 2.0 + 9 * known.cell for name, known in seconds.items()}
    loads = [sum(whole[name] for name in part.models) for part in all_parts(plan, count, run)]
    assert max(loads) <= 1.1 * sum(loads) / count


def test_without_seconds_a_model_that_compiles_counts_more_and_a_skipped_cell_nothing():
    plan = plan_of_zoo(("a", "b", "c", "d"))
    short = {"c", "d"}
    cells = tuple(p for p in plan.cells if p.cell.model not in short or p.cell.mode == "eager")
    assert [len(short & models_of(part)) for part in all_parts(replace(plan, cells=cells), 2)] == [1, 1]
    plan = plan_of_zoo(("a", "b", "c"))
    cells = tuple(
        PlannedCell(p.cell, "" if p.cell.model == "a" else "absent") for p in plan.cells if p.cell.model > "a"
    )
    parts = [models_of(part) for part in all_parts(replace(plan, cells=(plan.cells[0], *cells)), 2)]
    assert sorted(parts, key=len) == [{"a"}, {"b", "c"}]


def test_a_large_model_is_split_among_small_ones_unless_it_is_timed(tmp_path):
    plan = plan_of_zoo(("large", "b", "c", "d"))
    taken = {p.id: replace(verdict(p.id), seconds=60.0 if p.cell.model == "large" else 1.0) for p in plan.cells}
    run = write(tmp_path / "run", plan, taken)
    assert sum("large" in part.models for part in all_parts(plan, 4, run)) > 1
    timed = replace(plan, measure="speed")
    assert sum("large" in part.models for part in all_parts(timed, 4, run)) == 1
    partly = replace(timed, models={name: replace(model, timed=()) for name, model in plan.models.items()})
    assert sum("large" in part.models for part in all_parts(partly, 4, run)) > 1


def test_a_run_without_seconds_balances_nothing(tmp_path):
    plan = plan_of_zoo()
    run = write(tmp_path / "run", plan, left_out=[p.id for p in plan.cells])
    with pytest.raises(UsageError, match=f"^--balance {run}: no cell of it was judged$"):
        shards.split(plan, 2, run)


def test_a_shard_is_a_complete_run_of_its_own_cells_and_no_others(tmp_path):
    plan = all_parts(plan_of_zoo(), 3)[1]
    contents = run_files.read(write(tmp_path / "run", plan))
    assert (len(contents.selected), contents.complete, contents.missing) == (9, True, ())
    lines = (write(tmp_path / "whole", plan_of_zoo()) / run_files.LINES).read_bytes()
    other = write(tmp_path / "other", plan, left_out=[plan.cells[0].id])
    (other / run_files.LINES).write_bytes(lines)
    with pytest.raises(UsageError, match=r"line \d+: the plan has no cell '"):
        run_files.read(other)


@pytest.mark.parametrize(
    "wrong",
    [{"index": 4}, {"places": (0, 1)}, {"places": (*range(8), 7)}, {"places": (-1, *range(8))}, {"cells": 8}],
)
def test_a_shard_that_is_no_part_of_the_whole_is_refused(wrong):
    plan = all_parts(plan_of_zoo(), 3)[0]
    with pytest.raises(RecordError, match=r"^Plan\.shard: "):
        replace(plan, shard=replace(plan.shard, **wrong)).check()


# The joined run


@pytest.fixture
def parts(tmp_path):
    """The runs of three shards; one cell is red, and one is measured."""
    results = {"a job": to_json(Reason("no clock"), Result)}
    return write_shards(tmp_path, plan_of_zoo(), 3, statuses={RED: "FAIL"}, results=results)


def merged(capsys, *runs, into, options=()):
    """Merge runs; returns the exit code, and what was said on the error stream."""
    code = cli.main(["merge", *map(str, runs), "--into", str(into), *options])
    return code, capsys.readouterr().err


def refusal(tmp_path, capsys, *runs):
    """What is said of runs that cannot be joined; then nothing is written and no input has changed."""
    before = {path: path.read_bytes() for run in runs for path in run.glob("*") if path.is_file()}
    code, said = merged(capsys, *runs, into=tmp_path / "all")
    assert (code, len(said.splitlines())) == (4, 1)
    assert not (tmp_path / "all").exists()
    assert before == {path: path.read_bytes() for run in runs for path in run.glob("*") if path.is_file()}
    return said


def test_all_shards_make_the_run_that_was_planned(tmp_path, parts, capsys):
    writer = run_files.Writer(parts[0])
    writer.select(list(run_files.read(parts[0]).selected))  # which is no selection of the joined run
    writer.close()
    code, said = merged(capsys, *reversed(parts), into=tmp_path / "all")
    assert (code, said) == (1, "")
    contents = run_files.read(tmp_path / "all")
    assert (contents.plan, contents.complete, contents.missing) == (plan_of_zoo(), True, ())
    assert contents.verdicts == {cell: v for run in parts for cell, v in run_files.read(run).verdicts.items()}
    assert {cell for cell, v in contents.verdicts.items() if v.red} == {RED}
    assert contents.results == {"a job": Reason("no clock")}
    assert cli.main(["show", str(tmp_path / "all")]) == 1
    assert "27 cells: 26 pass, 1 fail" in capsys.readouterr().out


def test_missing_shards_are_named_and_the_run_is_incomplete(tmp_path, parts, capsys):
    code, said = merged(capsys, parts[0], parts[2], into=tmp_path / "all")
    assert (code, said) == (1, "conformance: missing: shard 2 of 3, with 9 of 27 cells\n")
    contents = run_files.read(tmp_path / "all")
    assert (contents.complete, contents.has_all, len(contents.verdicts)) == (False, False, 18)
    run_files.Writer(tmp_path / "all").close()
    assert not run_files.read(tmp_path / "all").complete
    assert cli.main(["show", str(tmp_path / "all"), f"--junitxml={tmp_path / 'junit.xml'}"]) == 1
    assert "\nincomplete: shard 2 of 3 missing" in capsys.readouterr().out
    assert '<error type="NOTRUN" message="shard 2 of 3 missing"' in (tmp_path / "junit.xml").read_text()
    code, said = merged(capsys, parts[2], into=tmp_path / "third")
    assert (code, said) == (1, "conformance: missing: shards 1-2 of 3, with 18 of 27 cells\n")
    assert f"{tmp_path / 'all'} is no shard" in refusal(tmp_path / "new", capsys, tmp_path / "all", parts[1])


def test_github_is_told_of_missing_shards(tmp_path, parts, capsys, monkeypatch):
    monkeypatch.setenv(stored.ACTIONS, "true")
    monkeypatch.setenv(stored.SUMMARY, str(tmp_path / "summary.md"))
    assert cli.main(["merge", *map(str, parts[1:]), "--into", str(tmp_path / "all")]) == 1
    assert "\n::error title=conformance::shard 1 of 3 missing\n" in capsys.readouterr().out
    assert ", shard 1 of 3 missing · " in (tmp_path / "summary.md").read_text()


def test_empty_shards_are_joined_too(tmp_path, capsys):
    plan = plan_of_zoo(("net",))
    parts = write_shards(tmp_path, plan, 12)
    assert sum(not run_files.read(part).plan.cells for part in parts) == 3
    assert all(run_files.read(part).complete for part in parts)
    code, said = merged(capsys, *parts, into=tmp_path / "all")
    assert (code, said) == (0, "")
    assert run_files.read(tmp_path / "all").plan == plan


def test_a_shard_that_did_not_end_is_named(tmp_path, parts, capsys):
    (parts[0] / run_files.DONE).unlink()
    cell = run_files.read(parts[0]).selected[-1]
    path = parts[0] / run_files.LINES
    *lines, verdict_line, _ = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, verdict_line[:-20]]))
    code, said = merged(capsys, *parts, into=tmp_path / "all")
    assert code == 1
    assert said == f"conformance: shard 1/3 ({parts[0]}) is incomplete: 1 cell without a verdict, {cell}\n"
    assert run_files.read(tmp_path / "all").missing == (cell,)


@pytest.mark.parametrize("name", [run_files.PLAN, run_files.LINES, run_files.DONE])
def test_a_shard_that_is_damaged_doubled_or_whole_is_refused(tmp_path, parts, capsys, name):
    said = refusal(tmp_path, capsys, *parts, parts[1])
    assert said == f"conformance: shard 2/3 is there twice: {parts[1]} and {parts[1]}\n"
    whole = write(tmp_path / "whole", plan_of_zoo())
    assert f"{whole} is no shard" in refusal(tmp_path, capsys, parts[0], whole)
    path = parts[1] / name
    path.write_bytes(path.read_bytes()[:-30])
    said = refusal(tmp_path, capsys, *parts)
    assert said.startswith(f"conformance: {path if name == run_files.PLAN else parts[1] / run_files.DONE}")
    assert said.endswith(f"; the other runs can be joined without {parts[1]}\n")
    path.unlink()
    path.symlink_to(parts[0] / name)
    assert f"{path} is no regular file" in refusal(tmp_path, capsys, *parts)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 3}, "seed 0 and 3"),
        ({"deadline": 7.0}, "deadline 60.0 and 7.0"),
        ({"measure": "speed"}, "measure none and speed"),
        ({"torch": "2.15.0"}, "torch 2.13.0 and 2.15.0"),
        ({"environment": {"python": "3.12.1"}}, "python 3.11.9 and 3.12.1"),
        ({"environment": {"cpu": "another", "gpus": ("one",)}}, "cpu a processor and another; gpus none and one"),
        ({"digests": {"/src/net.py": "ff"}}, "source net.py differs"),
        ({"digests": {"/src/net.py": "00", "/src/more.py": "11"}}, "source more.py is in one of them alone"),
        (
            {"models": ("net", "gate", "lime")},
            "they are of different plans, shard 1/3 and 2/3 of conformance run nets.py",
        ),
        ({"compiling_modes": ()}, "they are of different plans"),
        ({"parts": 4}, "they are of different plans, shard 1/3 and 2/4 of "),
        ({"first": True}, "they are of different plans"),
        ({"judge": Judge(code="another")}, "they have different judges"),
        ({"strict": True}, "strict False and True"),
    ],
)
def test_another_plan_environment_or_revision_is_refused(tmp_path, capsys, change, words):
    fields = dict(change)
    names, count, first = fields.pop("models", ("net", "gate", "line")), fields.pop("parts", 3), fields.pop("first", 0)
    command = ("run", "nets.py")
    plan = plan_of_zoo(names, command=command, **fields)
    one = write(tmp_path / "one", replace(all_parts(plan_of_zoo(), 3)[0], command=command))
    other = write(tmp_path / "other", all_parts(at_first_case(plan) if first else plan, count)[1])
    said = refusal(tmp_path, capsys, one, other)
    assert said.startswith(f"conformance: {one} and {other} cannot be joined: ")
    assert words in said


def test_what_two_shards_have_in_common_must_be_the_same(tmp_path, capsys):
    parts = all_parts(plan_of_zoo(("net",)), 3)
    moved = with_models(parts[1], {"net": {"location": SpecLocation("x")}})
    runs = [write(tmp_path / part.shard.whole / str(part.shard.index), part) for part in (parts[0], moved)]
    assert "cannot be joined: model net differs\n" in refusal(tmp_path, capsys, *runs)


def test_shards_that_are_cut_in_different_ways_are_refused(tmp_path, parts, capsys):
    plan = plan_of_zoo()
    slow = {p.id: replace(verdict(p.id), seconds=99.0 if p.cell.model == "line" else 1.0) for p in plan.cells}
    balance = write(tmp_path / "earlier", plan, slow)
    others = [write(tmp_path / f"other{i}", all_parts(plan, 3, balance)[i]) for i in (1, 2)]
    said = refusal(tmp_path, capsys, parts[0], *others)
    assert "do not hold each cell of their plan once" in said


def test_the_same_sources_may_lie_in_another_folder_and_processors_differ_if_asked_for(tmp_path, parts, capsys):
    plan = plan_of_zoo(environment={"cpu": "another", "cores": 64}, digests={"/elsewhere/net.py": "00"})
    other = write(tmp_path / "other", all_parts(plan, 3)[1])
    assert "cannot be joined: cpu a processor and another\n" in refusal(tmp_path, capsys, parts[0], other)
    code, said = merged(capsys, parts[0], other, parts[2], into=tmp_path / "all", options=["--any-cpu"])
    assert (code, said) == (1, "")
    contents = run_files.read(tmp_path / "all")
    assert (contents.plan.environment.cpu, contents.complete) == ("a processor and another", True)


def test_a_folder_that_exists_is_left_as_it_is(tmp_path, parts, capsys):
    (tmp_path / "mine").write_text("precious")
    code, said = merged(capsys, *parts, into=tmp_path / "mine")
    assert code == 4
    assert said.startswith(f"conformance: --into {tmp_path / 'mine'}: it exists; a joined run needs a new folder\n")
    assert (tmp_path / "mine").read_text() == "precious"
