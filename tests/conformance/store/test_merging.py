"""Joining shards: what is judged once is there once, what is missing is named, and nothing else is joined."""

from dataclasses import replace

import pytest
from harness.made_by_hand import with_models
from harness.whole_runs import at_first_case, plan_of_zoo, write, write_shards

from conformance import cli
from conformance.records.convert import to_json
from conformance.records.measurements import Reason, Result
from conformance.records.plan import Shard, SpecLocation
from conformance.store import run_files

PARTS = (("net",), ("gate",), ("line",))
RED = "gate[compiled-fp32-cpu]"


@pytest.fixture
def shards(tmp_path):
    """The runs of three shards; one cell is red."""
    return write_shards(tmp_path, plan_of_zoo(), PARTS, statuses={RED: "FAIL"})


def merged(capsys, *runs, into, options=()):
    """Merge runs; returns the exit code, and what was said on the error stream."""
    code = cli.main(["merge", *map(str, runs), "--into", str(into), *options])
    return code, capsys.readouterr().err


def test_all_shards_make_the_run_that_was_planned(tmp_path, shards, capsys):
    code, said = merged(capsys, *reversed(shards), into=tmp_path / "all")
    assert (code, said) == (1, "")
    contents = run_files.read(tmp_path / "all")
    assert contents.plan == plan_of_zoo()
    assert contents.complete
    assert not contents.missing
    assert {cell: v.status for cell, v in contents.verdicts.items() if v.red} == {RED: "FAIL"}
    for shard in shards:
        for cell, found in run_files.read(shard).verdicts.items():
            assert contents.verdicts[cell] == found


def test_shards_of_different_depths_are_not_joined(tmp_path, capsys):
    whole = write_shards(tmp_path / "whole", plan_of_zoo(), PARTS)
    quick = write_shards(tmp_path / "quick", at_first_case(plan_of_zoo()), PARTS)
    code, said = merged(capsys, whole[0], quick[1], into=tmp_path / "all")
    assert code == 4
    assert "one judges all cases, the other compiled at the first case" in said


def test_the_joined_run_is_a_run(tmp_path, capsys):
    cli.main(["merge", *map(str, write_shards(tmp_path, plan_of_zoo(), PARTS)), "--into", str(tmp_path / "all")])
    assert capsys.readouterr().out == f"27 cells: 27 pass · run stored in {tmp_path / 'all'}\n"
    assert cli.main(["show", str(tmp_path / "all")]) == 0
    assert "27 cells: 27 pass" in capsys.readouterr().out


def test_measurements_are_joined(tmp_path, capsys):
    result = {"a job": to_json(Reason("no clock"), Result)}
    merged(capsys, *write_shards(tmp_path, plan_of_zoo(), PARTS, results=result), into=tmp_path / "all")
    assert run_files.read(tmp_path / "all").results == {"a job": Reason("no clock")}


def test_what_a_shard_selects_is_no_selection_of_the_joined_run(tmp_path, shards, capsys):
    writer = run_files.Writer(shards[0])
    writer.select(list(run_files.read(shards[0]).selected))
    writer.close()
    merged(capsys, *shards, into=tmp_path / "all")
    assert len(run_files.read(tmp_path / "all").selected) == 27


def test_a_missing_shard_is_named_and_the_run_is_incomplete(tmp_path, shards, capsys):
    code, said = merged(capsys, shards[0], shards[2], into=tmp_path / "all")
    assert code == 1
    first = "gate[eager-fp32-cpu], gate[scripted-fp32-cpu], gate[compiled-fp32-cpu] and 6 more"
    assert said == f"conformance: shard 2/3 is missing: 9 cells without a verdict, {first}\n"
    contents = run_files.read(tmp_path / "all")
    assert not contents.complete
    assert len(contents.missing) == 9


def test_a_shard_that_did_not_end_is_named(tmp_path, shards, capsys):
    cell = "net[eager-fp32-cpu]"
    own = write(tmp_path / "cut", replace(plan_of_zoo(), shard=Shard(1, PARTS)), left_out=[cell])
    code, said = merged(capsys, own, *shards[1:], into=tmp_path / "all")
    assert code == 1
    assert said == f"conformance: shard 1/3 ({own}) is incomplete: 1 cell without a verdict, {cell}\n"
    assert run_files.read(tmp_path / "all").missing == (cell,)


def test_a_torn_last_line_is_a_cell_without_a_verdict(tmp_path, shards, capsys):
    (shards[0] / run_files.DONE).unlink()
    path = shards[0] / run_files.LINES
    path.write_bytes(path.read_bytes()[:-20])
    code, said = merged(capsys, *shards, into=tmp_path / "all")
    assert code == 1
    assert "is incomplete: 1 cell without a verdict, net[compiled-amp_bf16-cpu]" in said


def refused(tmp_path, capsys, *runs):
    """What is said of runs that cannot be joined; then nothing is written and no input has changed."""
    before = {path: path.read_bytes() for run in runs for path in run.glob("*") if path.is_file()}
    code, said = merged(capsys, *runs, into=tmp_path / "all")
    assert code == 4
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "all").exists()
    assert before == {path: path.read_bytes() for run in runs for path in run.glob("*") if path.is_file()}
    return said


def test_a_doubled_shard_is_refused(tmp_path, shards, capsys):
    said = refused(tmp_path, capsys, *shards, shards[1])
    assert said == f"conformance: shard 2/3 is there twice: {shards[1]} and {shards[1]}\n"


@pytest.mark.parametrize("name", [run_files.PLAN, run_files.LINES, run_files.DONE])
def test_an_artifact_cut_short_is_refused(tmp_path, shards, capsys, name):
    path = shards[1] / name
    path.write_bytes(path.read_bytes()[:-30])
    said = refused(tmp_path, capsys, *shards)
    assert said.startswith(f"conformance: {path if name == run_files.PLAN else shards[1] / run_files.DONE}")
    assert said.endswith(f"; the other runs can be joined without {shards[1]}\n")


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
        ({"models": ("net", "gate", "lime")}, "cell line[eager-fp32-cpu] and 17 more is in one of them alone"),
        ({"compiling_modes": ()}, "compiling_modes differ"),
        ({"models": {"net": {"location": SpecLocation("x")}}}, "model net differs"),
    ],
)
def test_another_plan_environment_or_revision_is_refused(tmp_path, shards, capsys, change, words):
    fields = dict(change)
    names = fields.pop("models", ("net", "gate", "line"))
    plan = plan_of_zoo(names if isinstance(names, tuple) else ("net", "gate", "line"), **fields)
    if isinstance(names, dict):
        plan = with_models(plan, names)
    parts = PARTS if "lime" not in names else (("net",), ("gate",), ("lime",))
    other = write(tmp_path / "other", replace(plan, shard=Shard(2, parts)))
    said = refused(tmp_path, capsys, shards[0], other)
    assert said.startswith(f"conformance: {shards[0]} and {other} cannot be joined: ")
    assert words in said


def test_another_split_is_refused(tmp_path, shards, capsys):
    other = write(tmp_path / "other", replace(plan_of_zoo(), shard=Shard(2, (("line",), ("gate",), ("net",)))))
    assert "the models are split in another way" in refused(tmp_path, capsys, shards[0], other)
    other = write(tmp_path / "more", replace(plan_of_zoo(), shard=Shard(2, (("net",), ("gate", "line")))))
    assert "one is a shard of 3, the other of 2" in refused(tmp_path, capsys, shards[0], other)


def test_the_same_sources_may_lie_in_another_folder(tmp_path, shards, capsys):
    plan = plan_of_zoo(digests={"/elsewhere/net.py": "00"})
    other = write(tmp_path / "other", replace(plan, shard=Shard(2, PARTS)))
    assert merged(capsys, shards[0], other, shards[2], into=tmp_path / "all") == (0, "")


def test_other_processors_are_joined_if_asked_for(tmp_path, shards, capsys):
    plan = plan_of_zoo(environment={"cpu": "another", "cores": 64})
    other = write(tmp_path / "other", replace(plan, shard=Shard(2, PARTS)))
    assert "cpu a processor and another" in refused(tmp_path, capsys, shards[0], other)
    runs = (shards[0], other, shards[2])
    assert merged(capsys, *runs, into=tmp_path / "all", options=["--any-cpu"]) == (0, "")
    assert run_files.read(tmp_path / "all").plan.environment.cpu == "a processor and another"


def test_a_whole_run_is_no_shard(tmp_path, shards, capsys):
    whole = write(tmp_path / "whole", plan_of_zoo())
    assert f"{whole} is no shard" in refused(tmp_path, capsys, shards[0], whole)


def test_a_folder_that_exists_is_left_as_it_is(tmp_path, shards, capsys):
    (tmp_path / "mine").write_text("precious")
    code, said = merged(capsys, *shards, into=tmp_path / "mine")
    assert (code, said.splitlines()[0]) == (
        4,
        f"conformance: --into {tmp_path / 'mine'}: it exists; a joined run needs a new folder",
    )
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_link_in_a_shard_is_not_followed(tmp_path, shards, capsys):
    path = shards[0] / run_files.LINES
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert f"{path} is no regular file" in merged(capsys, *shards, into=tmp_path / "all")[1]
    assert not (tmp_path / "all").exists()
