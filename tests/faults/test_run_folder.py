"""Every cut and every flipped bit of every file of a run folder is refused or said; so is whatever else is no run."""

import json
from dataclasses import replace

import pytest
from harness.stored_runs import NAMES, cell, plan_of, write

from conformance.commands import stored
from conformance.errors import UsageError
from conformance.records.measurements import Footprint
from conformance.store import records_file, run_files


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


FILES = (run_files.PLAN, run_files.LINES, run_files.DONE)


def refusal(folder):
    """The message with which the folder is refused, or what is said of it; "" if it is read without a word."""
    try:
        contents = run_files.read(folder)
    except UsageError as problem:
        return ascii(str(problem))
    return (
        f"{run_files.LINES}: torn" if contents.torn_bytes else "" if contents.complete else f"{run_files.DONE}: missing"
    )


def test_the_files_are_all_that_a_run_keeps_and_are_plain_json(folder):
    assert {path.name for path in folder.iterdir()} == {*FILES, run_files.LOCK}
    assert (folder / run_files.LOCK).read_bytes() == b""
    assert refusal(folder) == ""
    plan, done = (json.loads((folder / name).read_bytes()) for name in (run_files.PLAN, run_files.DONE))
    assert plan.keys() == {"crc32", "format", "version", "plan"}
    assert done["sums"].keys() == {"lines", "bytes", "sha256"}
    records = [json.loads(line).keys() for line in (folder / run_files.LINES).read_bytes().splitlines()]
    assert records == [*3 * [{"crc32", "verdict"}], {"crc32", "job", "result"}]


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


def test_every_cut_in_the_middle_of_a_line_names_the_line(folder):
    (folder / run_files.DONE).unlink()
    first, *others = (folder / run_files.LINES).read_bytes().splitlines(keepends=True)
    for at in range(len(first)):
        (folder / run_files.LINES).write_bytes(b"".join([first[:at], first[at + 1 :], *others]))
        assert "cells.jsonl, line 1: its checksum does not match" in refusal(folder)


def test_without_its_sums_every_cut_of_the_lines_is_said_or_leaves_a_cell_out(folder):
    (folder / run_files.DONE).unlink()
    path = folder / run_files.LINES
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        contents = run_files.read(folder)
        assert contents.torn_bytes == len(data[:length].rpartition(b"\n")[2])
        assert contents.torn_bytes or contents.missing or not contents.results


@pytest.mark.parametrize(
    "order", [(1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2), (1, 0, 2, 3), (0, 1, 1, 2, 3), (0, 1, 2, 3, 3)]
)
def test_dropped_moved_and_doubled_lines_of_a_complete_run_are_noticed(folder, order):
    path = folder / run_files.LINES
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[number] for number in order))
    assert "run.json counts another plan.json or cells.jsonl" in refusal(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_complete_run_is_noticed(folder, tmp_path, name):
    other = tmp_path / "other"
    run_files.create(other, replace(plan_of(*NAMES), seed=9))
    write(other, *NAMES, status="FAIL")
    (folder / name).write_bytes((other / name).read_bytes())
    assert "run.json counts another plan.json or cells.jsonl" in refusal(folder)


def rewritten(folder, change):
    """Change the plan's JSON, and put a right sum into it: damage that no sum can show."""
    path = folder / run_files.PLAN
    fields = records_file.parse(records_file.text_of(path.read_bytes()))
    change(fields)
    path.write_bytes(records_file.line(fields))
    for name in (run_files.LINES, run_files.DONE):
        (folder / name).unlink(missing_ok=True)


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
        (lambda f: f["plan"]["cells"][0]["cell"].update(mode="x" * 300), "Cell.mode: want a name"),
        (lambda f: f.update(more=1), "want the field"),
        (lambda f: f.update(format=9, version="9.1"), "it has format 9 of conformance"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(folder, change, message):
    rewritten(folder, change)
    assert run_files.PLAN in refusal(folder)
    assert message in refusal(folder)
    assert r"\n" not in refusal(folder)


def append(folder, text):
    """A line with a right sum, whatever it holds."""
    (folder / run_files.DONE).unlink(missing_ok=True)
    with (folder / run_files.LINES).open("ab") as lines:
        lines.write(records_file.with_sum(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "levels"),
        (b'{"a":' * 1000 + b"1" + b"}" * 1000, "levels"),
        (b'{"verdict": {"observation": {"facts": {"x": ' + b"[" * 70 + b"]" * 70 + b"}}}}", "levels"),
        (b'{"job": "j", "result": ' + b"9" * 5000 + b"}", "no whole number of at most 100 digits"),
        (b'{"job": "j", "job": "k"}', "twice"),
        (b'{"selected": ["a", NaN]}', "NaN"),
        (b'{"selected": ["\xc3\xa4"]}', "no JSON"),
        (json.dumps({"verdict": {"cell": cell("a"), "status": "NOT A STATUS"}}).encode(), "Verdict.status: want one"),
        (json.dumps({"verdict": {"cell": "z[eager-fp32-cpu]", "status": "PASS"}}).encode(), "the plan has no cell"),
    ],
)
def test_a_hostile_line_is_refused_in_one_line_that_names_it(folder, text, message):
    append(folder, text)
    assert "cells.jsonl, line 5: " in refusal(folder)
    assert message in refusal(folder)
    assert r"\n" not in refusal(folder)
    assert len(refusal(folder)) < 500


def test_results_that_contradict_the_plan_are_no_traceback(tmp_path):
    run = tmp_path / "run"
    run_files.create(run, replace(plan_of(*NAMES), measure="bench"))
    write(run, *NAMES)
    timing = {"record": "Timing", "figure": "gradient", "cells": {}}
    for index in (0, 1):
        append(run, json.dumps({"job": f"speed gradient a[fp32-cpu] #{index}", "result": timing}).encode())
    with pytest.raises(UsageError, match="its records contradict each other, so there is no report: KeyError"):
        stored.show(run_files.read(run), run)
