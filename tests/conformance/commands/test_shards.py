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
    assert "conformance: missing: shard 2 of 2, with " in output


def test_more_shards_than_models_split_one_and_an_empty_shard_is_green(tmp_path):
    source = models(tmp_path, one="same")
    axes, runs = ("--mode=eager", "--precision=fp32", "--precision=amp_bf16", "--device=cpu", "--no-speed"), []
    for index in (1, 2, 3):
        code, output = conformance(tmp_path, "run", source, *axes, f"--shard={index}/3", "-n1")
        assert code == 0, output
        runs.append(str(run_folder(output)))
        assert (f"shard {index}/3 is empty: the other shards have all 2 cells\n" in output) == (index == 3)
    code, output = conformance(tmp_path, "show", runs[2])
    assert (code, "0 cells: " in output) == (0, True)
    code, output = conformance(tmp_path, "run", "--resume", runs[2])
    assert code == 0, output
    code, output = conformance(tmp_path, "merge", *runs, "--into", "all")
    assert (code, output) == (0, "2 cells: 2 pass · run stored in all\n")
