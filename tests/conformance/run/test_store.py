"""The run folder: torn and damaged records, one writer at a time, resuming."""

import fcntl
import json
import multiprocessing
import os

import pytest

from conformance.run import store
from conformance.axes import UsageError
from conformance.records import Observation, Verdict

NAMES = ("a", "b", "c")


def planned(name):
    return {"model": name, "mode": "eager", "precision": "fp32", "device": "cpu", "skip": "", "expect": []}


def cell(name):
    return f"{name}[eager-fp32-cpu]"


def verdict(name, status="PASS"):
    return Verdict(cell(name), status, f"text of {name} with a line\nbreak, a \r return and ünïcode", 0.25)


@pytest.fixture
def folder(tmp_path):
    run = tmp_path / "run"
    store.create(run, {"format": store.FORMAT, "cells": [planned(name) for name in NAMES]})
    return run


@pytest.fixture
def filled(folder):
    write(folder, *NAMES)
    return folder


def write(folder, *names, status="PASS"):
    writer = store.Writer(folder)
    try:
        for name in names:
            writer.add(verdict(name, status).to_json())
    finally:
        writer.close()


def test_what_is_written_is_read(filled):
    contents = store.read(filled)
    assert contents.verdicts == {cell(name): verdict(name) for name in NAMES}
    assert list(contents.verdicts) == [cell(name) for name in NAMES]
    assert contents.missing == ()
    assert contents.whole_bytes == (filled / store.LINES).stat().st_size


def test_a_new_run_misses_everything(folder):
    assert store.read(folder).missing == tuple(cell(name) for name in NAMES)


def test_a_later_verdict_replaces_an_earlier_one(filled):
    write(filled, "b", status="FAIL")
    assert store.read(filled).verdicts[cell("b")].status == "FAIL"


def test_a_selection_says_what_the_run_is_about(folder):
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
        assert contents.whole_bytes == start
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


def test_no_run_folder(tmp_path):
    with pytest.raises(UsageError, match=r"is no run folder: it has no plan\.json"):
        store.read(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"plan\.json is damaged"),
        ("[]", "no plan of format 2"),
        ('{"format": 1, "cells": []}', "no plan of format 2"),
        ('{"format": 2}', "no plan of format 2"),
    ],
)
def test_a_plan_that_is_none(folder, text, message):
    (folder / store.PLAN).write_text(text)
    with pytest.raises(UsageError, match=message):
        store.read(folder)


def test_a_run_folder_is_never_made_twice(filled):
    with pytest.raises(FileExistsError):
        store.create(filled, {})
    assert len(store.read(filled).verdicts) == len(NAMES)


def _try_to_write(folder, pipe):
    try:
        store.Writer(folder).close()
        pipe.send("wrote")
    except UsageError as problem:
        pipe.send(str(problem))


def test_a_second_writer_is_refused_by_name_until_the_first_is_done(folder):
    def attempt():
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=_try_to_write, args=(folder, theirs))
        process.start()
        assert ours.poll(30)
        process.join()
        return ours.recv()

    writer = store.Writer(folder)
    with pytest.raises(UsageError, match=f"is being written by another run .process {os.getpid()}"):
        store.Writer(folder)
    assert f"process {os.getpid()}" in attempt()
    writer.close()
    assert attempt() == "wrote"


def test_the_lock_of_a_dead_writer_is_no_lock(folder):
    (folder / store.LOCK).write_text("4194303")
    write(folder, "a")
    assert cell("a") in store.read(folder).verdicts


def test_a_refused_writer_leaves_the_lines_alone(filled):
    data = (filled / store.LINES).read_bytes()
    with (filled / store.LOCK).open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UsageError):
            store.Writer(filled)
    assert (filled / store.LINES).read_bytes() == data


def test_a_finished_run_says_so(filled):
    writer = store.Writer(filled)
    assert not (filled / store.DONE).exists()
    writer.finish({"cells": 3})
    writer.close()
    assert json.loads((filled / store.DONE).read_text()) == {"cells": 3}


def test_numbers_that_json_lacks_survive(folder):
    endless = Verdict(cell("a"), "FAIL", "x", float("inf"), observation=Observation("finished"))
    writer = store.Writer(folder)
    writer.add(endless.to_json())
    writer.close()
    assert store.read(folder).verdicts[cell("a")] == endless
