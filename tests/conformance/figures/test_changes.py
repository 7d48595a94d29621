"""What has changed between two runs, and nothing else."""

import json
from dataclasses import replace

import pytest
from harness.whole_runs import at_first_case, plan_of_zoo, verdict, write

from conformance import cli
from conformance.figures.atlas import KINDS, compare
from conformance.records.cell import Discrepancy, TensorName
from conformance.records.convert import to_json
from conformance.records.measurements import CellTiming, Ratio, Result, Timing
from conformance.records.plan import PlannedCell
from conformance.store import run_files

CELL = "net[compiled-fp32-cpu]"
PLAN = plan_of_zoo(("net",))


def changes(first, second):
    """The changes between the runs in two folders."""
    return compare(run_files.read_summary(first), run_files.read_summary(second)).changes


@pytest.fixture
def compared(tmp_path_factory):
    """A function from the odd verdicts of two runs to their changes, each as (kind, cell, before, after)."""

    def written(before, after, *plans):
        one, other = plans or (PLAN, PLAN)
        folder = tmp_path_factory.mktemp("runs")
        found = changes(write(folder / "a", one, before), write(folder / "b", other, after))
        return [(change.kind, change.cell, change.before, change.after) for change in found]

    return written


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("PASS", "FAIL", "new red"),
        ("EXPECTED", "CRASH", "new red"),
        ("PASS", "NOTRUN", "new red"),
        ("FAIL", "ERROR", "verdict changed"),
        ("PASS", "EXPECTED", "verdict changed"),
        ("EXPECTED", "UNSUPPORTED", "verdict changed"),
        ("PASS", "SKIPPED", "verdict changed"),
        ("FAIL", "PASS", "mended"),
        ("STALE", "EXPECTED", "mended"),
        ("SKIPPED", "PASS", "only in B"),
    ],
)
def test_a_verdict_that_changed_has_its_kind(compared, before, after, kind):
    assert compared({CELL: before}, {CELL: after}) == [(kind, CELL, before, after)]


def test_equal_runs_have_no_changes_and_a_cell_that_one_lacks_is_named(compared):
    assert compared({}, {}) == []
    less = replace(PLAN, cells=tuple(p for p in PLAN.cells if p.id != CELL))
    assert compared({}, {}, PLAN, less) == [("only in A", CELL, "PASS", "")]
    assert compared({}, {CELL: "FAIL"}, less, PLAN) == [("new red", CELL, "", "FAIL"), ("only in B", CELL, "", "FAIL")]


def test_a_cell_without_a_verdict_is_new_red(tmp_path):
    (change,) = changes(write(tmp_path / "a", PLAN), write(tmp_path / "b", PLAN, left_out=[CELL]))
    assert (change.kind, change.after, change.text) == ("new red", "NOTRUN", "the run is incomplete")


@pytest.mark.parametrize(
    ("before", "after", "up"),
    [(0.2, 0.6, True), (0.0, 0.51, True), (0.3, 0.6, False), (0.2, 0.5, False), (0.6, 0.2, False), (0.01, 0.4, False)],
)
def test_an_error_is_up_if_it_doubled_and_is_past_half_of_its_budget(compared, before, after, up):
    found = compared({CELL: verdict(CELL, margin=before)}, {CELL: verdict(CELL, margin=after)})
    assert [kind for kind, *_ in found] == ["error up"] * up


def test_a_dtype_that_changed_is_named_with_its_tensor(tmp_path):
    odd = ({CELL: verdict(CELL, dtype=dtype)} for dtype in ("float16", "float32"))
    (change,) = changes(*(write(tmp_path / name, PLAN, each) for name, each in zip("ab", odd, strict=True)))
    assert (change.kind, change.before, change.after) == ("dtype changed", "float16", "float32")
    assert change.text == "output[0], case typical"


def test_names_with_quotes_and_backslashes_do_not_hide_a_dtype(compared):
    def odd(dtype):
        found = verdict(CELL)
        name = 'a"b\\,"observation":{"dtype":"x"'
        tensor = Discrepancy(name, TensorName("output", name), "rounded", dtype, "", ())
        return replace(found, text=name, observation=replace(found.observation, discrepancies=(tensor,)))

    assert compared({CELL: odd("float16")}, {CELL: odd("float32")}) == [("dtype changed", CELL, "float16", "float32")]


def timings(middle, low, high):
    """The measurements of one group, by job."""
    base = "net[eager-fp32-cpu]"
    cells = {base: CellTiming(1e-3), CELL: CellTiming(1e-3, 6, {base: Ratio(middle, low, high, 20)})}
    cells["net[scripted-fp32-cpu]"] = cells[CELL]
    result = to_json(Timing("gradient", cells), Result)
    return {f"speed default net[fp32-cpu] #{i}": result for i in range(2)}


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ((1.0, 0.9, 1.1), (1.5, 1.4, 1.6), True),
        ((1.0, 0.9, 1.1), (0.5, 0.4, 0.6), True),
        ((1.0, 0.9, 1.45), (1.5, 1.4, 1.6), False),
        ((1.0, 0.999, 1.001), (1.01, 1.009, 1.011), False),
    ],
)
def test_a_speed_outside_both_intervals_is_a_change(tmp_path, before, after, changed):
    plan = replace(PLAN, measure="speed")
    runs = (write(tmp_path / name, plan, results=timings(*of)) for name, of in (("a", before), ("b", after)))
    found = changes(*runs)
    assert {change.kind for change in found} == ({"speed"} if changed else set())


OTHER = plan_of_zoo(("net",), torch="2.15.0", seed=3, environment={"gpus": ("one", "two")})


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (OTHER, {"torch": ("2.13.0", "2.15.0"), "gpus": ("none", "one, two"), "seed": ("0", "3")}),
        (at_first_case(PLAN), {"depth": ("all cases", "compiled at the first case")}),
    ],
)
def test_the_header_says_what_differs(tmp_path, other, differs):
    first, second = write(tmp_path / "a", PLAN), write(tmp_path / "b", other)
    assert compare(run_files.read_summary(first), run_files.read_summary(second)).differs == differs


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ("PASS", "FAIL", 1),
        ("PASS", "EXPECTED", 1),
        ("FAIL", "PASS", 0),
        ("SKIPPED", "PASS", 0),
        ("PASS", verdict(CELL, margin=0.9, dtype="float16"), 0),  # errors and dtypes do not fail
    ],
)
def test_the_exit_code_is_one_if_a_cell_is_newly_red_or_has_another_verdict(tmp_path, capsys, before, after, code):
    runs = write(tmp_path / "a", PLAN, {CELL: before}), write(tmp_path / "b", PLAN, {CELL: after})
    assert cli.main(["diff", *map(str, runs)]) == code
    assert capsys.readouterr().err == ""


def test_all_three_forms_hold_every_change(tmp_path, capsys):
    hostile = replace(verdict(CELL, "FAIL"), text="| <img src=x> \x1b[2J ``` [a](b)")
    runs = write(tmp_path / "a", PLAN), write(tmp_path / "b", PLAN, {CELL: hostile})
    page, data = tmp_path / "page.md", tmp_path / "page.json"
    assert cli.main(["diff", *map(str, runs), "--md", str(page), "--json", str(data)]) == 1
    told = capsys.readouterr().out
    assert "✗ 1 new red" in told
    assert CELL in told
    assert "\x1b" not in told
    text = page.read_text()
    assert text.startswith("# ✗ 1 new red\n")
    assert [part for part in ("<img", "\x1b", "```", "[a](b)") if part in text] == []
    (change,) = json.loads(data.read_text())["changes"]
    assert (change["kind"], change["cell"], change["text"]) == ("new red", CELL, hostile.text)
    assert change["kind"] in KINDS


def test_what_cannot_be_compared_is_four_in_one_line(tmp_path, capsys):
    good = write(tmp_path / "good", PLAN)
    cut = write(tmp_path / "cut", PLAN)
    (cut / run_files.LINES).write_bytes((cut / run_files.LINES).read_bytes()[:-30])
    changed = write(tmp_path / "changed", PLAN)
    data = bytearray((changed / run_files.LINES).read_bytes())
    data[len(data) // 2] ^= 1
    (changed / run_files.LINES).write_bytes(data)
    for other, words in (
        (tmp_path / "nowhere", "is no run folder"),
        (cut, "the run is damaged"),
        (changed, "its checksum does not match"),
    ):
        assert cli.main(["diff", str(good), str(other)]) == 4
        said = capsys.readouterr()
        assert (said.out, len(said.err.splitlines())) == ("", 1)
        assert words in said.err
    assert cli.main(["diff", str(good), str(good), "--md", str(tmp_path / "no" / "page.md")]) == 4
    assert "page.md cannot be written: there is no folder" in capsys.readouterr().err


def test_a_summary_holds_the_verdicts_of_the_run(tmp_path):
    plan = replace(PLAN, cells=(*PLAN.cells, PlannedCell(replace(PLAN.cells[0].cell, device="cuda"), "absent")))
    run = write(tmp_path / "run", plan, {CELL: "FAIL", "net[eager-fp32-cuda]": "SKIPPED"})
    whole, short = run_files.read(run), run_files.read_summary(run)
    assert short.selected == whole.selected
    assert {
        c: replace(v, observation=short.verdicts[c].observation) for c, v in whole.verdicts.items()
    } == short.verdicts
