"""What a run says at once about how long it will take, and how far it is later."""

import io
from dataclasses import replace

import pytest
from harness.whole_runs import plan_of_zoo, verdict, write

from conformance.commands import forecast as forecasts
from conformance.commands import ticker
from conformance.commands.forecast import Forecast
from conformance.commands.ticker import ERASE, Ticker
from conformance.show.progress import Progress
from conformance.store import run_files


def forecast(folder, plan, earlier=None, left_out=None):
    """The forecast of a run whose cells are missing, after another one with these seconds."""
    if earlier is not None:
        taken = {p.id: replace(verdict(p.id), seconds=earlier[p.cell.mode]) for p in plan.cells}
        write(folder / "20261101-000000-aaaa", plan, taken)
    run = write(folder / "20261102-000000-aaaa", plan, left_out=left_out or [p.id for p in plan.cells])
    return Forecast(run_files.read(run), run)


SECONDS = {"eager": 10.0, "scripted": 10.0, "compiled": 100.0}


def test_an_earlier_run_beside_it_tells_how_long_it_takes(tmp_path):
    opening = forecast(tmp_path, plan_of_zoo(("net",)), SECONDS).opening(at_once=2)
    assert opening == "this takes about 3 min: 31 s for cells that are not compiled, 3 min for compiled cells"


@pytest.mark.parametrize(("cores", "speeds"), [(1, "104 s"), (2, "56 s"), (1000, "8 s")])
def test_speeds_compile_on_all_cores_and_are_measured_one_after_another(tmp_path, monkeypatch, cores, speeds):
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr(forecasts, "say_seconds", lambda seconds: f"{seconds:.0f} s")
    opening = forecast(tmp_path, plan_of_zoo(("net",), measure="speed"), SECONDS).opening(at_once=1)
    assert opening.endswith(f"301 s for compiled cells, {speeds} for speeds")


def test_only_what_is_missing_counts(tmp_path):
    plan = plan_of_zoo(("net",))
    left_out = ["net[eager-fp32-cpu]"]
    assert forecast(tmp_path, plan, left_out=left_out).opening(at_once=1) == "this takes about 3 s"


@pytest.mark.parametrize(("names", "who"), [(("net",), "net"), (("net", "gate"), "2 models")])
def test_of_models_that_are_new_it_is_a_guess(tmp_path, names, who):
    opening = forecast(tmp_path / "new", plan_of_zoo(names)).opening(at_once=1)
    assert opening.endswith(f"for compiled cells; that is a guess for {who}, which no recent run has judged")
    assert "guess" not in forecast(tmp_path / "zoo", plan_of_zoo(("merge",))).opening(at_once=1)


def test_another_worker_starts_only_if_it_saves_time(tmp_path):
    plan = plan_of_zoo(("net",))
    assert forecast(tmp_path / "few", plan, left_out=["net[eager-fp32-cpu]"]).workers == 1
    assert forecast(tmp_path / "many", plan, SECONDS).workers > 4  # 390 s in all


def test_a_damaged_earlier_run_changes_nothing(tmp_path):
    (tmp_path / "20261001-000000-aaaa").mkdir()
    (tmp_path / "20261001-000000-aaaa" / "plan.json").write_text("{")
    assert forecast(tmp_path, plan_of_zoo(("net",))).opening(at_once=1).startswith("this takes about")


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self):
        return True


WORK = {"a": ("cells", 60.0), "b": ("cells", 60.0)}


def test_only_what_is_selected_is_left():
    work = Progress(WORK, "cell")
    work.keep(["a"])
    assert work.line().startswith("0 of 1 cell done, about ")


def shown(monkeypatch, stream, **options):
    """What a stream gets of one urgent line and one other."""
    monkeypatch.setattr("sys.stdout", stream)
    work = Ticker(Progress(WORK, "cell"), **options)
    work.progress.done("a", 60.0, red=True)
    work.show("✗ a is red", urgent=True)
    work.progress.done("b", 60.0)
    work.show("✓ b is green", urgent=False)
    work.clear()
    return stream.getvalue()


def test_a_terminal_has_a_line_that_changes_and_the_red_cells_above_it(monkeypatch):
    assert shown(monkeypatch, Terminal()) == (
        f"{ERASE}\x1b[31m✗ a is red\x1b[0m\n"
        f"{ERASE}1 of 2 cells done, 1 red, about 1 min left{ERASE}2 of 2 cells done, 1 red{ERASE}"
    )


def test_elsewhere_only_the_red_cells_are_printed(monkeypatch):
    assert shown(monkeypatch, io.StringIO()) == "✗ a is red\n"


def test_elsewhere_a_long_run_says_now_and_then_where_it_stands(monkeypatch):
    monkeypatch.setattr(ticker, "EVERY_SECONDS", 0.0)
    printed = shown(monkeypatch, io.StringIO())
    assert printed == "✗ a is red\n1 of 2 cells done, 1 red, about 1 min left\n2 of 2 cells done, 1 red\n"


def test_every_line_is_printed_if_a_person_wants_it(monkeypatch):
    assert shown(monkeypatch, io.StringIO(), every_line=True) == "✗ a is red\n✓ b is green\n"
