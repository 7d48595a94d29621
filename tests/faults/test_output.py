"""A verdict never depends on printing: streams that are closed, full, left by their reader, or that lack our signs."""

import subprocess
from pathlib import Path

import pytest
from harness.command import FP32, conformance, started, stored_runs
from harness.tiny import judged, models


@pytest.fixture
def source(tmp_path):
    """A file with a model that passes and one that raises an error."""
    return models(tmp_path, one="same", red="once(lambda: 1 / 0)")


def verdicts(folder):
    """How the cells of the only run in a folder came out, by its own report."""
    (stored,) = stored_runs(folder)
    _, output = conformance(folder, "show", str(stored))
    return output


ASCII = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_an_encoding_without_our_signs_gets_plain_ones(tmp_path, source):
    code, output = judged(tmp_path, source, "-n2", "-v", **ASCII)
    assert code == 1, output
    assert output.isascii()
    assert "+ one[eager-fp32-cpu]" in output
    assert "x red[eager-fp32-cpu]  ERROR" in output
    assert "2 cells: 1 pass, 1 error" in output


@pytest.mark.parametrize(
    "shell",
    ['exec "$@" <&- >&- 2>&-', 'exec "$@" >/dev/full'],
)
def test_streams_that_cannot_be_written(tmp_path, source, shell):
    process = started(tmp_path, "run", source, *FP32, "-n2", prefix=("sh", "-c", shell, "sh"))
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 1, output
    assert "Traceback" not in output
    assert "2 cells: 1 pass, 1 error" in verdicts(tmp_path)
    if shell.endswith("/dev/full"):
        assert "the output could not be written: No space left on device" in output


def test_a_reader_that_goes_away(tmp_path, source):
    process = started(tmp_path, "run", source, *FP32, "-n2", stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    _, said = process.communicate(timeout=200)
    assert process.returncode == 1
    assert said == ""
    assert "2 cells: 1 pass, 1 error" in verdicts(tmp_path)


def test_a_list_that_nobody_reads(tmp_path, source):
    for shell in ('exec "$@" >/dev/full', 'exec "$@" >&-'):
        process = started(tmp_path, "list", source, prefix=("sh", "-c", shell, "sh"))
        output, _ = process.communicate(timeout=200)
        assert process.returncode == 0, output
        assert "Traceback" not in output


def test_a_store_that_cannot_be_written(tmp_path, source):
    (tmp_path / "file").write_text("")
    for store in (tmp_path / "file", tmp_path / "file" / "deeper", Path("/proc/1")):  # root may write elsewhere
        code, output = judged(tmp_path, source, "--store", str(store))
        assert code == 4, output
        assert len(output.splitlines()) == 1
        assert output.startswith(f"conformance: --store {store}: ")


FULL = """
import errno, os
from pathlib import Path
from conformance.store import files

write_all = files.write_all

def until_the_disk_is_full(file, data):
    if b'"verdict"' in data and b"two[" in data:
        os.write(file, data[:20])
        Path("full").touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    write_all(file, data)

files.write_all = until_the_disk_is_full
"""


def test_a_disk_that_fills_up_loses_nothing_and_blames_nobody(tmp_path):
    last = "once(lambda: until(Path('full').exists))"
    source = models(tmp_path, one="same", two="once(lambda: until(lambda: stored('one[')))", three=last)
    (tmp_path / "full.py").write_text(FULL)
    code, output = judged(tmp_path, source, "-n2", "-p", "full")
    assert code == 1, output
    (stored,) = stored_runs(tmp_path)
    assert "conformance: the verdict of two[eager-fp32-cpu] could not be stored in" in output
    assert "No space left on device" in output
    assert "3 cells: 1 pass, 2 notrun" in output
    assert f"conformance run {tmp_path / source} --resume {stored}" in output
    assert "Traceback" not in output
    code, output = conformance(tmp_path, "run", source, "--resume", str(stored), "-n1")
    assert code == 0, output
    assert "3 cells: 3 pass" in output


def test_a_folder_that_is_gone(tmp_path):
    process = started(tmp_path, "list", prefix=("sh", "-c", 'mkdir gone; cd gone; rmdir ../gone; exec "$@"', "sh"))
    output, _ = process.communicate(timeout=200)
    assert process.returncode in (0, 4), output
    assert "Traceback" not in output
