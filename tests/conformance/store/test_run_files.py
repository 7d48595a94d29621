"""The run folder: what is written is read, torn lines, one writer at a time; each change is noticed when read again."""

import json
import multiprocessing
import os
import shutil
import signal

import pytest
from harness.stored_runs import NAMES, cell, plan_of, verdict, write

from conformance.errors import UsageError
from conformance.records.cell import Observation, Verdict
from conformance.records.convert import to_json
from conformance.records.measurements import Footprint, Reason, Timing
from conformance.store import files, run_files

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def folder(tmp_path):
    """A run folder with the plan of three cells, and nothing else."""
    run_files.create(tmp_path / "run", plan_of(*NAMES))
    return tmp_path / "run"


@pytest.fixture
def filled(folder):
    write(folder, *NAMES)
    return folder


def add_result(folder):
    """Add a measurement to a run."""
    writer = run_files.Writer(folder)
    writer.add_result("count", Footprint(saved=8))
    writer.close()


def test_a_new_run_misses_everything_and_what_is_written_is_read(folder):
    contents = run_files.read(folder)
    assert contents.missing == contents.selected == tuple(cell(name) for name in NAMES)
    assert contents.cells == ()
    write(folder, *NAMES)
    after = run_files.read(folder)
    assert after.plan == plan_of(*NAMES)
    assert list(after.verdicts.items()) == [(cell(name), verdict(name)) for name in NAMES]
    assert (after.missing, after.torn_bytes, contents.verdicts) == ((), 0, {})
    write(folder, "b", status="FAIL")
    assert run_files.read(folder).verdicts[cell("b")].status == "FAIL"


def test_results_are_read_as_the_records_that_they_were(folder):
    results = {"count": Footprint(saved=8), "time": Timing("forward", {}), "refused": Reason("no graph", "it breaks")}
    writer = run_files.Writer(folder)
    for job, result in results.items():
        writer.add_result(job, result)
    writer.close()
    contents = run_files.read(folder)
    assert contents.results == results
    assert contents.result(Footprint, "count") == results["count"]
    assert contents.result(Timing, "refused") == results["refused"]
    assert contents.result(Timing, "count") is contents.result(Timing, "never begun") is None


def test_a_selection_decides_what_a_run_misses(folder):
    writer = run_files.Writer(folder)
    writer.select([cell("b")])
    writer.close()
    assert run_files.read(folder).missing == (cell("b"),)


def test_numbers_that_json_lacks_survive(folder):
    endless = Verdict(cell("a"), "FAIL", "x", float("inf"), observation=Observation("finished"))
    writer = run_files.Writer(folder)
    writer.add(to_json(endless))
    writer.close()
    assert run_files.read(folder).verdicts[cell("a")] == endless


def test_a_last_line_torn_at_any_byte_loses_that_line_only_and_resuming_cuts_it(filled):
    (filled / run_files.DONE).unlink()
    path = filled / run_files.LINES
    data = path.read_bytes()
    start = data[:-1].rindex(b"\n") + 1
    for end in range(start, len(data)):
        path.write_bytes(data[:end])
        contents = run_files.read(filled)
        assert contents.missing == (cell("c"),)
        assert contents.torn_bytes == end - start
        assert contents.verdicts == {cell(name): verdict(name) for name in "ab"}
    write(filled, "c")
    assert path.read_bytes() == data


def test_a_run_folder_is_never_made_twice(filled):
    with pytest.raises(FileExistsError):
        run_files.create(filled, plan_of())
    assert len(run_files.read(filled).verdicts) == len(NAMES)


def test_a_run_is_complete_when_its_last_cell_is_judged_and_again_when_something_is_added(folder):
    write(folder, "a", "b")
    assert not run_files.read(folder).complete
    assert not (folder / run_files.DONE).exists()
    write(folder, "c")
    before = (folder / run_files.DONE).read_bytes()
    assert json.loads(before).keys() == {"crc32", "format", "version", "sha256"}
    writer = run_files.Writer(folder)
    assert run_files.read(folder).complete
    writer.add_result("count", Footprint(saved=8))
    assert not run_files.read(folder).complete
    writer.close()
    assert run_files.read(folder).complete
    assert (folder / run_files.DONE).read_bytes() != before


def test_a_run_that_is_added_to_while_it_is_read_is_not_damaged(filled):
    """The reader sees `run.json` before, and the lines after."""
    before = run_files.read_files(filled)
    add_result(filled)
    assert not run_files.decode(filled, run_files.read_files(filled)._replace(done=before.done)).complete
    assert run_files.read(filled).complete


def test_what_has_not_changed_is_decoded_once_and_every_change_is_found(filled, tmp_path):
    before = run_files.read(filled)
    add_result(filled)
    after = run_files.read(filled)
    assert all(after.verdicts[cell] is verdict for cell, verdict in before.verdicts.items())
    assert (after.plan is before.plan, before.results, len(after.results)) == (True, {}, 1)
    before, path = after, filled / run_files.LINES
    data = path.read_bytes()
    for at in range(0, len(data), 97):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(UsageError):
            run_files.read(filled)
    path.write_bytes(data)
    assert run_files.read(filled) == before
    shutil.rmtree(filled)
    run_files.create(filled, plan_of("d", "a"))
    assert run_files.read(filled).missing == (cell("d"), cell("a"))
    assert len(before.verdicts) == 3


# Writers


def _write_forever(folder, pipe):
    writer = run_files.Writer(folder)
    pipe.send("writes")
    signal.pause()
    writer.close()


@pytest.fixture
def other_writer(folder):
    """Another process that writes the folder."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_write_forever, args=(folder, theirs))
    process.start()
    assert ours.poll(30)
    yield process
    process.kill()
    process.join()


def test_a_second_writer_is_refused_until_the_first_is_done_and_leaves_the_lines_alone(folder):
    writer = run_files.Writer(folder)
    (folder / run_files.LINES).write_bytes(b"0 torn")
    with pytest.raises(UsageError, match="is being written by another run"):
        run_files.Writer(folder)
    assert (folder / run_files.LINES).read_bytes() == b"0 torn"
    writer.close()
    write(folder, "a")


def test_a_killed_writer_does_not_keep_the_run(folder, other_writer):
    with pytest.raises(UsageError, match="is being written by another run"):
        run_files.Writer(folder)
    os.kill(other_writer.pid, signal.SIGKILL)
    other_writer.join(30)
    write(folder, "a")
    assert cell("a") in run_files.read(folder).verdicts


def test_a_record_is_one_line_of_plain_json(filled):
    lines = (filled / run_files.LINES).read_bytes().splitlines(keepends=True)
    assert [json.loads(line).keys() for line in lines] == 3 * [{"crc32", "verdict"}]
    assert files.parse(files.text_of(lines[0])) == {"verdict": to_json(verdict("a"))}
