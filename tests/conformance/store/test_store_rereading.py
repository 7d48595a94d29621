"""A process decodes a run folder that has not changed once, and notices every change of its files."""

import shutil

import pytest
from harness.stored_runs import NAMES, cell, plan_of, verdict, write

from conformance.errors import UsageError
from conformance.store import run_files


def test_a_run_that_has_not_changed_is_decoded_once(folder):
    before = run_files.read(folder)
    assert run_files.read(folder) is before
    write(folder, *NAMES)
    after = run_files.read(folder)
    assert run_files.read(folder) is after
    assert (before.verdicts, len(after.verdicts)) == ({}, 3)


def test_a_line_that_was_torn_is_decoded_when_it_is_whole(folder):
    write(folder, *NAMES)
    (folder / run_files.DONE).unlink()
    path = folder / run_files.LINES
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    assert run_files.read(folder).missing == (cell("c"),)
    path.write_bytes(data)
    assert (run_files.read(folder).missing, run_files.read(folder).torn_bytes) == ((), 0)


def test_a_byte_that_changes_after_it_was_read_is_found(folder):
    write(folder, *NAMES)
    assert run_files.read(folder).missing == ()
    path = folder / run_files.LINES
    data = path.read_bytes()
    for at in range(0, len(data) // 2, 7):
        damaged = bytearray(data)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match="its checksum does not match"):
            run_files.read(folder)
        path.write_bytes(data)
        assert run_files.read(folder).missing == ()


def test_a_truncated_file_is_read_anew(folder):
    write(folder, *NAMES)
    assert run_files.read(folder).missing == ()
    (folder / run_files.DONE).unlink()
    path = folder / run_files.LINES
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0])
    assert run_files.read(folder).verdicts == {cell("a"): verdict("a")}
    path.unlink()
    assert run_files.read(folder).missing == tuple(map(cell, NAMES))


def test_other_lines_of_the_same_length_are_read_anew(folder, tmp_path):
    write(folder, "a")
    assert run_files.read(folder).verdicts[cell("a")].status == "PASS"
    run_files.create(tmp_path / "other", plan_of(*NAMES))
    write(tmp_path / "other", "a", status="FAIL")
    lines = (tmp_path / "other" / run_files.LINES).read_bytes()
    assert len(lines) == (folder / run_files.LINES).stat().st_size
    (folder / run_files.LINES).write_bytes(lines)
    assert run_files.read(folder).verdicts[cell("a")].status == "FAIL"


def test_a_folder_that_replaces_another_at_its_path_is_read_anew(folder):
    write(folder, *NAMES)
    assert len(run_files.read(folder).verdicts) == 3
    shutil.rmtree(folder)
    run_files.create(folder, plan_of("d", "a"))
    contents = run_files.read(folder)
    assert contents.plan == plan_of("d", "a")
    assert contents.verdicts == {}
    write(folder, "d")
    assert run_files.read(folder).verdicts == {cell("d"): verdict("d")}


def test_a_selection_of_a_replaced_run_is_forgotten(folder):
    writer = run_files.Writer(folder)
    writer.select([cell("b")])
    writer.close()
    assert run_files.read(folder).selected == (cell("b"),)
    shutil.rmtree(folder)
    run_files.create(folder, plan_of(*NAMES))
    assert run_files.read(folder).selected == tuple(map(cell, NAMES))


def test_contents_that_were_read_do_not_change_later(folder):
    write(folder, "a")
    before = run_files.read(folder)
    write(folder, "b")
    assert set(run_files.read(folder).verdicts) == {cell("a"), cell("b")}
    assert set(before.verdicts) == {cell("a")}
