"""Resuming: sources are named again, what has changed is named, and of several at once one goes on."""

import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from harness.command import conformance, stored_runs
from harness.made_by_hand import ENVIRONMENT, with_models
from harness.stored_runs import plan_of
from harness.tiny import judged, models

from conformance.cache import sources
from conformance.commands import run
from conformance.errors import UsageError
from conformance.judging import resuming
from conformance.process import child
from conformance.process.child import Ending
from conformance.records.plan import OtherModel, OwnModel, SpecLocation
from conformance.records.tasks import PlanRequest
from conformance.store import run_files


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
    watched = sources.digests_of_imported()
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
    run_files.create(folder, plan_of("a"))
    monkeypatch.setattr(child, "run", lambda *_, **__: Ending("answered", replace(ENVIRONMENT, **change)))
    with pytest.raises(UsageError, match="cannot go on, start a new run: it was made with") as caught:
        run.folder_to_resume(folder, PlanRequest(("nowhere",)))
    assert words in str(caught.value)


FILE, MODULE = SpecLocation(file="/their nets.py"), SpecLocation("their.module")
SAVED = SpecLocation("zoo.models.mlp", own=OwnModel(saved="/their.pt"))  # a module of the zoo may stand before it
WITH_OTHERS = SpecLocation(own=OwnModel(saved="/their.pt", call="/call.pt", definitions="/main.py"))
BESIDE = {"reference": OtherModel("their.nets:Net", takes_weights=True), "candidate": OtherModel("/new.py:Net", True)}
HELD = SpecLocation(own=OwnModel(saved="/their.pt", **BESIDE))
LIBRARY = SpecLocation(own=OwnModel(library="timm:test_vit?size=64"))


def planned_at(*places, **modes):
    """A plan with a model at each place."""
    names = "abcd"[: len(places)]
    located = {name: {"location": place} for name, place in zip(names, places, strict=True)}
    return with_models(replace(plan_of(*names), modes=modes), located)


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        (planned_at(FILE, FILE), ["/their nets.py"]),
        (planned_at(FILE, mode=MODULE), ["/their nets.py", "their.module"]),
        (planned_at(SAVED, LIBRARY), ["/their.pt", "timm:test_vit?size=64"]),
        (planned_at(WITH_OTHERS), ["/their.pt", "/call.pt", "/main.py", "--trust"]),
        (planned_at(HELD), ["/their.pt", "/new.py", "their.nets:Net"]),
        (planned_at(SpecLocation("zoo.models.mlp", file="/their.py")), ["/their.py"]),
        (planned_at(SpecLocation()), [""]),
        (planned_at(SpecLocation("zoo.models.mlp")), []),
    ],
)
def test_a_plan_executes_only_what_is_named_and_the_printed_command_names_it(tmp_path, plan, named):
    assert shlex.split(resuming.command(tmp_path, plan)) == ["conformance", "run", *named, "--resume", str(tmp_path)]
    resuming.refuse_unnamed(tmp_path, plan, named, "again")
    for left_out in named:
        told = f"{tmp_path} would execute {left_out}; name its sources"
        told = f"what {tmp_path} names may run code when it is opened" if left_out == resuming.TRUST else told
        with pytest.raises(UsageError, match=re.escape(told)):
            resuming.refuse_unnamed(tmp_path, plan, [name for name in named if name != left_out], "again")
    with pytest.raises(UsageError, match=r"has no source other\.py there; want again"):
        resuming.refuse_unnamed(tmp_path, plan, [*named, "other.py"], "again")


def test_a_source_may_be_named_as_when_the_run_was_planned(tmp_path, monkeypatch):
    (tmp_path / "nets.py").touch()
    monkeypatch.chdir(tmp_path)
    plan = planned_at(SpecLocation(file=str(Path("nets.py").resolve())), MODULE)
    resuming.refuse_unnamed(tmp_path, plan, ["nets.py:ONE", "nets.py:TWO", "their.module:NAME"], "again")
    monkeypatch.setattr(sources, "place_of", {"theirs": "their.module:NAME", "nets.py": ""}.get)
    resuming.refuse_unnamed(tmp_path, plan, ["nets.py", "theirs"], "again")


def test_of_several_at_once_one_goes_on(tmp_path):
    source = models(tmp_path, one="same")
    code, output = judged(tmp_path, source, "-n1", "--collect-only")
    assert code == 1, output
    (stored,) = stored_runs(tmp_path)
    writer = run_files.Writer(stored)
    code, output = conformance(tmp_path, "run", source, "--resume", str(stored))
    assert (code, output) == (4, f"conformance: {stored} is being written by another run\n")
    writer.close()
    code, output = conformance(tmp_path, "run", source, "--resume", str(stored), "-n1")
    assert code == 0, output
