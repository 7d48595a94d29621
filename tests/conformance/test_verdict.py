"""The judge on observations made by hand: order of the gates, NaN, what exactly an expectation excuses."""

import json
import math
import re
from dataclasses import replace

import pytest

from conformance.axes import BROKEN_GRAPH, NOT_PROVEN
from conformance.cell.policy import IN_FLOAT32
from conformance.records.cell import (
    FP32_REDRAWN,
    OUTPUT,
    RAISES,
    STATUSES,
    Discrepancy,
    Measure,
    Observation,
    TensorName,
    Verdict,
)
from conformance.records.convert import from_json, to_json
from conformance.show.matrix import causes
from conformance.verdict import VALUES, failed_gate, judge
from zoo.expect import Expect

GATES = ("structure", "dtype", "class", "exact", "norm", "slice", "gain", "pointwise", "precision", "recompile")
DEATHS = {"crashed": "CRASH", "timed out": "TIMEOUT", "out of memory": "OOM"}
SPOILT = {"not proven": "VOID", "no oracle": "INCONCLUSIVE", "invalid": "INVALID", "random": "UNSTABLE"}
ENDINGS = {**DEATHS, "raised": "ERROR", **SPOILT}
GRADIENT, OTHER_GRADIENT = TensorName("gradient", "x"), TensorName("gradient", "w")


def measure(gate, value=0.5, budget=1.0):
    return Measure(gate, value, budget)


def tensor(*rejecting, name=OUTPUT, case="typical", **fields):
    """Make a discrepancy that every gate accepts but those named."""
    measures = [measure(g, 2.0 if g in rejecting else 0.5) for g in GATES if g != "dtype"]
    dtype = "float64" if "dtype" in rejecting else "float32"
    return Discrepancy(case, name, "rounded", dtype, "float32", tuple(measures), **{"rejected": 3, **fields})


def weighed(value, budget, gate="norm", kind="rounded"):
    """Make a tensor with one measure."""
    return Discrepancy("typical", OUTPUT, kind, "", "", (Measure(gate, value, budget),), rejected=3)


def did(subject, text="changed in forward, undeclared", gate="structure"):
    """Make a discrepancy of something that a call did apart from its tensors."""
    found = Measure(gate, math.inf, 0.0, text)
    return Discrepancy("typical", TensorName("subject", subject), "conduct", "", "", (found,))


def finished(*tensors, **fields):
    cases = tuple(dict.fromkeys(t.case for t in tensors))
    return Observation("finished", discrepancies=tensors, **{"cases": cases, **fields})


def expect(outcome, **fields):
    if outcome in ("refuses", "ERROR"):
        fields = {"error": "TypeError", "match": "takes no", **fields}
    return Expect(outcome=outcome, reason="known", link="https://example.org", **fields)


def verdict(seen, *expectations):
    return judge("model[eager-fp32-cpu]", seen, expectations)


def test_all_gates_met_is_a_pass_and_no_dtype_asked_is_no_dtype_judged():
    found = verdict(finished(tensor()))
    assert (found.status, found.red, found.margin) == ("PASS", False, 0.5)
    assert failed_gate(Discrepancy("c", OUTPUT, "rounded", "float64", "", (measure("norm"),))) is None


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({NOT_PROVEN: True}, "strict  the proof of the mode is empty"),
        ({BROKEN_GRAPH: "print", "graph breaks": 1}, "strict  1 graph break that no spec declares by .*: print"),
        ({"graph breaks": 1}, ""),  # declared
    ],
)
def test_a_strict_run_believes_no_mode_without_a_proof_and_no_undeclared_graph_break(facts, told):
    seen = finished(tensor(), facts=facts)
    assert verdict(seen).status == "PASS"
    strict = judge("model[compiled-fp32-cpu]", seen, strict=True)
    assert (strict.status, bool(re.match(told, strict.text))) == ("VOID" if told else "PASS", True)
    failed = judge("model[compiled-fp32-cpu]", finished(tensor("norm"), facts=facts), strict=True)
    assert failed.status == "FAIL"


def test_an_error_in_a_script_is_named_once():
    seen = Observation("raised", "call", "Error", "RuntimeError: no scripting (net.py, line 3)")
    assert verdict(seen).text == "in phase call: RuntimeError: no scripting (net.py, line 3)"


@pytest.mark.parametrize("first", range(len(GATES)))
def test_the_earliest_rejecting_gate_of_a_tensor_is_named(first):
    found = verdict(finished(tensor(*GATES[first:])))
    assert found.status == "FAIL"
    assert found.text.startswith(f"{GATES[first]}  output, case typical")


@pytest.mark.parametrize("first", [n for n, gate in enumerate(GATES[:-1]) if not {gate, GATES[n + 1]} <= {*VALUES}])
def test_between_tensors_the_earlier_gate_is_named_whatever_the_size(first):
    later = tensor(GATES[first + 1], name=GRADIENT)
    earlier = tensor(GATES[first], name=OTHER_GRADIENT)
    for tensors in ((later, earlier), (earlier, later)):
        assert verdict(finished(*tensors)).text.startswith(f"{GATES[first]}  gradient of w")


def test_of_one_gate_the_worst_tensor_is_named():
    mild = weighed(2.0, 1.0)
    bad = Discrepancy("other", TensorName("buffer", "b"), "rounded", "", "", (measure("norm", 5.0),))
    for tensors in ((mild, bad), (bad, mild)):
        found = verdict(finished(*tensors))
        assert found.text.startswith("norm  buffer b, case other: error 5, budget 1")
        assert found.margin == 5.0


@pytest.mark.parametrize("gate", [g for g in GATES if g != "dtype"])
@pytest.mark.parametrize(("value", "budget"), [(math.nan, 1.0), (0.0, math.nan), (math.nan, math.inf)])
def test_nan_is_never_met(gate, value, budget):
    assert verdict(finished(weighed(value, budget, gate))).status == "FAIL"


def test_a_nan_is_the_worst_margin_and_a_budget_may_be_reached_but_not_passed():
    assert Measure("norm", math.nan, 1.0).margin == math.inf
    assert verdict(finished(weighed(math.nan, 1.0), weighed(0.1, 1.0))).margin == math.inf
    assert verdict(finished(weighed(0.25, 0.25))).status == "PASS"
    assert verdict(finished(weighed(math.nextafter(0.25, 1), 0.25))).status == "FAIL"
    assert verdict(finished(weighed(0.0, 0.0))).margin == 0.0
    assert verdict(finished(weighed(1e-300, 0.0))).margin == math.inf


@pytest.mark.parametrize(("ending", "status"), ENDINGS.items())
def test_an_ending_has_its_verdict_and_keeps_its_message(ending, status):
    found = verdict(Observation(ending, "call", "SomeError", "what went wrong"))
    assert found.status == status
    assert "in phase call" in found.text
    assert "what went wrong" in found.text
    assert found.red
    assert ("SomeError" in found.text) is (status == "ERROR")


def test_every_red_status_is_red_and_every_other_is_not_and_an_unknown_ending_is_an_error():
    green = {"PASS", "EXPECTED", "UNSUPPORTED", "SKIPPED"}
    assert {name for name, status in STATUSES.items() if not status.red} == green
    found = verdict(Observation("refused", message="no such source"))
    assert (found.status, found.text) == ("ERROR", "no such source")


def test_a_second_call_that_differs_comes_before_anything_else_and_something_changed_before_any_tensor():
    shaky = Discrepancy("typical", OUTPUT, "rounded", "", "", (measure("norm", 9.0), measure("stable", 2.0)))
    found = verdict(finished(tensor("structure"), shaky, did("x")))
    assert found.status == "UNSTABLE"
    assert verdict(finished(did("x", "now None", "stable"))).text.endswith("a second identical call differs: now None")
    found = verdict(finished(tensor("structure"), did("weight")))
    assert (found.status, found.text) == ("FAIL", "structure  weight, case typical: changed in forward, undeclared")


def test_an_accepted_canary_is_inconclusive_unless_a_gate_fails():
    found = verdict(finished(tensor(accepted=("zeros", "the negative"))))
    assert found.status == "INCONCLUSIVE"
    assert "the gates accept zeros, the negative;" in found.text
    assert verdict(finished(tensor("gain", accepted=("zeros",)))).status == "FAIL"


# Expectations

RED = [
    finished(tensor("norm")),
    finished(tensor(), did("x")),
    finished(Discrepancy("typical", OUTPUT, "rounded", "", "", (measure("stable", 2.0),))),
    finished(tensor(accepted=("zeros",))),
    *(Observation(ending, "call", "TypeError", "it takes no Linear") for ending in ENDINGS),
]


@pytest.mark.parametrize("seen", RED, ids=lambda s: s.ending)
@pytest.mark.parametrize("outcome", ["FAIL", "UNSTABLE", "VOID", "INVALID", "INCONCLUSIVE", "CRASH", "TIMEOUT", "OOM"])
def test_an_expectation_excuses_its_own_outcome_and_no_other(outcome, seen):
    plain, found = verdict(seen), verdict(seen, expect(outcome))
    if any(d.kind == "conduct" for d in seen.discrepancies):
        assert found.status == "FAIL"
    elif plain.status == outcome:
        assert (found.status, found.reason, found.link) == ("EXPECTED", "known", "https://example.org")
    else:
        assert (found.status, found.text) == (plain.status, plain.text)


def test_a_change_is_excused_where_exactly_it_is_declared():
    declared = expect("FAIL", tensor="x", gate="structure")
    assert verdict(finished(tensor(), did("x")), declared).status == "EXPECTED"
    assert verdict(finished(tensor(), did("x"), did("y")), declared).status == "FAIL"
    assert verdict(finished(tensor("norm"), did("x")), declared).status == "FAIL"
    assert verdict(finished(tensor(), did("x")), expect("FAIL", tensor="x")).status == "FAIL"
    assert verdict(finished(tensor()), declared).status == "STALE"


@pytest.mark.parametrize("ending", DEATHS)
@pytest.mark.parametrize("outcome", ["refuses", "ERROR", "FAIL", "dtype"])
def test_a_death_is_never_excused_by_an_expectation_of_another_kind(outcome, ending):
    fields = {"tensor": "output", "dtype": "float64"} if outcome == "dtype" else {}
    seen = Observation(ending, "call", "TypeError", "it takes no Linear")
    assert verdict(seen, expect(outcome, **fields)).status == DEATHS[ending]


def test_a_refusal_needs_the_type_and_the_words():
    seen = Observation("raised", "prepare", "TypeError", "it takes no Linear")
    assert verdict(seen, expect("refuses")).status == "UNSUPPORTED"
    assert not verdict(seen, expect("refuses")).red
    assert verdict(seen, expect("refuses", error="ValueError")).status == "ERROR"
    assert verdict(seen, expect("refuses", match="takes a")).status == "ERROR"
    assert verdict(seen, expect("ERROR", error="TypeError", match="no Linear")).status == "EXPECTED"
    assert verdict(seen, expect("ERROR", error="TypeError", match="no Conv")).status == "ERROR"


@pytest.mark.parametrize("outcome", ["refuses", "FAIL", "CRASH", "VOID", "UNSTABLE", "INVALID", "INCONCLUSIVE"])
def test_a_declared_divergence_that_is_gone_is_stale(outcome):
    found = verdict(finished(tensor()), expect(outcome))
    assert (found.status, found.red, found.reason) == ("STALE", True, "known")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, "EXPECTED"),
        ({"tensor": "gradient of x"}, "EXPECTED"),
        ({"gate": "gain", "case": "typical"}, "EXPECTED"),
        ({"tensor": "output"}, "FAIL"),
        ({"gate": "norm"}, "FAIL"),
        ({"case": "empty"}, "FAIL"),
    ],
)
def test_a_declared_failure_names_tensor_gate_and_case(fields, status):
    seen = finished(tensor(), tensor("gain", name=GRADIENT))
    assert verdict(seen, expect("FAIL", **fields)).status == status


def test_declared_failures_cover_a_cell_only_together():
    seen = finished(tensor("gain", name=GRADIENT), tensor("gain", name=OTHER_GRADIENT))
    assert verdict(seen, expect("FAIL", tensor="gradient of x")).status == "FAIL"
    seen = finished(tensor("gain", name=GRADIENT), tensor("precision", name=OTHER_GRADIENT))
    gain, precision = expect("FAIL", gate="gain"), expect("FAIL", gate="precision")
    assert verdict(seen, gain, precision).status == "EXPECTED"
    for alone in (gain, precision, expect("FAIL", gate="norm")):
        assert verdict(seen, alone).status == "FAIL"
    assert verdict(finished(tensor("class", "gain")), expect("FAIL", gate="gain")).status == "FAIL"


DOUBLE = {"tensor": "output", "dtype": "float64"}


def test_a_declared_dtype_is_expected_beside_a_declared_failure_too_and_every_other_gate_holds():
    found = verdict(finished(tensor("dtype")), expect("dtype", **DOUBLE))
    assert (found.status, found.text) == ("EXPECTED", "output is float64")
    for gate in ("structure", "class", "exact", "norm", "slice", "gain", "pointwise", "precision"):
        assert verdict(finished(tensor("dtype", gate)), expect("dtype", **DOUBLE)).status == "FAIL"
    seen = finished(tensor("dtype"), tensor("gain", name=GRADIENT))
    expectations = expect("dtype", **DOUBLE), expect("FAIL", tensor="gradient of x")
    assert verdict(seen, *expectations).status == "EXPECTED"


def test_a_declared_dtype_excuses_that_dtype_of_that_tensor_alone():
    assert verdict(finished(tensor("dtype")), expect("dtype", tensor="output", dtype="float16")).status == "FAIL"
    seen = finished(tensor("dtype"), tensor("dtype", name=TensorName("output", "output[1]")))
    assert verdict(seen, expect("dtype", **DOUBLE)).status == "FAIL"


def test_a_declared_dtype_that_is_gone_is_stale():
    assert verdict(finished(tensor()), expect("dtype", **DOUBLE)).status == "STALE"
    redrawn = replace(tensor(), case="typical, with other weights", dtype_asked="")  # none is asked for there
    assert verdict(finished(tensor(), redrawn), expect("dtype", **DOUBLE)).status == "STALE"
    seen = finished(tensor("dtype"), tensor(name=TensorName("output", "output[1]")))
    expectations = expect("dtype", **DOUBLE), expect("dtype", tensor="output[1]", dtype="float64")
    assert verdict(seen, *expectations).status == "STALE"
    assert verdict(finished(tensor()), expect("dtype", tensor="output[7]", dtype="float64")).status == "STALE"


@pytest.mark.parametrize("declared", [expect("refuses"), expect("FAIL"), expect("dtype", **DOUBLE)])
def test_what_is_declared_and_does_not_happen_may_hang_on_a_case_that_is_left_out(declared):
    def status(seen):
        return judge("model[compiled-fp32-cpu]", seen, [declared], whole=False).status

    assert status(finished(tensor())) == "PASS"
    assert status(finished(tensor("norm"))) == ("EXPECTED" if declared.outcome == "FAIL" else "FAIL")
    assert status(finished(tensor("dtype"))) == ("FAIL" if declared.outcome == "refuses" else "EXPECTED")


@pytest.mark.parametrize("ending", ["finished", *ENDINGS])
def test_a_verdict_survives_the_trip_through_json(ending):
    tensors = tensor("class"), weighed(math.inf, 0.0)
    seen = Observation(ending, "call", "E", "m", tensors, {"graphs": 1}, {"call": 0.5})
    there = verdict(seen)
    assert from_json(Verdict, json.loads(json.dumps(to_json(there), allow_nan=False))) == there


# Error inputs

RIGHT_ERROR, OTHER_ERROR, NO_ERROR = 0.0, 1.0, math.inf
RIGHT, WRONG = weighed(0.5, 1.0), weighed(2.0, 1.0)


def called(value, name="scalar", *, eager=False, text="ValueError: it is a scalar"):
    """Make what a call with an error input did."""
    measure = Measure(RAISES, value, RIGHT_ERROR if eager else OTHER_ERROR, text)
    return Discrepancy(name, OUTPUT, "conduct", "", "", (measure,))


def verdict_with(*found, declared=None):
    expectations = [expect("FAIL", **declared)] if declared is not None else []
    return verdict(finished(*found, cases=("typical",)), *expectations)


@pytest.mark.parametrize("eager", [True, False])
def test_the_error_that_was_asked_for_is_a_pass_without_a_remark_and_no_error_a_fail_in_every_mode(eager):
    found = verdict_with(RIGHT, called(RIGHT_ERROR, eager=eager))
    assert (found.status, found.margin, found.notes) == ("PASS", 0.5, ())
    found = verdict_with(RIGHT, called(NO_ERROR, eager=eager, text="float32 [3]; it must raise ValueError"))
    assert (found.status, found.short) == ("FAIL", "raises")
    assert found.text == "raises  output, case scalar: float32 [3]; it must raise ValueError"
    assert causes([found])[0].text == found.text


def test_another_error_is_a_remark_and_in_eager_a_fail():
    found = verdict_with(RIGHT, called(OTHER_ERROR))
    assert (found.status, found.margin) == ("PASS", 0.5)
    assert found.notes == ("an error input raises another error than in eager (scalar)",)
    found = verdict_with(RIGHT, called(OTHER_ERROR, eager=True))
    assert (found.status, found.text) == ("FAIL", "raises  output, case scalar: ValueError: it is a scalar")


@pytest.mark.parametrize(
    ("declared", "status"),
    [
        ({"gate": "raises", "tensor": "output", "case": "scalar"}, "EXPECTED"),
        ({"gate": "raises", "tensor": "output"}, "EXPECTED"),
        ({"gate": "raises", "tensor": "output", "case": "typical"}, "FAIL"),
        ({"gate": "raises", "case": "scalar"}, "FAIL"),
        ({"gate": "norm", "tensor": "output"}, "FAIL"),
        ({"tensor": "output"}, "FAIL"),
        ({}, "FAIL"),
    ],
)
def test_an_expectation_excuses_an_accepted_input_only_by_its_gate(declared, status):
    assert verdict_with(RIGHT, called(NO_ERROR), declared=declared).status == status


def test_an_expectation_excuses_nothing_beside_it_and_other_gates_come_first():
    declared = {"gate": "raises", "tensor": "output", "case": "scalar"}
    assert verdict_with(RIGHT, called(NO_ERROR), called(NO_ERROR, "empty"), declared=declared).status == "FAIL"
    assert verdict_with(WRONG, called(NO_ERROR), declared=declared).status == "FAIL"
    assert verdict_with(RIGHT, called(RIGHT_ERROR), declared=declared).status == "STALE"
    assert verdict_with(RIGHT, called(OTHER_ERROR), declared=declared).status == "STALE"
    assert verdict_with(called(NO_ERROR), WRONG).text.startswith("norm  output, case typical")


# What a report remarks of a cell, and what is so little that the cell is inconclusive.

PLAIN = {"kind": "rounded", "rejected": 3}
LEFT = {"kind": "remainder", "rejected": 1}
UNRESOLVED = {**PLAIN, "left_to": "fp32"}


def judged(output=PLAIN, facts=None, **gradients):
    """Judge a cell with these tensors, all within their budgets; each is given by its fields."""
    tensors = {OUTPUT: output, **{TensorName("gradient", name): fields for name, fields in gradients.items()}}
    found = [
        Discrepancy("typical", n, dtype="", dtype_asked="", measures=(measure("norm"),), **f)
        for n, f in tensors.items()
    ]
    return verdict(finished(*found, facts=facts or {}))


def test_remarks_say_that_only_the_size_of_a_gradient_is_judged_and_name_two_of_many():
    found = judged(w=LEFT, x=PLAIN)
    assert found.status == "PASS"
    assert [note.rpartition("judged ")[2] for note in found.notes] == ["(gradient of w)"]
    (note,) = judged(w=LEFT, v=LEFT, u=LEFT, x=PLAIN).notes
    assert note.endswith("judged (gradient of u, gradient of v and 1 more)")


def test_a_weak_canary_and_numbers_drawn_in_float32_are_remarks_and_no_verdict():
    found = judged(x={**PLAIN, "weak": ("slice 3 of axis 0 zeroed",)})
    assert found.status == "PASS"
    assert "too small to judge" in found.notes[0]
    (note,) = judged(facts={IN_FLOAT32: True}).notes
    assert note.endswith("so they were drawn in float32 and rounded")


def test_what_a_low_precision_cannot_tell_is_inconclusive_if_nothing_else_is_told_and_a_remark_says_who_does():
    assert judged(x=UNRESOLVED, w=UNRESOLVED).status == "INCONCLUSIVE"
    found = judged(x=UNRESOLVED, w=PLAIN)
    assert found.status == "PASS"
    assert any("gradient of x" in note for note in found.notes)
    assert judged(output=UNRESOLVED).status == "INCONCLUSIVE"
    (note,) = judged(x={**PLAIN, "left_to": FP32_REDRAWN}, w=PLAIN).notes
    assert note.endswith("so only fp32 with other weights judges a tensor (gradient of x)")


@pytest.mark.parametrize("others", [{"w": LEFT}, {"w": LEFT, "v": LEFT}, {"w": LEFT, "v": UNRESOLVED}], ids=len)
def test_a_cell_in_which_no_gradient_is_told_from_a_wrong_one_is_inconclusive(others):
    found = judged(**others)
    assert (found.status, found.short) == ("INCONCLUSIVE", "power")
    assert judged(**others, x=PLAIN).status == "PASS"


LAYERS = ("x", *(f"layers.{number}.{name}" for number in range(3) for name in ("weight", "bias")))


def where(wrong, kinds=("output", "gradient")):
    """What the line says of a case with one output and the gradients of three layers, of which some are wrong."""
    names = [TensorName("output", "output")] * ("output" in kinds) + [TensorName("gradient", leaf) for leaf in LAYERS]
    names += [TensorName(kind, "x") for kind in kinds if kind not in ("output", "gradient")]
    found = [tensor(*(("norm",) if str(name) in wrong else ()), name=name) for name in names]
    return verdict(finished(*found)).text.partition("; ")[2]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["output"], "forward wrong, gradients right"),
        (["output", "gradient of x"], "forward wrong"),
        ([f"gradient of {leaf}" for leaf in LAYERS], "forward right; all gradients wrong"),
        ([f"gradient of {leaf}" for leaf in LAYERS[:5]], "forward right; backward wrong from `layers.1` down"),
        ([f"gradient of {leaf}" for leaf in LAYERS[2::2]], "forward right; only `bias` gradients wrong"),
        (["gradient of layers.1.bias"], "forward right; gradients wrong of `layers.1.bias`"),
    ],
)
def test_a_line_says_where_the_fault_lies(wrong, said):
    assert where(wrong) == said


@pytest.mark.parametrize(
    ("kind", "said"), [("second", "only second derivatives"), ("buffer", "only what forward leaves")]
)
def test_a_line_says_what_alone_is_wrong(kind, said):
    name = TensorName(kind, "x")
    assert where([str(name)], ("output", "gradient", kind)).startswith(said)


def test_of_the_values_a_line_names_the_worst_gate_of_the_worst_tensor():
    measures = (Measure("norm", 1.9, 1.0), Measure("gain", 32.0, 1.0))
    worse = replace(tensor(name=GRADIENT), measures=measures)
    found = verdict(finished(tensor("norm", name=OTHER_GRADIENT), worse))
    assert found.text.startswith("gain  gradient of x, case typical: error 32, budget 1")
    assert found.short == "gain 32"


@pytest.mark.parametrize(("gate", "status"), [("norm", "EXPECTED"), ("gain", "EXPECTED"), ("pointwise", "FAIL")])
def test_the_gate_that_a_line_names_can_be_declared_and_so_can_the_first_one(gate, status):
    measures = (Measure("norm", 1.9, 1.0), Measure("gain", 32.0, 1.0), Measure("pointwise", 2.0, 1.0))
    seen = finished(replace(tensor(name=GRADIENT), measures=measures))
    declared = Expect(outcome="FAIL", tensor="gradient of x", gate=gate, reason="on purpose")
    assert judge("model[eager-fp32-cpu]", seen, [declared]).status == status


def test_cells_whose_lines_name_one_gate_and_tensor_are_one_cause():
    def failing(precision, gain):
        found = replace(tensor(name=GRADIENT), measures=(Measure("norm", 1.9, 1.0), Measure("gain", gain, 1.0)))
        return judge(f"net[eager-{precision}-cpu]", finished(found))

    assert len(causes([failing("amp_fp16", 91.0), failing("amp_bf16", 13.0)])) == 1
