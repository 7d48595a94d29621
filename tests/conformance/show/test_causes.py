"""Red cells grouped by cause."""

from conformance.records.cell import Cell
from conformance.records.observation import Discrepancy, Measure, Observation, TensorName
from conformance.records.verdicts import Verdict
from conformance.show.matrix import Cause, causes
from conformance.verdict import judge


def cell(model, precision, mode="eager"):
    return Cell(model, mode, precision, "cpu").id


def failing(name, gate, tensor, case="typical", value=3.0):
    """The verdict on a cell in which one gate rejects one tensor."""
    measures = (Measure(gate, value, 1.0, "at (0, 1)"),)
    seen = Discrepancy(case, TensorName("output", tensor), "rounded", "float32", "", measures, rejected=5)
    return judge(name, Observation("finished", discrepancies=(seen,), cases=(case,)))


def test_cells_of_one_model_that_fail_by_one_gate_and_tensor_are_one_cause():
    found = causes(
        [
            failing(cell("net", "fp32"), "norm", "output", value=2.0),
            failing(cell("net", "amp_fp16"), "norm", "output", case="empty", value=7.0),
            failing(cell("net", "amp_bf16"), "norm", "gradient of x"),
            failing(cell("net", "tf32"), "slice", "output"),
            failing(cell("other", "fp32"), "norm", "output"),
        ]
    )
    assert [(c.model, len(c.cells)) for c in found] == [("net", 2), ("net", 1), ("net", 1), ("other", 1)]
    assert found[0].cells == (cell("net", "fp32"), cell("net", "amp_fp16"))
    assert found[0].text == "norm  output, case typical: error 2, budget 1, at (0, 1)"


def test_two_identical_calls_that_differ_in_one_tensor_are_one_cause():
    found = causes([failing(cell("net", p), "stable", "output", value=float(n)) for n, p in enumerate("abc", 2)])
    assert [(c.status, len(c.cells)) for c in found] == [("UNSTABLE", 3)]


def test_what_no_gate_rejects_is_grouped_by_its_text():
    names = [cell("net", precision) for precision in ("fp32", "amp_fp16", "amp_bf16", "tf32")]
    texts = ("died", "died", "hung", "died")
    statuses = ("CRASH", "CRASH", "CRASH", "ERROR")
    found = causes(map(Verdict, names, statuses, texts))
    assert found == [
        Cause("net", "CRASH", "died", (names[0], names[1]), f"{names[0]} and 1 more"),
        Cause("net", "CRASH", "hung", (names[2],), names[2]),
        Cause("net", "ERROR", "died", (names[3],), names[3]),
    ]


def named(statuses):
    """The names of the causes of these verdicts on a net, by mode and precision."""
    return [c.named for c in causes(Verdict(cell("net", p, m), s, "it broke") for (m, p), s in statuses.items())]


def test_a_mode_that_takes_no_precision_is_named_alone():
    modes = {("eager", "fp32"): "PASS", ("scripted", "fp32"): "ERROR", ("scripted", "amp_fp16"): "ERROR"}
    assert named(modes) == ["net[scripted], all 2 cells"]
    assert named(modes | {("scripted", "tf32"): "SKIPPED"}) == ["net[scripted], all 2 cells"]
    assert named(modes | {("scripted", "amp_bf16"): "PASS"}) == ["net[scripted-fp32-cpu] and 1 more"]
    assert named(modes | {("compiled", "fp32"): "ERROR"}) == ["net[scripted-fp32-cpu] and 2 more"]


def test_a_model_of_which_every_cell_is_red_is_named_alone():
    modes = {("eager", "fp32"): "INVALID", ("scripted", "fp32"): "INVALID"}
    assert named(modes) == ["net, all 2 cells"]
    assert named({("eager", "fp32"): "INVALID"}) == ["net[eager-fp32-cpu]"]


def test_what_is_not_red_or_was_not_judged_has_no_cause():
    statuses = ("PASS", "EXPECTED", "UNSUPPORTED", "SKIPPED", "NOTRUN")
    assert causes(Verdict(cell("net", "fp32"), status) for status in statuses) == []
