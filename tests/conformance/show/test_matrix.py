"""The matrix of a run, from contents made by hand."""

import re
from dataclasses import replace

import pytest
from harness.made_by_hand import passed, plan_for, timed, with_models

from conformance.axes import NOT_PROVEN
from conformance.records.cell import Cell, Discrepancy, Measure, Observation, SizedModel, TensorName, Verdict
from conformance.records.measurements import Reason
from conformance.records.plan import PlannedCell, SpecLocation
from conformance.show import matrix
from conformance.show.matrix import Cause, causes
from conformance.store.run_files import Contents
from conformance.verdict import judge

MODES, PRECISIONS = ("eager", "scripted"), ("fp32", "amp_bf16")
ZOO = SpecLocation("zoo.models.net")
JOBS = ("speed default net[fp32-cpu] #0", "speed default net[fp32-cpu] #1")


def contents(measure="speed", results=(), precisions=PRECISIONS, **status):
    plan = plan_for(*(Cell("net", m, p, "cpu") for p in precisions for m in MODES), measure=measure)
    verdicts = passed(plan, **status)
    return Contents(plan, tuple(verdicts), verdicts, dict(zip(JOBS, results, strict=False)))


@pytest.fixture
def rendered(tmp_path):
    """Draws a run that is stored in a folder of the test."""
    return lambda found: matrix.render(found, folder=tmp_path)


@pytest.mark.parametrize(("measure", "is_explained"), [("speed", True), ("", False)])
def test_missing_speeds_are_explained_only_if_speeds_were_asked_for(rendered, measure, is_explained):
    text = rendered(contents(measure, eager_fp32="FAIL"))
    assert ("no speed, no baseline" in text) is is_explained


def test_a_speed_is_printed_beside_its_verdict_and_the_legend_names_only_the_figures_that_were_timed(rendered):
    text = rendered(contents(results=[timed(scripted=2.0)] * 2))
    assert re.search(r"^net +fp32 +✓ 0  1 ms +✓ 0  ▲2\.00 \[1\.98, 2\.02\]$", text, re.MULTILINE)
    assert re.search(r"^ +amp_bf16 +✓ 0 +✓ 0$", text, re.MULTILINE)
    assert "Timed: forward and backward, of the first case, on one thread." in " ".join(text.split())
    assert "Timed" not in rendered(contents())


def test_the_size_at_which_a_model_was_timed_stands_beside_the_time(rendered):
    found = contents(results=[timed(scripted=2.0)] * 2)
    plan = with_models(found.plan, {"net": {"working": {"cpu": SizedModel("net", 256, "width")}}})
    text = rendered(replace(found, plan=plan))
    assert re.search(r"^net +fp32 +✓ 0  1 ms at width 256 +✓ 0  ▲2\.00 \[1\.98, 2\.02\]$", text, re.MULTILINE)
    assert "at the size beside the time" in " ".join(text.split())


def test_what_a_run_leaves_out_stands_below_the_table_and_in_the_last_line(rendered):
    modes = (*MODES, "compiled")
    cells = [PlannedCell(Cell("net", m, "fp32", "cpu"), left_out=("a", "b") if m == "compiled" else ()) for m in modes]
    models = {"net": {"location": ZOO, "timed": ()}, "other": {"timed": ("fp32",)}}
    plan = with_models(plan_for(*cells, measure="speed"), models)
    verdicts = passed(plan)
    quick = rendered(Contents(plan, tuple(verdicts), verdicts))
    told = "compiled: the first of 3.0 cases on average; speeds: fp32 of 1 model; --full for the rest"
    assert quick.split("\n\n")[2] == told
    assert "3 cells: 3 pass · compiled at the first case ·" in quick
    assert "--full" not in rendered(contents())


@pytest.mark.parametrize(("seconds", "is_short"), [(0.21e-3, False), (0.19e-3, True)])
def test_the_ratio_of_a_short_call_is_launch_bound(rendered, seconds, is_short):
    text = rendered(contents(results=[timed(seconds=seconds, scripted=1.0)] * 2))
    assert bool(re.search(r"µs +✓ 0  =1\.00 \[0\.99, 1\.01\] launch-bound$", text, re.MULTILINE)) is is_short
    assert ("Launch-bound: a call" in text) is is_short


def test_a_verdict_or_a_reason_takes_the_place_of_the_speed_it_prevents(rendered):
    text = rendered(contents(results=[timed()] * 2, precisions=("fp32",), scripted="FAIL"))
    (row,) = re.findall(r"^net .*$", text, re.MULTILINE)
    assert re.fullmatch(r"net +fp32 +✓ 0  1 ms +✗ *", row)
    text = rendered(contents(results=[timed(scripted=2.0), Reason("crashed", "in phase measure, x")]))
    assert re.search(r"^net +fp32 +✓ 0  crashed +✓ 0  crashed$", text, re.MULTILINE)
    assert "· no speed, crashed: net[eager-fp32-cpu] and 1 more (in phase measure, x)" in text


def test_cells_that_say_the_same_are_one_line_and_those_without_a_verdict_are_counted_as_not_run(rendered, tmp_path):
    found = contents("")
    verdicts = {name: Verdict(name, "INVALID", "the same") for name in found.verdicts}
    text = rendered(Contents(found.plan, found.selected, verdicts))
    lines = [line for line in text.splitlines() if line.endswith("INVALID  the same")]
    assert lines == ["✗ net, all 4 cells  INVALID  the same"]
    found = contents("")
    verdicts = {name: verdict for name, verdict in found.verdicts.items() if "scripted" not in name}
    text = rendered(Contents(found.plan, found.selected, verdicts))
    assert "4 cells: 2 pass, 2 notrun" in text
    assert f"incomplete: conformance run nowhere --resume {tmp_path}" in text


def test_the_line_of_a_red_cell_cannot_command_a_terminal(rendered):
    name = Cell("net", "eager", "fp32", "cpu").id
    plan = plan_for(Cell("net", "eager", "fp32", "cpu"))
    text = rendered(Contents(plan, (name,), {name: Verdict(name, "ERROR", "\x1b[2J")}))
    assert f"✗ {name}  ERROR  \\u001b[2J" in text
    assert "\x1b" not in text


def with_facts(facts, status="PASS"):
    """A run of one compiled cell, of which these facts were observed."""
    cell = Cell("net", "compiled", "fp32", "cpu")
    verdict = Verdict(cell.id, status, margin=0.25, short="norm", observation=Observation("finished", facts=facts))
    return Contents(plan_for(cell), (cell.id,), {cell.id: verdict})


COUNTS = {"graphs": 3, "graph breaks": 2, "recompiles": 1}


def test_graph_breaks_and_a_missing_proof_are_marked_in_the_table_and_explained(rendered):
    text = rendered(with_facts({**COUNTS, NOT_PROVEN: True}))
    assert re.search(r"^net +fp32 +○ 0\.25, 2 breaks, not proven$", text, re.MULTILINE)
    assert f" {matrix.BREAKS} {matrix.UNPROVEN} " in " ".join(text.split())
    one = rendered(with_facts({**COUNTS, "graph breaks": 1}))
    assert re.search(r"^net +fp32 +✓ 0\.25, 1 break$", one, re.MULTILINE)


@pytest.mark.parametrize(("facts", "status"), [({}, "PASS"), ({**COUNTS, "graph breaks": 0}, "PASS"), (COUNTS, "FAIL")])
def test_what_has_no_marks_has_no_legend_of_them(rendered, facts, status):
    text = rendered(with_facts(facts, status))
    assert "break" not in text
    assert "proven" not in text


def test_a_finished_measurement_prints_the_speeds_that_it_completed_and_a_cell_its_graphs_breaks_and_recompiles():
    (verdict,) = with_facts(COUNTS).verdicts.values()
    assert matrix.line(verdict).endswith(" s  3 graphs, 2 graph breaks, 1 recompile")
    (verdict,) = with_facts({}).verdicts.values()
    assert matrix.line(verdict).endswith(" s")
    result = timed(scripted=2.0)
    assert matrix.measured_line(contents(results=[result]), JOBS[0]) == ""
    expected = "◷ net[eager-fp32-cpu] 1 ms  net[scripted-fp32-cpu] ▲2.00 [1.98, 2.02]"
    assert matrix.measured_line(contents(results=[result] * 2), JOBS[1]) == expected


def test_candidates_stand_beside_the_modes_of_their_model_alone(rendered):
    axes = [("one", "eager"), ("one", "a"), ("one", "b"), ("two", "eager"), ("two", "c"), ("three", "eager")]
    cells = [Cell(model, mode, "fp32", "cpu") for model, mode in axes]
    plan = with_models(plan_for(*cells), {"one": {"candidates": ("a", "b")}, "two": {"candidates": ("c",)}})
    verdicts = passed(plan, b="FAIL")
    text = rendered(Contents(plan, tuple(verdicts), verdicts))
    table = [re.split(r" {2,}", row.rstrip()) for row in text.split("\n\n")[1].splitlines()]
    assert table[0] == ["model", "precision", "eager", "candidate", "candidate"]
    assert table[2:] == [
        ["one", "fp32", "✓ 0", "a ✓ 0", "b ✗"],
        ["two", "fp32", "✓ 0", "c ✓ 0"],
        ["three", "fp32", "✓ 0"],
    ]


def beside_a_wrong_one(*, also=True):
    cells = [Cell(name, "eager", p, "cpu") for name in (("net",) if also else ()) + ("bad",) for p in PRECISIONS]
    plan = with_models(plan_for(*cells), {"bad": {"wrong_on_purpose": True}})
    verdicts = passed(plan)
    wrong = "bad[eager-amp_bf16-cpu]"
    verdicts[wrong] = Verdict(wrong, "EXPECTED", "declared", reason="it loses a row", short="FAIL")
    return Contents(plan, tuple(verdicts), verdicts)


def test_what_is_wrong_on_purpose_has_one_line_below_the_table_alone_it_has_the_table_and_red_it_is_named(rendered):
    text = rendered(beside_a_wrong_one())
    assert re.search(r"^net +fp32 +✓ 0$", text, re.MULTILINE)
    assert re.search(r"^≠ +bad +1 pass, 1 FAIL +it loses a row$", text, re.MULTILINE)
    assert text.index("net  ") < text.index("Wrong on purpose") < text.index("bad  ")
    assert "(1)" not in text
    text = rendered(beside_a_wrong_one(also=False))
    assert "Wrong on purpose" not in text
    assert re.search(r"^ +amp_bf16 +≠ FAIL \(1\)$", text, re.MULTILINE)
    assert "(1) expected: it loses a row" in text
    found = beside_a_wrong_one()
    wrong = "bad[eager-amp_bf16-cpu]"
    found.verdicts[wrong] = Verdict(wrong, "STALE", "declared FAIL did not happen", short="STALE")
    text = rendered(found)
    assert re.search(r"^✗ +bad +1 pass, 1 STALE", text, re.MULTILINE)
    assert f"✗ {wrong}  STALE  declared FAIL did not happen" in text


# Red cells grouped by cause.


def cell_id(model, precision, mode="eager"):
    return Cell(model, mode, precision, "cpu").id


def failing(name, gate, tensor, case="typical", value=3.0):
    """The verdict on a cell in which one gate rejects one tensor."""
    measures = (Measure(gate, value, 1.0, "at (0, 1)"),)
    seen = Discrepancy(case, TensorName("output", tensor), "rounded", "float32", "", measures, rejected=5)
    return judge(name, Observation("finished", discrepancies=(seen,), cases=(case,)))


def test_cells_of_one_model_that_fail_or_differ_by_one_gate_and_tensor_are_one_cause():
    found = causes(
        [
            failing(cell_id("net", "fp32"), "norm", "output", value=2.0),
            failing(cell_id("net", "amp_fp16"), "norm", "output", case="empty", value=7.0),
            failing(cell_id("net", "amp_bf16"), "norm", "gradient of x"),
            failing(cell_id("net", "tf32"), "slice", "output"),
            failing(cell_id("other", "fp32"), "norm", "output"),
        ]
    )
    assert [(c.model, len(c.cells)) for c in found] == [("net", 2), ("net", 1), ("net", 1), ("other", 1)]
    assert found[0].cells == (cell_id("net", "fp32"), cell_id("net", "amp_fp16"))
    assert found[0].text == "norm  output, case typical: error 2, budget 1, at (0, 1); forward wrong"
    found = causes([failing(cell_id("net", p), "stable", "output", value=float(n)) for n, p in enumerate("abc", 2)])
    assert [(c.status, len(c.cells)) for c in found] == [("UNSTABLE", 3)]


def test_what_no_gate_rejects_is_grouped_by_its_text():
    names = [cell_id("net", precision) for precision in ("fp32", "amp_fp16", "amp_bf16", "tf32")]
    statuses, texts = ("CRASH", "CRASH", "CRASH", "ERROR"), ("died", "died", "hung", "died")
    assert causes(map(Verdict, names, statuses, texts)) == [
        Cause("net", "CRASH", "died", (names[0], names[1]), f"{names[0]} and 1 more"),
        Cause("net", "CRASH", "hung", (names[2],), names[2]),
        Cause("net", "ERROR", "died", (names[3],), names[3]),
    ]


def named(statuses):
    """The names of the causes of these verdicts on a net, by mode and precision."""
    return [c.named for c in causes(Verdict(cell_id("net", p, m), s, "it broke") for (m, p), s in statuses.items())]


def test_a_model_or_a_mode_whose_cells_are_all_red_is_named_alone():
    modes = {("eager", "fp32"): "PASS", ("scripted", "fp32"): "ERROR", ("scripted", "amp_fp16"): "ERROR"}
    assert named(modes) == ["net[scripted], all 2 cells"]
    assert named(modes | {("scripted", "tf32"): "SKIPPED"}) == ["net[scripted], all 2 cells"]
    assert named(modes | {("scripted", "amp_bf16"): "PASS"}) == ["net[scripted-fp32-cpu] and 1 more"]
    assert named(modes | {("compiled", "fp32"): "ERROR"}) == ["net[scripted-fp32-cpu] and 2 more"]
    modes = {("eager", "fp32"): "INVALID", ("scripted", "fp32"): "INVALID"}
    assert named(modes) == ["net, all 2 cells"]
    assert named({("eager", "fp32"): "INVALID"}) == ["net[eager-fp32-cpu]"]


def test_what_is_not_red_or_was_not_judged_has_no_cause():
    statuses = ("PASS", "EXPECTED", "UNSUPPORTED", "SKIPPED", "NOTRUN")
    assert causes(Verdict(cell_id("net", "fp32"), status) for status in statuses) == []


def test_the_rows_of_a_run_have_the_same_keys_and_plain_values_and_name_what_the_lines_name():
    found = contents(results=[timed(scripted=2.0)] * 2)
    _, scripted, low, missing = found.selected
    found.verdicts[scripted] = failing(scripted, "norm", "output", value=0.5)
    found.verdicts[low] = failing(low, "norm", "output", value=3.0)
    del found.verdicts[missing]
    rows = matrix.rows(found)
    assert {tuple(row) for row in rows} == {tuple(rows[0])}
    assert {type(value) for row in rows for value in row.values()} == {str, float, type(None)}
    known = ("status", "gate", "tensor", "case", "margin", "value", "budget", "speed_up")
    assert [tuple(row[key] for key in known) for row in rows] == [
        ("PASS", *[None] * 7),
        ("PASS", "norm", "output", "typical", 0.5, 0.5, 1.0, 2.0),
        ("FAIL", "norm", "output", "typical", 3.0, 3.0, 1.0, None),
        ("NOTRUN", *[None] * 7),
    ]
    assert (rows[2]["model"], rows[2]["precision"], rows[2]["torch"]) == ("net", "amp_bf16", "2.13.0")
    assert rows[2]["text"] == found.verdicts[low].text
    assert rows[0]["text"] is None
