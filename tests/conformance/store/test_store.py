"""The run folder: what is written is read, torn and damaged lines, and plans that are none."""

import json
from dataclasses import replace

import pytest
from harness.stored_runs import NAMES, cell, plan_of, verdict, write

from conformance.errors import UsageError
from conformance.records.convert import to_json
from conformance.records.measurements import Footprint, Reason, Timing
from conformance.records.observation import Observation
from conformance.records.verdicts import Verdict
from conformance.store import records_file, run_files
from conformance.store.records_file import FORMAT


@pytest.fixture
def filled(folder):
    write(folder, *NAMES)
    return folder


@pytest.fixture
def unfinished(filled):
    """A run whose process died after its last verdict."""
    (filled / run_files.DONE).unlink()
    return filled


def append(folder, text):
    """Add a line with a right checksum, whatever it holds."""
    with (folder / run_files.LINES).open("ab") as lines:
        lines.write(records_file.with_sum(text))


def test_what_is_written_is_read(filled):
    contents = run_files.read(filled)
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
    writer = run_files.Writer(folder)
    for job, result in results.items():
        writer.add_result(job, result)
    writer.close()
    contents = run_files.read(folder)
    assert contents.results == results
    assert contents.result(Footprint, "count") == results["count"]
    assert contents.result(Timing, "refused") == results["refused"]
    assert contents.result(Timing, "count") is None
    assert contents.result(Timing, "never begun") is None


def test_a_new_run_misses_everything(folder):
    contents = run_files.read(folder)
    assert contents.missing == contents.selected == tuple(cell(name) for name in NAMES)
    assert contents.cells == ()


def test_a_later_verdict_replaces_an_earlier_one(filled):
    write(filled, "b", status="FAIL")
    assert run_files.read(filled).verdicts[cell("b")].status == "FAIL"


def test_a_selection_decides_what_a_run_misses(folder):
    writer = run_files.Writer(folder)
    writer.select([cell("b")])
    writer.close()
    assert run_files.read(folder).missing == (cell("b"),)


def test_a_last_line_torn_at_any_byte_loses_that_line_only(unfinished):
    path = unfinished / run_files.LINES
    data = path.read_bytes()
    start = data[:-1].rindex(b"\n") + 1
    for end in range(start, len(data)):
        path.write_bytes(data[:end])
        contents = run_files.read(unfinished)
        assert contents.missing == (cell("c"),)
        assert contents.torn_bytes == end - start
        assert contents.verdicts == {cell(name): verdict(name) for name in "ab"}


def test_resuming_cuts_the_torn_line_and_appends(unfinished):
    path = unfinished / run_files.LINES
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    write(unfinished, "c")
    assert path.read_bytes() == data


@pytest.mark.parametrize("number", [1, 2])
def test_a_flipped_bit_before_the_last_line_is_an_error_that_names_the_line(filled, number):
    path = filled / run_files.LINES
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    start = sum(map(len, lines[: number - 1]))
    for at in range(start, start + len(lines[number - 1])):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=rf"cells\.jsonl, line {number}: .*damaged"):
            run_files.read(filled)


def test_a_flipped_bit_in_a_whole_last_line_is_an_error(filled):
    path = filled / run_files.LINES
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    with pytest.raises(UsageError, match="line 3: its checksum does not match"):
        run_files.read(filled)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"verdict": {"cell": "a"}}', "line 4: Verdict has no status"),
        (b'{"verdict": {"cell": "a", "status": "PASS", "mood": 1}}', "line 4: Verdict has an unknown field 'mood'"),
        (b'{"verdict": {"cell": 1, "status": "PASS"}}', "line 4: Verdict.cell: want str, got int"),
        (b'{"job": "j", "result": {"record": "Cell"}}', "line 4: want one of .*, got Cell"),
        (b'{"verdict": {"cell": "a", "status": "GREEN"}}', "line 4: Verdict.status: want one of .*, got 'GREEN'"),
        (b'{"verdict": {"cell": "d[eager-fp32-cpu]", "status": "PASS"}}', "line 4: the plan has no cell 'd.eager-fp32"),
        (b'{"selected": ["d"]}', "line 4: the plan has no cell 'd'"),
        (b'{"job": "j"}', r"line 4: unknown record with the fields \['job'\]"),
        (b'{"job": "j", "result": {}, "more": 1}', "line 4: unknown record with the fields .*more"),
        (b'{"a": 1}', "line 4: unknown record"),
        (b'{"a"}', "line 4: it is no JSON"),
    ],
)
def test_a_whole_line_of_something_else_is_an_error_that_names_the_line(filled, text, message):
    append(filled, text)
    for _ in range(2):  # what the first reading decoded does not hide it from the second
        with pytest.raises(UsageError, match=rf"cells\.jsonl, {message}"):
            run_files.read(filled)


def document(**fields):
    """A document with a right sum."""
    return records_file.line(fields)


def test_no_run_folder(tmp_path):
    with pytest.raises(UsageError, match=r"is no run folder: it has no plan\.json"):
        run_files.read(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", r"plan\.json: its checksum does not match; it is damaged, or another version of conformance wrote it"),
        (b'{"format": 4, "plan": {}}', r"plan\.json: its checksum does not match"),
        (
            document(format=FORMAT + 1, version="9.1"),
            rf"has format {FORMAT + 1} of conformance '9\.1'; .* for format {FORMAT}",
        ),
        (document(format="5", version="9.1"), r"has format '5'"),
        (document(format=FORMAT, version="1"), r"plan\.json: want the field 'plan', got \[\]"),
        (document(format=FORMAT, version="1", plan={}), r"plan\.json: Plan has no seed"),
        (document(format=FORMAT, version="1", plan=[]), r"plan\.json: want Plan, got list"),
    ],
)
def test_a_plan_that_is_none(folder, text, message):
    (folder / run_files.PLAN).write_bytes(text)
    with pytest.raises(UsageError, match=message):
        run_files.read(folder)


def test_a_run_folder_is_never_made_twice(filled):
    with pytest.raises(FileExistsError):
        run_files.create(filled, plan_of())
    assert len(run_files.read(filled).verdicts) == len(NAMES)


def test_a_run_is_complete_when_its_last_cell_is_judged(folder):
    write(folder, "a", "b")
    assert not run_files.read(folder).complete
    assert not (folder / run_files.DONE).exists()
    write(folder, "c")
    assert run_files.read(folder).complete
    assert json.loads((folder / run_files.DONE).read_text())["sums"]["lines"] == 3


def test_a_complete_run_to_which_something_is_added_is_complete_again_when_the_writer_leaves(filled):
    before = (filled / run_files.DONE).read_bytes()
    run_files.Writer(filled).close()
    assert (filled / run_files.DONE).read_bytes() == before
    writer = run_files.Writer(filled)
    assert run_files.read(filled).complete
    writer.add_result("count", Footprint(saved=8))
    assert not run_files.read(filled).complete
    writer.close()
    assert run_files.read(filled).complete
    assert json.loads((filled / run_files.DONE).read_text())["sums"]["lines"] == 4


def test_a_run_that_is_added_to_while_it_is_read_is_not_damaged(filled):
    """The reader sees `run.json` before, and the lines after."""
    before = run_files.read_files(filled)
    writer = run_files.Writer(filled)
    writer.add_result("count", Footprint(saved=8))
    for finish in (lambda: None, writer.close):
        finish()
        assert not replace(run_files.read_files(filled), done=before.done).are_complete()
    assert run_files.read_files(filled).are_complete()


def test_numbers_that_json_lacks_survive(folder):
    endless = Verdict(cell("a"), "FAIL", "x", float("inf"), observation=Observation("finished"))
    writer = run_files.Writer(folder)
    writer.add(to_json(endless))
    writer.close()
    assert run_files.read(folder).verdicts[cell("a")] == endless
