"""`conformance run --shard` with real cells, joined by `conformance merge`."""

from harness.command import FP32, conformance, run_folder
from harness.tiny import models

from conformance.errors import counted
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


def test_more_shards_than_models_leave_no_run(tmp_path):
    source = models(tmp_path, one="same")
    code, output = conformance(tmp_path, "run", source, *FP32, "--shard=2/2")
    assert (code, output) == (4, "conformance: --shard 2/2: 1 models make at most as many shards\n")
    assert not (tmp_path / ".conformance").exists()
