"""Shards: each model in one of them, the same split everywhere; and what is judged once is there once when joined."""

import json
import random
import subprocess
import sys
from dataclasses import replace

import pytest
from harness.made_by_hand import with_models
from harness.sources import ROOT
from harness.whole_runs import at_first_case, plan_of_zoo, verdict, write, write_shards

from conformance import cli
from conformance.errors import RecordError, UsageError
from conformance.records.convert import to_json
from conformance.records.measurements import Reason, Result
from conformance.records.plan import PlannedCell, Shard, SpecLocation
from conformance.store import durations, run_files, shards

NAMES = tuple(f"model{i}" for i in range(76))
PARTS = (("net",), ("gate",), ("line",))
RED = "gate[compiled-fp32-cpu]"


# The split


def test_each_model_is_in_one_shard_and_every_process_computes_the_same_split():
    plan = plan_of_zoo(NAMES)
    split = shards.shard(plan, 2, 4, None)
    assert split.index == 2
    assert sorted(name for part in split.parts for name in part) == sorted(NAMES)
    chosen = [replace(plan, shard=Shard(number, split.parts)).own_cells for number in range(1, 5)]
    assert sorted(cell.id for own in chosen for cell in own) == sorted(cell.id for cell in plan.cells)
    code = (
        "import sys, json; sys.path[:0] = ['.', 'tests']\n"
        "from harness.whole_runs import plan_of_zoo\n"
        "from conformance.store import shards\n"
        f"print(json.dumps(shards.shard(plan_of_zoo({NAMES!r}), 4, 4, None).parts))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert tuple(map(tuple, json.loads(done.stdout))) == split.parts


@pytest.mark.parametrize("count", [2, 8])
def test_recorded_seconds_balance_the_shards(tmp_path, count):
    plan, random_numbers = plan_of_zoo(NAMES), random.Random(0)
    taken = {name: random_numbers.uniform(0.1, 3.0) for name in NAMES}
    run = write(tmp_path / "run", plan, {p.id: replace(verdict(p.id), seconds=taken[p.cell.model]) for p in plan.cells})
    seconds = durations.of_run(run_files.read(run))
    whole = {name: 2.0 + 9 * known.cell for name, known in seconds.items()}
    loads = [sum(whole[name] for name in part) for part in shards.shard(plan, 1, count, run).parts]
    assert max(loads) <= 1.1 * sum(loads) / count


def test_without_seconds_a_model_that_compiles_counts_more_and_a_skipped_cell_nothing():
    plan = plan_of_zoo(("a", "b", "c", "d"))
    short = {"c", "d"}
    cells = tuple(p for p in plan.cells if p.cell.model not in short or p.cell.mode == "eager")
    parts = shards.shard(replace(plan, cells=cells), 1, 2, None).parts
    assert [len(short & set(part)) for part in parts] == [1, 1]
    plan = plan_of_zoo(("a", "b", "c"))
    cells = tuple(PlannedCell(p.cell, "" if p.cell.model == "a" else "absent") for p in plan.cells)
    parts = shards.shard(replace(plan, cells=cells), 1, 2, None).parts
    assert {frozenset(part) for part in parts} == {frozenset("a"), frozenset("bc")}


def test_more_shards_than_models_and_a_run_without_seconds_are_refused(tmp_path):
    plan = plan_of_zoo()
    with pytest.raises(UsageError, match=r"^--shard 1/4: 3 models make at most as many shards$"):
        shards.shard(plan, 1, 4, None)
    run = write(tmp_path / "run", plan, left_out=[p.id for p in plan.cells])
    with pytest.raises(UsageError, match=f"^--balance {run}: no cell of it was judged$"):
        shards.shard(plan, 1, 2, run)


def test_a_shard_is_a_complete_run_of_its_own_cells_and_no_others(tmp_path):
    plan = replace(plan_of_zoo(), shard=Shard(2, (("net",), ("gate", "line"))))
    contents = run_files.read(write(tmp_path / "run", plan))
    assert (len(contents.selected), contents.complete, contents.missing) == (18, True, ())
    lines = (write(tmp_path / "whole", plan_of_zoo()) / run_files.LINES).read_bytes()
    other = write(tmp_path / "other", plan, left_out=["gate[eager-fp32-cpu]"])
    (other / run_files.LINES).write_bytes(lines)
    with pytest.raises(UsageError, match=r"line \d+: the plan has no cell 'net"):
        run_files.read(other)


@pytest.mark.parametrize(
    "shard",
    [Shard(1, (("net",),)), Shard(1, (("net", "gate"), ("gate", "line"))), Shard(3, (("net", "gate"), ("line",)))],
)
def test_a_split_that_does_not_hold_each_model_once_is_refused(shard):
    with pytest.raises(RecordError, match=r"^Plan\.shard: "):
        replace(plan_of_zoo(), shard=shard).check()


# The joined run


@pytest.fixture
def parts(tmp_path):
    """The runs of three shards; one cell is red, and one is measured."""
    results = {"a job": to_json(Reason("no clock"), Result)}
    return write_shards(tmp_path, plan_of_zoo(), PARTS, statuses={RED: "FAIL"}, results=results)


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


def test_a_missing_shard_is_named_and_the_run_is_incomplete(tmp_path, parts, capsys):
    code, said = merged(capsys, parts[0], parts[2], into=tmp_path / "all")
    assert code == 1
    first = "gate[eager-fp32-cpu], gate[scripted-fp32-cpu], gate[compiled-fp32-cpu] and 6 more"
    assert said == f"conformance: shard 2/3 is missing: 9 cells without a verdict, {first}\n"
    contents = run_files.read(tmp_path / "all")
    assert (contents.complete, len(contents.missing)) == (False, 9)


def test_a_shard_that_did_not_end_is_named(tmp_path, parts, capsys):
    (parts[0] / run_files.DONE).unlink()
    path = parts[0] / run_files.LINES
    *lines, verdict_line, _ = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, verdict_line[:-20]]))
    code, said = merged(capsys, *parts, into=tmp_path / "all")
    cell = "net[compiled-amp_bf16-cpu]"
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
        ({"models": ("net", "gate", "lime")}, "cell line[eager-fp32-cpu] and 19 more is in one of them alone"),
        ({"compiling_modes": ()}, "compiling_modes differ"),
        ({"models": {"net": {"location": SpecLocation("x")}}}, "model net differs"),
        ({"parts": (("line",), ("gate",), ("net",))}, "the models are split in another way"),
        ({"parts": (("net",), ("gate", "line"))}, "the models are split in another way"),
        ({"first": True}, "depth all cases and compiled at the first case"),
    ],
)
def test_another_plan_environment_or_revision_is_refused(tmp_path, parts, capsys, change, words):
    fields = dict(change)
    names, split, first = (fields.pop(name, None) for name in ("models", "parts", "first"))
    plan = plan_of_zoo(names if isinstance(names, tuple) else ("net", "gate", "line"), **fields)
    plan = at_first_case(plan) if first else plan
    if isinstance(names, dict):
        plan = with_models(plan, names)
    split = split or tuple((name,) for name in plan.models)
    other = write(tmp_path / "other", replace(plan, shard=Shard(2, split)))
    said = refusal(tmp_path, capsys, parts[0], other)
    assert said.startswith(f"conformance: {parts[0]} and {other} cannot be joined: ")
    assert words in said


def test_the_same_sources_may_lie_in_another_folder_and_processors_differ_if_asked_for(tmp_path, parts, capsys):
    plan = plan_of_zoo(environment={"cpu": "another", "cores": 64}, digests={"/elsewhere/net.py": "00"})
    other = write(tmp_path / "other", replace(plan, shard=Shard(2, PARTS)))
    assert "cannot be joined: cpu a processor and another\n" in refusal(tmp_path, capsys, parts[0], other)
    code, said = merged(capsys, parts[0], other, parts[2], into=tmp_path / "all", options=["--any-cpu"])
    assert (code, said) == (0, "")
    assert run_files.read(tmp_path / "all").plan.environment.cpu == "a processor and another"


def test_a_folder_that_exists_is_left_as_it_is(tmp_path, parts, capsys):
    (tmp_path / "mine").write_text("precious")
    code, said = merged(capsys, *parts, into=tmp_path / "mine")
    assert code == 4
    assert said.startswith(f"conformance: --into {tmp_path / 'mine'}: it exists; a joined run needs a new folder\n")
    assert (tmp_path / "mine").read_text() == "precious"
