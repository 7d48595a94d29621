"""A run folder from somebody else: it executes nothing, leads nowhere, blocks nobody, and cannot command a terminal."""

import dataclasses
import os
import re
import shlex
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from harness import record_examples
from harness.command import FP32, conformance, run_folder
from harness.made_by_hand import passed, plan_for, timed
from harness.stored_runs import NAMES, cell, plan_of, write

from conformance.commands import output, stored
from conformance.errors import StoreError, UsageError
from conformance.records.cell import Cell
from conformance.records.measurements import Reason
from conformance.records.own_model import OwnModel
from conformance.records.plan import SpecLocation
from conformance.records.verdicts import STATUSES
from conformance.run import entry_points, regular_file, resuming, store
from conformance.run.executor import Executor
from conformance.run.store import Contents
from conformance.show import matrix
from conformance.show.bench import write_plots

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
    assert elsewhere.read_text() == "precious"
    assert not (folder / "nowhere").exists()


@pytest.mark.parametrize("name", [store.PLAN, store.LINES, store.DONE, store.OWNER])
def test_a_huge_file_is_refused_unread(folder, name):
    with (folder / name).open("ab") as file:
        file.truncate(2**41)  # it takes no room on the disk
    with pytest.raises(UsageError, match=rf"{name} has {2**41} bytes"):
        store.read(folder)


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


def test_plots_lead_nowhere(tmp_path):
    (tmp_path / "plots").symlink_to(tmp_path)
    cells = [Cell(f"net@{size}", mode, "fp32", "cpu") for size in (1, 2) for mode in ("eager", "compiled")]
    sizes = {f"net@{size}": record_examples.cell.SizedModel("net", size, "width") for size in (1, 2)}
    plan = plan_for(*cells, sizes=sizes, measure="bench")
    results = {}
    for size in (1, 2):
        ids = {mode: Cell(f"net@{size}", mode, "fp32", "cpu").id for mode in ("eager", "compiled")}
        found = timed(compiled=2.0)
        renamed = {old.replace("net[", f"net@{size}["): value for old, value in found.cells.items()}
        (ratio,) = found.cells["net[compiled-fp32-cpu]"].ratios.values()
        renamed[ids["compiled"]] = replace(renamed[ids["compiled"]], ratios={ids["eager"]: ratio})
        results |= {f"speed gradient net@{size}[fp32-cpu] #{i}": replace(found, cells=renamed) for i in (0, 1)}
    contents = Contents(plan, tuple(c.id for c in cells), passed(plan), results)
    with pytest.raises(StoreError, match="no folder but a link"):
        write_plots(contents, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["plots"]


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
    code, told = conformance(tmp_path, "show", str(run))
    assert code == 4
    assert "\x1b" not in told
    assert len(told.splitlines()) == 1


FILE, MODULE = SpecLocation(file="/their nets.py"), SpecLocation("their.module")
SAVED = SpecLocation("zoo.models.mlp", own=OwnModel(saved="/their.pt"))  # a module of the zoo may stand before it
WITH_OTHERS = SpecLocation(own=OwnModel(saved="/their.pt", call="/call.pt", definitions="/main.py"))
LIBRARY = SpecLocation(own=OwnModel(library="timm:test_vit?size=64"))


def planned_at(*places, **modes):
    """A plan with a model at each place."""
    names = "abcd"[: len(places)]
    return replace(plan_of(*names), models=dict(zip(names, places, strict=True)), modes=modes)


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        (planned_at(FILE, FILE), ["/their nets.py"]),
        (planned_at(FILE, mode=MODULE), ["/their nets.py", "their.module"]),
        (planned_at(SAVED, LIBRARY), ["/their.pt", "timm:test_vit?size=64"]),
        (planned_at(WITH_OTHERS), ["/their.pt", "/call.pt", "/main.py"]),
        (planned_at(SpecLocation("zoo.models.mlp", file="/their.py")), ["/their.py"]),
        (planned_at(SpecLocation()), [""]),
        (planned_at(SpecLocation("zoo.models.mlp")), []),
    ],
)
def test_a_plan_executes_only_what_is_named_and_the_printed_command_names_it(tmp_path, plan, named):
    assert shlex.split(resuming.command(tmp_path, plan)) == ["conformance", "run", *named, "--resume", str(tmp_path)]
    resuming.refuse_unnamed(tmp_path, plan, named)
    for left_out in named:
        with pytest.raises(UsageError, match=re.escape(f"{tmp_path} would execute {left_out}; name its sources")):
            resuming.refuse_unnamed(tmp_path, plan, [name for name in named if name != left_out])
    with pytest.raises(UsageError, match=r"has no source other\.py; a resumed run takes its cells from the stored run"):
        resuming.refuse_unnamed(tmp_path, plan, [*named, "other.py"])


def test_a_source_may_be_named_as_when_the_run_was_planned(tmp_path, monkeypatch):
    (tmp_path / "nets.py").touch()
    monkeypatch.chdir(tmp_path)
    plan = planned_at(SpecLocation(file=str(Path("nets.py").resolve())), MODULE)
    resuming.refuse_unnamed(tmp_path, plan, ["nets.py:ONE", "nets.py:TWO", "their.module:NAME"])
    monkeypatch.setattr(entry_points, "place_of", {"theirs": "their.module:NAME", "nets.py": ""}.get)
    resuming.refuse_unnamed(tmp_path, plan, ["nets.py", "theirs"])


def test_a_run_of_somebody_else_executes_nothing_until_its_source_is_named(tmp_path):
    canary = tmp_path / "canary"
    (tmp_path / "nets.py").write_text(SPEC.format(canary=str(canary)))
    code, told = conformance(tmp_path, "run", "nets.py", *FP32, "-n", "1")
    assert code == 0, told
    run = run_folder(told)
    for name in (store.LINES, store.DONE):
        (run / name).unlink()
    (run / "conftest.py").write_text(f"open({str(canary)!r}, 'w')")
    canary.unlink()
    for arguments in (["show", str(run)], ["run", "--resume", str(run)]):
        code, told = conformance(tmp_path, *arguments)
        assert code == (4 if "--resume" in arguments else 1), told
        assert not canary.exists()
    assert len(told.splitlines()) == 1
    words = shlex.split(told.partition("name its sources to allow it: conformance ")[2])
    assert words == ["run", str(tmp_path / "nets.py"), "--resume", str(run)]
    code, told = conformance(tmp_path, *words, "-n", "1")
    assert code == 0, told
    assert canary.read_text() == "executed"
    assert store.read(run).verdicts.keys() == {cell("net")}
