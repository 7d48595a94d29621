"""A run folder that is damaged or from somebody else is refused or said; it executes nothing, and blocks nobody."""

import os
import shlex
from dataclasses import replace

import pytest
from harness.command import FP32, conformance, run_folder
from harness.stored_runs import NAMES, cell, plan_of, write

from conformance.commands import stored
from conformance.errors import UsageError
from conformance.records.measurements import Footprint
from conformance.store import files, run_files

FILES = (run_files.PLAN, run_files.LINES, run_files.DONE)


def complete_run(run, *names):
    """A complete run with a measurement."""
    run_files.create(run, plan_of(*names))
    write(run, *names)
    writer = run_files.Writer(run)
    writer.add_result("count", Footprint(saved=8))
    writer.close()
    return run


@pytest.fixture
def folder(tmp_path):
    """A complete run of three cells and a measurement."""
    return complete_run(tmp_path / "run", *NAMES)


def refusal(folder):
    """The message with which the folder is refused, or what is said of it; "" if it is read without a word."""
    try:
        contents = run_files.read(folder)
    except UsageError as problem:
        return ascii(str(problem))
    if contents.torn_bytes:
        return f"{run_files.LINES}: torn"
    return "" if contents.complete else f"{run_files.DONE}: missing"


# Damage


def test_the_files_are_all_that_a_run_keeps(folder):
    assert {path.name for path in folder.iterdir()} == {*FILES, run_files.LOCK}
    assert (folder / run_files.LOCK).read_bytes() == b""
    assert refusal(folder) == ""


@pytest.mark.parametrize(("name", "complete"), [*((name, True) for name in FILES), *((n, False) for n in FILES[:2])])
def test_every_flipped_bit_is_refused(tmp_path, name, complete):
    folder = complete_run(tmp_path / "small", "a")
    if not complete:
        (folder / run_files.DONE).unlink()
    path = folder / name
    data = path.read_bytes()
    silent = []
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        if name not in refusal(folder):
            silent.append((bit, refusal(folder)))
    assert silent == []


@pytest.mark.parametrize("name", FILES)
def test_every_cut_is_refused(folder, name):
    path = folder / name
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        assert name in refusal(folder), length


def test_without_run_json_a_cut_is_said_or_leaves_a_cell_out_and_one_inside_names_the_line(folder):
    (folder / run_files.DONE).unlink()
    path = folder / run_files.LINES
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        contents = run_files.read(folder)
        assert contents.torn_bytes == len(data[:length].rpartition(b"\n")[2])
        assert contents.torn_bytes or contents.missing or not contents.results
    first, *others = data.splitlines(keepends=True)
    for at in range(len(first)):
        path.write_bytes(b"".join([first[:at], first[at + 1 :], *others]))
        assert "cells.jsonl, line 1: its checksum does not match" in refusal(folder)


@pytest.mark.parametrize("order", [(1, 2, 3), (0, 1, 2), (1, 0, 2, 3), (0, 1, 1, 2, 3)])
def test_dropped_moved_and_doubled_lines_of_a_complete_run_are_noticed(folder, order):
    path = folder / run_files.LINES
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[number] for number in order))
    assert "run.json has the digest of another plan.json or cells.jsonl" in refusal(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_complete_run_is_noticed(folder, tmp_path, name):
    other = tmp_path / "other"
    run_files.create(other, replace(plan_of(*NAMES), seed=9))
    write(other, *NAMES, status="FAIL")
    (folder / name).write_bytes((other / name).read_bytes())
    assert "run.json has the digest of another plan.json or cells.jsonl" in refusal(folder)


def test_a_folder_without_a_plan_is_no_run(tmp_path):
    assert "is no run folder: it has no plan.json" in refusal(tmp_path)


# What has a right sum


HANGING = {"outcome": "FAIL", "reason": "known", "probe": "any"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f["plan"]["cells"].append(f["plan"]["cells"][0]), "is planned twice"),
        (lambda f: f["plan"]["models"].pop("a"), "the plan lacks its model"),
        (lambda f: f["plan"]["cells"][0].update(expect=[HANGING]), "the plan lacks the symptom of a probe"),
        (lambda f: f["plan"].update(measure="everything"), "Plan.measure: want one of"),
        (lambda f: f["plan"].update(deadline="nan"), "Plan.deadline: want a finite number above 0"),
        (lambda f: f["plan"].update(mood=1), "Plan has an unknown field"),
        (lambda f: f["plan"]["cells"][0]["cell"].update(model="../../x"), "Cell.model: want a name"),
        (lambda f: f["plan"]["cells"][0]["cell"].update(device="c\x1b[2J"), "Cell.device: want a name"),
        (lambda f: f.update(plan={}), "Plan has no seed"),
        (lambda f: f.update(plan=[]), "want Plan, got list"),
        (lambda f: f.update(more=1), "want the field"),
        (lambda f: f.update(format=9, version="9.1"), "it has format 9 of conformance"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(folder, change, message):
    path = folder / run_files.PLAN
    fields = files.parse(files.text_of(path.read_bytes()))
    change(fields)
    path.write_bytes(files.record_line(fields))
    assert run_files.PLAN in refusal(folder)
    assert message in refusal(folder)
    assert r"\n" not in refusal(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "levels"),
        (b'{"verdict": {"observation": {"facts": {"x": ' + b"[" * 70 + b"]" * 70 + b"}}}}", "levels"),
        (b'{"job": "j", "result": ' + b"9" * 5000 + b"}", "no whole number of at most 100 digits"),
        (b'{"selected": ["a", NaN]}', "NaN"),
        (b'{"selected": ["d"]}', "the plan has no cell"),
        (b'{"verdict": {"cell": "a"}}', "Verdict has no status"),
        (b'{"verdict": {"cell": "a", "status": "PASS", "mood": 1}}', "Verdict has an unknown field"),
        (b'{"verdict": {"cell": 1, "status": "PASS"}}', "Verdict.cell: want str, got int"),
        (b'{"verdict": {"cell": "a", "status": "GREEN"}}', "Verdict.status: want one of"),
        (b'{"verdict": {"cell": "z[eager-fp32-cpu]", "status": "PASS"}}', "the plan has no cell"),
        (b'{"job": "j", "result": {"record": "Cell"}}', "want one of"),
        (b'{"job": "j"}', "unknown record with the fields"),
        (b'{"a"}', "it is no JSON"),
    ],
)
def test_a_hostile_line_is_refused_in_one_line_that_names_it(folder, text, message):
    (folder / run_files.DONE).unlink()
    with (folder / run_files.LINES).open("ab") as lines:
        lines.write(files.with_sum(text))
    for _ in range(2):  # what the first reading decoded does not hide it from the second
        assert "cells.jsonl, line 5: " in refusal(folder)
        assert message in refusal(folder)
    assert r"\n" not in refusal(folder)
    assert len(refusal(folder)) < 500


def test_results_that_contradict_the_plan_are_no_traceback(tmp_path):
    run = tmp_path / "run"
    timing = {"record": "Timing", "figure": "gradient", "cells": {}}
    records = [{"job": f"speed gradient a[fp32-cpu] #{index}", "result": timing} for index in (0, 1)]
    run_files.create(run, replace(plan_of(*NAMES), measure="bench"), b"".join(map(files.record_line, records)))
    write(run, *NAMES)
    with pytest.raises(UsageError, match="its records contradict each other, so there is no report: KeyError"):
        stored.report(run_files.read(run), run)


# What is no regular file


@pytest.fixture
def elsewhere(tmp_path):
    """A file outside every run folder."""
    path = tmp_path / "elsewhere"
    path.write_text("precious")
    return path


@pytest.mark.parametrize("name", [*FILES, run_files.LOCK])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(folder, elsewhere, name):
    path = folder / name
    for make in (
        lambda: path.symlink_to(elsewhere),
        lambda: path.symlink_to(path.parent / "nowhere"),
        lambda: path.symlink_to("/dev/zero"),
        lambda: os.mkfifo(path),
        path.mkdir,
    ):
        path.unlink(missing_ok=True)
        make()
        for reader in (run_files.Writer,) if name == run_files.LOCK else (run_files.read, run_files.Writer):
            with pytest.raises(UsageError, match=f"{name}.* is no regular file"):
                reader(folder)
    assert elsewhere.read_text() == "precious"
    assert not (folder / "nowhere").exists()


@pytest.mark.parametrize("name", FILES)
def test_a_huge_file_is_refused_unread(folder, name):
    with (folder / name).open("ab") as file:
        file.truncate(2**41)  # it takes no room on the disk
    with pytest.raises(UsageError, match=rf"{name} has {2**41} bytes; this version reads at most"):
        run_files.read(folder)


def test_neither_drafts_nor_references_lead_out_of_the_folder(folder, elsewhere, tmp_path):
    (folder / f"{run_files.DONE}.draft").symlink_to(elsewhere)
    (folder / run_files.DONE).unlink()
    run_files.Writer(folder).close()
    assert run_files.read(folder).complete
    assert elsewhere.read_text() == "precious"
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("precious")
    place = folder / run_files.REFERENCES
    place.symlink_to(victim)
    files.remove(place)  # as each session does before it writes references
    assert not place.is_symlink()
    assert [path.name for path in victim.iterdir()] == ["file"]


# The command


def test_an_account_of_a_hostile_folder_is_plain(tmp_path, capsys):
    run = tmp_path / "run\x1b[2J"
    run_files.create(run, plan_of("a"))
    (run / run_files.LINES).write_bytes(b"\x1b[2J\n")
    code, told = conformance(tmp_path, "show", str(run))
    assert code == 4
    assert "\x1b" not in told
    assert len(told.splitlines()) == 1


SPEC = """
import pathlib, torch
from zoo import Case, Spec
pathlib.Path({canary!r}).write_text("executed")
case = Case(name="typical", inputs=lambda g: (torch.randn(3, generator=g),))
NET = Spec(name="net", summary="s", source="s", build=lambda: lambda x: x * 2, cases=(case,), dtypes="input")
"""


def test_a_run_of_somebody_else_executes_nothing_until_its_source_is_named(tmp_path):
    canary = tmp_path / "canary"
    (tmp_path / "nets.py").write_text(SPEC.format(canary=str(canary)))
    code, told = conformance(tmp_path, "run", "nets.py", *FP32, "-n", "1")
    assert code == 0, told
    run = run_folder(told)
    for name in (run_files.LINES, run_files.DONE):
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
    assert run_files.read(run).verdicts.keys() == {cell("net")}
