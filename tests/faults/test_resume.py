"""Resuming: what has changed is named, and of several at once one goes on."""

import os
from dataclasses import replace

import pytest
from harness.command import conformance, started, stored_runs
from harness.made_by_hand import ENVIRONMENT
from harness.stored_runs import plan_of
from harness.tiny import judged, models

from conformance.commands import resume
from conformance.errors import UsageError
from conformance.records.tasks import PlanRequest
from conformance.run import child, sources, store
from conformance.run.child import Ending


def test_a_source_that_has_changed_is_named_and_nothing_is_judged(tmp_path):
    source = models(tmp_path, one="same", two="lambda: __import__('factor').scaled")
    (tmp_path / source).write_text("import factor\n" + (tmp_path / source).read_text())
    (tmp_path / "factor.py").write_text("def scaled(x):\n    return x * 2\n")
    code, output = judged(tmp_path, source, "-n1", "-k", "one")
    assert code == 0, output
    (stored,) = stored_runs(tmp_path)
    before = (stored / "cells.jsonl").read_bytes()
    (tmp_path / "factor.py").write_text("def scaled(x):\n    return x * 3\n")
    code, output = conformance(tmp_path, "run", source, "--resume", str(stored), "-n1")
    assert code == 4, output
    changed = f"{tmp_path / 'factor.py'} has changed since it was planned"
    assert output == f"conformance: {stored} cannot go on, start a new run: {changed}\n"
    assert (stored / "cells.jsonl").read_bytes() == before


def test_only_sources_outside_of_installed_packages_are_watched():
    watched = sources.imported()
    assert __file__ in watched
    assert not [file for file in watched if "site-packages" in file or "/torch/" in file]
    assert sources.digest(__file__) == watched[__file__]


def test_what_is_no_source_file_has_no_digest(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    assert sources.digest(tmp_path / "fifo") == sources.digest(tmp_path) == sources.digest(tmp_path / "none") == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"torch": "2.14.0"}, "torch 2.13.0, this is 2.14.0"),
        ({"cpu_capability": "AVX512"}, "cpu_capability AVX2, this is AVX512"),
        ({"gpus": ("a GPU",), "cuda": "13"}, "gpus none, this is a GPU; it was made with cuda"),
    ],
)
def test_an_environment_that_has_changed_is_named(tmp_path, monkeypatch, change, words):
    folder = tmp_path / "run"
    store.create(folder, plan_of("a"))
    monkeypatch.setattr(child, "run", lambda *_, **__: Ending("answered", replace(ENVIRONMENT, **change)))
    with pytest.raises(UsageError, match="cannot go on, start a new run: it was made with") as caught:
        resume.resumed(folder, PlanRequest(("nowhere",)))
    assert words in str(caught.value)


def test_of_several_at_once_one_goes_on(tmp_path):
    source = models(tmp_path, one="once(lambda: time.sleep(5))", two="once(lambda: time.sleep(5))")
    code, output = judged(tmp_path, source, "-n1", "--collect-only")
    assert code == 1, output
    (stored,) = stored_runs(tmp_path)
    running = [started(tmp_path, "run", source, "--resume", str(stored), "-n2") for _ in range(3)]
    ended = [(process.communicate(timeout=240)[0], process.returncode) for process in running]
    for output, code in ended:
        assert code in (0, 4), output
        if code == 4:
            assert len(output.splitlines()) == 1
            assert "is being written by another run (process " in output
        else:
            assert "2 cells: 2 pass" in output
    assert 0 in [code for _, code in ended]
    lines = (stored / "cells.jsonl").read_bytes().splitlines()
    for model in (b"one[", b"two["):
        assert len([line for line in lines if model in line]) == 1
