"""The run folder: what is written is read, torn and damaged lines, and plans that are none."""

import json

import pytest
from harness.stored_runs import NAMES, cell, plan_of, verdict, write

from conformance.errors import UsageError
from conformance.records.convert import to_json
from conformance.records.measurements import Footprint, Reason, Timing
from conformance.records.observation import Observation
from conformance.records.verdicts import Verdict
from conformance.run import store


@pytest.fixture
def filled(folder):
    write(folder, *NAMES)
    return folder


def append(folder, text):
    """Add a line with a right checksum, whatever it holds."""
    with (folder / store.LINES).open("ab") as lines:
        lines.write(store._checksum(text) + b" " + text + b"\n")


def test_what_is_written_is_read(filled):
    contents = store.read(filled)
    assert contents.plan == plan_of(*NAMES)
    assert contents.verdicts == {cell(name): verdict(name) for name in NAMES}
    assert list(contents.verdicts) == [cell(name) for name in NAMES]
    assert contents.missing == ()
    assert contents.torn_bytes == 0


def test_results_are_read_as_the_records_that_they_were(folder):
    results = {
        "count": Footprint(saved=8),
        "time": Timing("forward", {}),
        "refused": Reason("no graph", "it breaks"),
    }
    writer = store.Writer(folder)
    for job, result in results.items():
        writer.add_result(job, result)
    writer.close()
    contents = store.read(folder)
    assert contents.results == results
    assert contents.result(Footprint, "count") == results["count"]
    assert contents.result(Timing, "refused") == results["refused"]
    assert contents.result(Timing, "count") is None
    assert contents.result(Timing, "never begun") is None


def test_a_new_run_misses_everything(folder):
    contents = store.read(folder)
    assert contents.missing == contents.selected == tuple(cell(name) for name in NAMES)
    assert contents.cells == ()


def test_a_later_verdict_replaces_an_earlier_one(filled):
    write(filled, "b", status="FAIL")
    assert store.read(filled).verdicts[cell("b")].status == "FAIL"


def test_a_selection_decides_what_a_run_misses(folder):
    writer = store.Writer(folder)
    writer.select([cell("b")])
    writer.close()
    assert store.read(folder).missing == (cell("b"),)


def test_a_last_line_torn_at_any_byte_loses_that_line_only(filled):
    path = filled / store.LINES
    data = path.read_bytes()
    start = data[:-1].rindex(b"\n") + 1
    for end in range(start, len(data)):
        path.write_bytes(data[:end])
        contents = store.read(filled)
        assert contents.missing == (cell("c"),)
        assert contents.torn_bytes == end - start
        assert contents.verdicts == {cell(name): verdict(name) for name in "ab"}


def test_resuming_cuts_the_torn_line_and_appends(filled):
    path = filled / store.LINES
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    write(filled, "c")
    assert path.read_bytes() == data


@pytest.mark.parametrize("number", [1, 2])
def test_a_flipped_bit_before_the_last_line_is_an_error_that_names_the_line(filled, number):
    path = filled / store.LINES
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    start = sum(map(len, lines[: number - 1]))
    for at in range(start, start + len(lines[number - 1])):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=rf"cells\.jsonl, line {number}: .*damaged"):
            store.read(filled)


def test_a_flipped_bit_in_a_whole_last_line_is_an_error(filled):
    path = filled / store.LINES
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    with pytest.raises(UsageError, match="line 3: its checksum does not match"):
        store.read(filled)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"verdict": {"cell": "a"}}', "line 4: Verdict has no status"),
        (b'{"verdict": {"cell": "a", "status": "PASS", "mood": 1}}', "line 4: Verdict has an unknown field 'mood'"),
        (b'{"verdict": {"cell": 1, "status": "PASS"}}', "line 4: Verdict.cell: want str, got int"),
        (b'{"job": "j", "result": {"record": "Cell"}}', "line 4: want one of .*, got Cell"),
        (b'{"job": "j"}', "line 4: .*'result'"),
        (b"{}", "line 4: .*'verdict'"),
        (b"{", "line 4: "),
        (b"7", "line 4: "),
    ],
)
def test_a_whole_line_of_something_else_is_an_error_that_names_the_line(filled, text, message):
    append(filled, text)
    for _ in range(2):  # what the first reading decoded does not hide it from the second
        with pytest.raises(UsageError, match=rf"cells\.jsonl, {message}"):
            store.read(filled)


def test_no_run_folder(tmp_path):
    with pytest.raises(UsageError, match=r"is no run folder: it has no plan\.json"):
        store.read(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"plan\.json is damaged"),
        ("[]", "no plan of format 3"),
        ('{"format": 2, "plan": {}}', "no plan of format 3"),
        ('{"format": 3}', "no plan of format 3"),
        ('{"format": 3, "plan": {}}', r"plan\.json is damaged: Plan has no seed"),
        ('{"format": 3, "plan": []}', r"plan\.json is damaged: want Plan, got list"),
    ],
)
def test_a_plan_that_is_none(folder, text, message):
    (folder / store.PLAN).write_text(text)
    with pytest.raises(UsageError, match=message):
        store.read(folder)


def test_a_run_folder_is_never_made_twice(filled):
    with pytest.raises(FileExistsError):
        store.create(filled, plan_of())
    assert len(store.read(filled).verdicts) == len(NAMES)


def test_a_finished_run_has_its_numbers_in_a_file(filled):
    writer = store.Writer(filled)
    assert not (filled / store.DONE).exists()
    writer.finish(3, 1.5)
    writer.close()
    assert json.loads((filled / store.DONE).read_text()) == {"cells": 3, "seconds": 1.5}


def test_numbers_that_json_lacks_survive(folder):
    endless = Verdict(cell("a"), "FAIL", "x", float("inf"), observation=Observation("finished"))
    writer = store.Writer(folder)
    writer.add(to_json(endless))
    writer.close()
    assert store.read(folder).verdicts[cell("a")] == endless
