"""No cache folder, no damaged cache and no damaged reference is ever the fault of a model, or ends a run."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from harness.command import FP32, conformance
from harness.made_by_hand import ENVIRONMENT, plan_for
from harness.spec_files import file_of, planned

from conformance.cache.references import References
from conformance.commands.planning import children_prepared
from conformance.errors import DamagedReferenceError, MachineError
from conformance.judging import keeping
from conformance.judging.executor import CONFIRMED, Executor
from conformance.oracle import reference_file
from conformance.process import environment
from conformance.records.cell import Cell, Verdict
from conformance.store import files

SPOILED = """
import os
import signal
from pathlib import Path
import conformance

def prepare(model):
    cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    if (cache / "spoiled").exists() or {always}:
        {deed}
    (cache / "stored").touch()
    return conformance.Prepared(model, lambda: {{"code": "mine"}})

conformance.register_mode("spoiled", prepare)
"""
DEEDS = {"ERROR": "raise RuntimeError('bad code')", "CRASH": "os.kill(os.getpid(), signal.SIGSEGV)"}


# The folder


def named(path):
    return path.parent.parent


def test_the_folder_is_absolute_whatever_the_variables_say(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative/folder", "."):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert named(environment.cache_of(ENVIRONMENT)) == tmp_path / ".cache"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert named(environment.cache_of(ENVIRONMENT)) == tmp_path / ".cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    assert named(environment.cache_of(ENVIRONMENT)) == tmp_path / "own"


@pytest.mark.parametrize("home", ["a file", "missing", "not absolute", "full", "no folder can be made"])
def test_a_folder_of_no_use_is_replaced_by_a_temporary_one_and_one_line_says_so(monkeypatch, tmp_path, capsys, home):
    (tmp_path / "file").touch()
    places = {
        "a file": tmp_path / "file",
        "missing": Path("/proc/nowhere"),
        "not absolute": "some/where",
        "full": tmp_path,
        "no folder can be made": Path("/dev/null"),
    }
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(places[home]))
    if home == "full":

        def refuse(**_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(environment.tempfile, "TemporaryFile", refuse)
    plan = replace(plan_for(Cell("m", "compiled", "fp32", "cpu")), compiling_modes=("compiled",))
    with children_prepared(plan) as folder:
        assert folder.is_absolute()
        assert folder.name.startswith("conformance-cache-")
        assert environment.cache_in_use() == folder
        (folder / "code").touch()
    assert not folder.exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert "compiled code is kept for this run only" in line


def test_a_run_writes_nothing_into_the_working_folder_and_needs_no_cache(tmp_path):
    spec = Path(file_of(tmp_path, "one")).name
    code, output = conformance(tmp_path, "run", spec, *FP32, XDG_CACHE_HOME="", HOME="/dev/null")
    assert code == 0, output
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {spec, ".conformance"}


# Damaged code


@pytest.fixture
def judged(tmp_path, monkeypatch):
    """A function that judges the cell of a mode, which misbehaves if the cache holds a file "spoiled": it does.

    It returns the verdict and the cache. The mode compiles in name alone, so the fork server needs no compiler.
    """
    monkeypatch.setattr(environment, "compile_for", lambda _: None)

    def judge(deed, *, always=False):
        (tmp_path / "mode.py").write_text(SPOILED.format(always=always, deed=deed))
        sources = file_of(tmp_path, "one"), str(tmp_path / "mode.py")
        plan = planned(*sources, modes=("spoiled",), precisions=("fp32",), devices=("cpu",))
        assert plan.compiling_modes == ("spoiled",)
        cache = tmp_path / "cache"
        cache.mkdir()
        (cache / "spoiled").touch()
        environment.prepare_children(cache, compiles_for=())
        return Executor(plan, tmp_path / "references").verdict(plan.cells[0]), cache

    return judge


@pytest.mark.parametrize("status", DEEDS)
def test_damaged_code_is_compiled_anew_and_the_cache_is_emptied(judged, status):
    verdict, cache = judged(DEEDS[status])
    assert verdict.status == "PASS"
    assert f"ended in {status}" in " ".join(verdict.notes)
    assert "the cache was emptied" in " ".join(verdict.notes)
    assert not cache.exists()


def test_a_true_error_is_confirmed_and_never_hidden(judged):
    verdict, cache = judged(DEEDS["ERROR"], always=True)
    assert verdict.status == "ERROR"
    assert "bad code" in verdict.text
    assert CONFIRMED in verdict.notes
    assert (cache / "spoiled").exists()  # an honest error proves no damage


def test_every_flipped_bit_and_every_cut_of_a_kept_verdict_is_found(tmp_path):
    path, kept = tmp_path / "kept.json", keeping.Kept("2026-11-29", Verdict("a[eager-fp32-cpu]", "PASS", margin=0.5))
    files.write_document(path, keeping.KEPT, kept)
    assert keeping._load(path, kept.verdict.cell) == kept
    whole = path.read_bytes()
    for content in damaged(whole):
        path.write_bytes(content)
        assert keeping._load(path, kept.verdict.cell) is None


def damaged(whole):
    """Each cut of some bytes, and each flip of a bit."""
    yield from (whole[:length] for length in range(len(whole)))
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


# A damaged reference


def test_every_flipped_bit_and_every_cut_of_a_reference_is_found(tmp_path):
    path = tmp_path / "x.reference"
    reference_file.save(path, {"number": 3, "tensor": torch.arange(4.0)})
    whole = path.read_bytes()
    assert reference_file.load(path)["number"] == 3
    for content in damaged(whole):
        path.write_bytes(content)
        with pytest.raises(DamagedReferenceError, match="checksum"):
            reference_file.load(path)


@pytest.fixture
def executor(tmp_path):
    """An executor of one model with one cell, the planned cell, and the path of the reference."""
    plan = planned(file_of(tmp_path, "one"), modes=("eager",), precisions=("fp32",), devices=("cpu",))
    environment.prepare_children(None, compiles_for=())
    judging = Executor(plan, tmp_path / "references")
    return judging, plan.cells[0], judging.reference("one")


DAMAGE = {
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: path.write_bytes(b""),
    "flipped": lambda path: path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes())),
    "removed": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_reference_is_made_again(executor, damage):
    judging, cell, path = executor
    DAMAGE[damage](path)
    assert judging.verdict(cell).status == "PASS"
    assert reference_file.load(path)


def test_a_reference_that_is_damaged_each_time_is_no_verdict(executor, monkeypatch):
    judging, cell, path = executor
    path.write_bytes(b"")
    monkeypatch.setattr(References, "forget", lambda *_: None)
    with pytest.raises(MachineError, match="checksum does not match"):
        judging.verdict(cell)
