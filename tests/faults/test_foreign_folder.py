"""A run folder from somebody else: it executes nothing, leads nowhere, blocks nobody, and cannot command a terminal."""

import dataclasses
import json
import os
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from harness import record_examples
from harness.command import FP32, conformance, run_folder
from harness.made_by_hand import plan_for
from harness.stored_runs import NAMES, cell, plan_of, write

from conformance.commands import output, stored
from conformance.errors import StoreError, UsageError
from conformance.records.cell import Cell
from conformance.records.measurements import Reason
from conformance.records.plan import Plan, SpecLocation
from conformance.records.verdicts import STATUSES
from conformance.run import documents, own_runs, regular_file, store
from conformance.run.executor import Executor
from conformance.run.store import Contents
from conformance.run.verify import verify
from conformance.show import matrix

HOSTILE = "\x1b]0;gone\x07\x1b[2J\r\n✓ b[eager-fp32-cpu]  PASS\u202e\u2028\x85\ud800\x00\x7f"
SPEC = """
import pathlib, torch
from zoo import Case, Spec
pathlib.Path({canary!r}).write_text("executed")
case = Case(name="typical", inputs=lambda g: (torch.randn(3, generator=g),))
NET = Spec(name="net", summary="s", source="s", build=lambda: lambda x: x * 2, cases=(case,), dtypes="input")
"""


@pytest.fixture
def folder(tmp_path):
    """A complete run of three cells."""
    run = tmp_path / "run"
    store.create(run, plan_of(*NAMES))
    write(run, *NAMES)
    return run


@pytest.fixture
def elsewhere(tmp_path):
    """A file outside every run folder."""
    path = tmp_path / "elsewhere"
    path.write_text("precious")
    return path


FILES = [store.PLAN, store.LINES, store.DONE, store.LOCK, store.OWNER]


def others(path, elsewhere):
    """Puts what is no regular file in the place of a file, one kind after the other."""
    for make in (
        lambda: path.symlink_to(elsewhere),
        lambda: path.symlink_to(path.parent / "nowhere"),
        lambda: path.symlink_to("/dev/zero"),
        lambda: os.mkfifo(path),
        path.mkdir,
    ):
        path.unlink(missing_ok=True)
        make()
        yield
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_regular_file_is_refused_and_not_waited_for(folder, elsewhere, name):
    for _ in others(folder / name, elsewhere):
        for reader in (store.read, store.Writer):
            with pytest.raises(UsageError, match=f"{name}.* is no regular file"):
                reader(folder)
        assert name in (store.LOCK, store.OWNER) or verify(folder).code == 4
    assert elsewhere.read_text() == "precious"
    assert not (folder / "nowhere").exists()


@pytest.mark.parametrize("name", [store.PLAN, store.LINES, store.DONE, store.OWNER])
def test_a_huge_file_is_refused_unread(folder, name):
    with (folder / name).open("ab") as file:
        file.truncate(2**41)  # it takes no room on the disk
    with pytest.raises(UsageError, match=rf"{name} has {2**41} bytes"):
        store.read(folder)
    assert name == store.OWNER or verify(folder).code == 4


def test_what_is_written_is_never_written_through_a_link(folder, elsewhere):
    for name in (store.DONE, store.OWNER):
        (folder / f"{name}.draft").symlink_to(elsewhere)
    (folder / store.DONE).unlink()
    store.Writer(folder).close()
    assert store.read(folder).complete
    assert elsewhere.read_text() == "precious"


def test_lines_that_are_also_another_file_are_not_written(folder, elsewhere):
    os.link(folder / store.LINES, folder.parent / "other name")
    with pytest.raises(UsageError, match=r"cells.jsonl has several names"):
        store.Writer(folder)


def test_references_lead_nowhere(folder, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("precious")
    place = folder / store.REFERENCES
    place.symlink_to(victim)
    with pytest.raises(StoreError, match="no folder but a link"):
        Executor(plan_of("a"), place)
    regular_file.remove(place)
    assert not place.is_symlink()
    assert [path.name for path in victim.iterdir()] == ["file"]


def texts(record):
    """The record with hostile text in every field of free text, also inside other records."""

    def changed(value):
        if dataclasses.is_dataclass(value):
            return texts(value)
        if isinstance(value, tuple):
            return tuple(map(changed, value))
        if isinstance(value, dict):
            return {key: changed(item) for key, item in value.items()}
        return f"{value}{HOSTILE}" if isinstance(value, str) else value

    names = {"model", "mode", "precision", "device", "cell", "status", "figure", "outcome", "ending", "measure"}
    fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    return replace(record, **{name: changed(value) for name, value in fields.items() if name not in names})


def control_characters(text):
    """What a terminal may take for a command, but line breaks."""
    return {c for c in text.replace("\n", "") if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("measure", ["speed", "bench"])
def test_no_text_of_a_run_commands_the_terminal_or_forges_a_line(capsys, tmp_path, status, measure):
    own = Cell("net", "eager", "fp32", "cpu")
    plain = replace(record_examples.VERDICT, cell=own.id, status=status)
    bare = replace(plan_for(own, measure=measure), environment=record_examples.ENVIRONMENT)
    job = "speed gradient net[fp32-cpu] #"

    def printed(change):
        verdict = change(plain)
        plan = replace(bare, environment=change(bare.environment))
        results = {f"{job}{i}": change(Reason("no figure", "a detail")) for i in (0, 1)}
        contents = Contents(plan, (own.id,), {own.id: verdict}, results)
        stored.show(
            contents, tmp_path / (HOSTILE.replace("\x00", "").replace("\ud800", "") if change is texts else "run")
        )
        output.tell(matrix.line(verdict))
        output.tell(matrix.measured_line(contents, f"{job}1"))
        output.say(verdict.text)
        output.progress(verdict.text.replace("\n", " "))
        done = capsys.readouterr()
        return done.out + done.err

    hostile = printed(texts)
    assert control_characters(hostile) == set()
    assert "\n✓ b[" not in hostile
    assert "\x1b" not in hostile
    printed(lambda record: record)


def test_no_code_point_that_commands_a_terminal_is_printed(capsys):
    for start in range(0, sys.maxunicode, 4096):
        text = "".join(map(chr, range(start, min(start + 4096, sys.maxunicode + 1))))
        output.say(text)
        output.tell(text)
        output.progress(text)
        done = capsys.readouterr()
        assert control_characters(done.out + done.err) == set()
        assert done.err.count("\n") == 2 + ("\n" in text)


def test_an_account_of_a_hostile_folder_is_plain(tmp_path, capsys):
    run = tmp_path / "run\x1b[2J"
    store.create(run, plan_of("a"))
    (run / store.LINES).write_bytes(b"\x1b[2J\n")
    code, told = conformance(tmp_path, "verify", str(run))
    assert code == 4
    assert "\x1b" not in told
    assert len(told.splitlines()) == 1


def location(path):
    return SpecLocation(file=str(path))


def planned_at(place, **modes) -> Plan:
    return replace(plan_of("a"), models={"a": place}, modes=modes)


def test_code_of_somebody_elses_plan_runs_only_if_it_is_named(tmp_path):
    folder, file = tmp_path / "run", tmp_path / "nets.py"
    plan = planned_at(location(file), own=SpecLocation("their.module"))
    with pytest.raises(UsageError, match=r"would execute their\.module, and this user did not plan the run"):
        own_runs.check(folder, plan, (), own=False)
    with pytest.raises(UsageError, match=r"would execute .*nets\.py"):
        own_runs.check(folder, plan, ("their.module",), own=False)
    own_runs.check(folder, plan, ("their.module:NAME", str(file)), own=False)
    own_runs.check(folder, plan, (), own=True)
    own_runs.check(folder, planned_at(SpecLocation("zoo.models.mlp")), (), own=False)
    with pytest.raises(UsageError, match=r"has no source other\.py"):
        own_runs.check(folder, plan, ("other.py",), own=True)
    with pytest.raises(UsageError, match=r"would execute .*model\.py, and it lies in the run folder"):
        own_runs.check(folder, planned_at(location(folder / "model.py")), (), own=True)


@pytest.mark.parametrize("found", ["", "0" * 64, None, 7, ["x"]])
def test_a_mark_is_not_guessed(folder, found):
    assert documents.is_own(folder / store.PLAN)
    fields = json.loads((folder / store.PLAN).read_bytes())
    assert not own_runs.bears(found, fields["plan"])
    assert own_runs.bears(fields["mark"], fields["plan"])
    assert not own_runs.bears(fields["mark"], {**fields["plan"], "seed": 5})


def test_without_a_key_no_run_is_ones_own(folder, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert not documents.is_own(folder / store.PLAN)
    store.create(tmp_path / "other", plan_of("a"))
    assert not documents.is_own(tmp_path / "other" / store.PLAN)


def test_a_run_of_somebody_else_executes_nothing_until_its_source_is_named(tmp_path):
    canary = tmp_path / "canary"
    (tmp_path / "nets.py").write_text(SPEC.format(canary=str(canary)))
    theirs, mine = ({"XDG_STATE_HOME": str(tmp_path / who)} for who in ("theirs", "mine"))
    code, told = conformance(tmp_path, "run", "nets.py", *FP32, "-n", "1", **theirs)
    assert code == 0, told
    run = run_folder(told)
    for name in (store.LINES, store.DONE):
        (run / name).unlink()
    (run / "conftest.py").write_text(f"open({str(canary)!r}, 'w')")
    canary.unlink()
    for arguments in (["show", str(run)], ["verify", str(run)], ["run", "--resume", str(run)]):
        code, told = conformance(tmp_path, *arguments, **mine)
        assert code == (4 if "--resume" in arguments else 1), told
        assert not canary.exists()
    assert len(told.splitlines()) == 1
    assert f"--resume {run} {Path(tmp_path / 'nets.py').resolve()}" in told
    code, told = conformance(tmp_path, "run", "--resume", str(run), "nets.py", "-n", "1", **mine)
    assert code == 0, told
    assert canary.read_text() == "executed"
    assert store.read(run).verdicts.keys() == {cell("net")}
