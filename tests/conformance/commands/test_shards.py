"""`conformance run --shard` with real cells, joined by `conformance merge`; and the arguments that do not fit."""

import pytest
from harness.command import FP32, conformance, run_folder
from harness.tiny import models

from conformance import cli
from conformance.one_line import counted
from conformance.store import run_files


def test_the_shards_of_a_command_make_its_whole_run(tmp_path):
    source = models(tmp_path, **dict.fromkeys(("one", "two", "three"), "same"))
    runs = []
    for index in (1, 2):
        code, output = conformance(tmp_path, "run", source, *FP32, f"--shard={index}/2", "-n1")
        assert code == 0, output
        runs.append(str(run_folder(output)))
        assert f"\n{counted(len(run_files.read(run_folder(output)).selected), 'cell')}: " in output
    code, output = conformance(tmp_path, "merge", *runs, "--into", "all")
    assert (code, output) == (0, "3 cells: 3 pass · run stored in all\n")
    code, output = conformance(tmp_path, "show", "all")
    assert code == 0
    assert "3 cells: 3 pass" in output
    code, output = conformance(tmp_path, "merge", runs[0], "--into", "half")
    assert code == 1
    assert "shard 2/2 is missing: " in output
    code, output = conformance(tmp_path, "run", "--resume", "half", source, "-n1")
    assert code == 0, output  # what is missing can be judged here
    assert "3 cells: 3 pass" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--shard=3"], "argument --shard: want a shard such as 1/4, got '3'"),
        (["run", "--shard=a/b"], "argument --shard: want a shard such as 1/4, got 'a/b'"),
        (["run", "--shard=1/2/3"], "argument --shard: want a shard such as 1/4, got '1/2/3'"),
        (["run", "--shard=0/4"], "argument --shard: want a shard such as 1/4, got '0/4'"),
        (["run", "--shard=5/4"], "argument --shard: want a shard such as 1/4, got '5/4'"),
        (["run", "--shard=1/99999999"], "argument --shard: want a shard such as 1/4"),
        (["run", "--shard=1/2", "-k", "x"], "it does not take -k"),
        (["run", "--shard=1/2", "--resume", "x"], "it does not take --resume"),
        (["run", "--balance=x"], "--balance is about shards, and there is no --shard"),
        (["merge", "a"], "the following arguments are required: --into"),
        (["merge", "--into", "a"], "the following arguments are required: RUN"),
        (["merge", "nowhere", "--into", "a"], "nowhere is no run folder: it has no plan.json"),
        (["diff", "a"], "the following arguments are required: B"),
        (["diff", "a", "b", "--jsn=x"], "diff: unknown option --jsn=x; did you mean --json?"),
        (["compat"], "the following arguments are required: RUN"),
    ],
)
def test_what_cannot_be_read_is_four_in_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 4
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_more_shards_than_models_leave_no_run(tmp_path):
    source = models(tmp_path, one="same")
    code, output = conformance(tmp_path, "run", source, *FP32, "--shard=2/2")
    assert (code, output) == (4, "conformance: --shard 2/2: 1 models make at most as many shards\n")
    assert not (tmp_path / ".conformance").exists()
