"""A run whose parent, interpreter or machine is unlike others: it judges all the same, or says what it cannot do."""

import os
import shutil
import subprocess
import sys

import pytest
from harness.command import FP32, conformance, started
from harness.tiny import judged, models

BLOCKING = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
os.execvp(sys.argv[1], sys.argv[1:])
"""
IGNORED = "lambda: (signal.signal(signal.SIGCHLD, signal.SIG_IGN), same())[1]"
HIDING = 'mount --bind "$0" /proc && exec "$@"'


@pytest.mark.parametrize("variables", [{"PYTHONDEVMODE": "1"}, {"PYTHONOPTIMIZE": "2"}])
def test_the_interpreter_is_told_otherwise_by_variables(tmp_path, variables):
    code, output = judged(tmp_path, models(tmp_path, one="same"), "-n1", **variables)
    assert code == 0, output
    assert "1 cell: 1 pass" in output


@pytest.mark.parametrize("flags", [("-X", "dev", "-bb"), ("-W", "error", "-B", "-X", "utf8=0")])
def test_the_interpreter_is_told_otherwise_by_flags(tmp_path, flags):
    python = ("sh", "-c", f'shift; exec "{sys.executable}" {" ".join(flags)} "$@"', "sh")
    process = started(tmp_path, "run", models(tmp_path, one="same"), *FP32, "-n1", prefix=python)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    assert "1 cell: 1 pass" in output
    assert "Traceback" not in output


def test_a_parent_that_blocks_the_signal_of_ended_children(tmp_path):
    prefix = (sys.executable, "-c", BLOCKING)
    process = started(tmp_path, "run", models(tmp_path, one="same"), *FP32, "-n1", prefix=prefix)
    output, _ = process.communicate(timeout=50)  # it took a minute for each process
    assert process.returncode == 0, output


def test_a_model_that_ignores_the_signal_of_ended_children(tmp_path):
    code, output = judged(tmp_path, models(tmp_path, one=IGNORED, two=IGNORED), "-n1")
    assert code == 0, output
    assert "2 cells: 2 pass" in output


def test_words_that_are_no_utf8_are_judged_by_one_process_which_is_said(tmp_path):
    source = models(tmp_path, one="same", two="same")
    odd = os.fsdecode(b"n\xffets.py")
    shutil.copy(tmp_path / source, tmp_path / odd)
    for words in ((odd,), (source, "--basetemp=\udcff")):
        code, output = judged(tmp_path, *words, "-n2")
        assert code == 0, output
        assert "one process judges all cells, because several cannot be told" in output
        assert "2 cells: 2 pass" in output


@pytest.fixture
def hidden(tmp_path):
    """The words that run a command where `/proc` is empty."""
    (tmp_path / "empty").mkdir()
    prefix = ("unshare", "-m", "sh", "-c", HIDING, str(tmp_path / "empty"))
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user cannot hide /proc")
    return prefix


def test_a_machine_without_proc_is_to_blame_and_no_model(tmp_path, hidden):
    process = started(tmp_path, "run", models(tmp_path, one="same"), *FP32, "-n1", prefix=hidden)
    output, _ = process.communicate(timeout=200)
    assert "1 cell: 1 pass" in output or "one was not made: a fault of conformance, and of no model, in" in output
    assert "the model raises" not in output
    assert "INVALID" not in output


@pytest.mark.parametrize("source", ["nets.py:", ":nets", ":", "json:", "nets.py:ONE:"])
def test_a_colon_without_a_name_is_refused(tmp_path, source):
    models(tmp_path, one="same")
    code, output = conformance(tmp_path, "run", source, *FP32)
    assert (code, output) == (
        4,
        f"conformance: {source!r}: no name is beside the colon; leave it out, or name a model, as in nets.py:NET\n",
    )
