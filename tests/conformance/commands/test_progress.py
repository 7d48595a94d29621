"""What a run says at once about how long it will take, and how far it is later."""

import io
import time
from dataclasses import replace

from harness.whole_runs import plan_of_zoo, verdict, write

from conformance.commands import progress
from conformance.commands.progress import ERASE, Progress, Ticker, expected_seconds, opening
from conformance.store import run_files

SECONDS = {"eager": 10.0, "scripted": 10.0, "compiled": 100.0}


def estimate(folder, plan, earlier=None, left_out=None):
    """The seconds of the cells of a run, all missing unless some are named, after another run with these seconds."""
    if earlier is not None:
        taken = {p.id: replace(verdict(p.id), seconds=earlier[p.cell.mode]) for p in plan.cells}
        write(folder / "20261101-000000-aaaa", plan, taken)
    run = write(folder / "20261102-000000-aaaa", plan, left_out=left_out or [p.id for p in plan.cells])
    return expected_seconds(run_files.read(run), run)


def test_an_earlier_run_beside_it_tells_how_long_it_takes(tmp_path):
    plan = plan_of_zoo(("net",))
    found = estimate(tmp_path, plan, SECONDS)
    assert list(found.values()) == [12.0, 10.0, 100.0, 10.0, 10.0, 100.0, 10.0, 10.0, 100.0]
    assert opening(plan, found, at_once=2) == "this takes about 3 min"


def test_speeds_are_part_of_it():
    plan = plan_of_zoo(("net",), measure="speed")  # in three precisions, each by two processes
    assert opening(plan, {"net[eager-fp32-cpu]": 10.0}, at_once=1) == "this takes about 28 s"


def test_only_what_is_missing_counts(tmp_path):
    left_out = ["net[eager-fp32-cpu]"]
    assert estimate(tmp_path, plan_of_zoo(("net",)), left_out=left_out) == {left_out[0]: 3.0}


def test_a_damaged_earlier_run_changes_nothing(tmp_path):
    (tmp_path / "20261001-000000-aaaa").mkdir()
    (tmp_path / "20261001-000000-aaaa" / "plan.json").write_text("{")
    assert len(estimate(tmp_path, plan_of_zoo(("net",)))) == 9


WORK = {"a": 60.0, "b": 60.0}


def test_only_what_is_selected_is_left():
    work = Progress(WORK, "cell")
    work.keep(["a"])
    assert work.line() == "0 of 1 cell done, about 1 min left"


def test_what_takes_longer_than_expected_leaves_more_and_never_nothing():
    began = time.monotonic()
    lines = [Progress(WORK, "cell", began=began - seconds).line() for seconds in (0.0, 30.0, 270.0)]
    assert [line.partition(", ")[2] for line in lines] == ["about 2 min left", "about 4 min left", "about 20 min left"]


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self):
        return True


def shown(monkeypatch, stream, **options):
    """What a stream gets of one urgent line and one other."""
    monkeypatch.setattr("sys.stdout", stream)
    work = Ticker(Progress(WORK, "cell"), **options)
    work.progress.finish("a", red=True)
    work.show("✗ a is red", urgent=True)
    work.progress.finish("b")
    work.show("✓ b is green", urgent=False)
    work.clear()
    return stream.getvalue()


def test_a_terminal_has_a_line_that_changes_and_the_red_cells_above_it(monkeypatch):
    assert shown(monkeypatch, Terminal()) == (
        f"{ERASE}\x1b[31m✗ a is red\x1b[0m\n"
        f"{ERASE}1 of 2 cells done, 1 red, about 20 s left{ERASE}2 of 2 cells done, 1 red{ERASE}"
    )


def test_elsewhere_only_the_red_cells_are_printed(monkeypatch):
    assert shown(monkeypatch, io.StringIO()) == "✗ a is red\n"


def test_elsewhere_a_long_run_says_now_and_then_where_it_stands(monkeypatch):
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    printed = shown(monkeypatch, io.StringIO())
    assert printed == "✗ a is red\n1 of 2 cells done, 1 red, about 20 s left\n2 of 2 cells done, 1 red\n"


def test_every_line_is_printed_if_a_person_wants_it(monkeypatch):
    assert shown(monkeypatch, io.StringIO(), every_line=True) == "✗ a is red\n✓ b is green\n"
