"""What a stored run keeps of a cell: all that matters; of other tensors, their dtypes and margins; never too much."""

from dataclasses import replace

import pytest
from harness.made_by_hand import plan_for

from conformance.figures.atlas import compare
from conformance.records.cell import OUTPUT, RAISES, Cell, Discrepancy, Measure, Observation, TensorName, Verdict
from conformance.records.convert import to_json
from conformance.store import run_files
from conformance.store.run_files import NEAREST, condense
from conformance.verdict import judge

CELL = Cell("net", "eager", "fp32", "cpu")
MANY = 100


def gradient(number):
    """The name of the gradient of a parameter, which is a number."""
    return TensorName("gradient", str(number))


def tensor(number, margin, **fields):
    """A tensor that both gates accept."""
    measures = (Measure("norm", margin, 1.0), Measure("gain", margin / 2, 1.0), Measure("precision", 0.5, 0.9))
    found = Discrepancy("typical", gradient(number), "rounded", "float32", "float32", measures, rejected=3)
    return replace(found, **fields)


def many(**of_the_last):
    """A hundred tensors, each farther from its budget than the one before; the last one is the best."""
    found = [tensor(number, 0.9 / (number + 1)) for number in range(MANY)]
    return [tensor("output", 0.001, tensor=OUTPUT), *found[:-1], replace(found[-1], **of_the_last)]


def stored(folder, found, *, every_tensor=False):
    """What a run keeps of these tensors."""
    seen = Observation("finished", discrepancies=tuple(found), cases=("typical",))
    run_files.create(folder, replace(plan_for(CELL), every_tensor=every_tensor))
    writer = run_files.Writer(folder)
    writer.add(to_json(judge(CELL.id, seen)))
    writer.close()
    return run_files.read(folder).verdicts[CELL.id]


def test_the_tensors_nearest_to_their_budgets_are_kept_and_the_rest_summed_up(tmp_path):
    verdict = stored(tmp_path / "run", many())
    seen = verdict.observation
    assert [d.tensor for d in seen.discrepancies] == [gradient(number) for number in range(NEAREST)]
    assert (verdict.status, verdict.margin) == ("PASS", 0.9)
    assert seen.rest.count == len(many()) - NEAREST
    assert seen.rest.margins["norm"] == pytest.approx(0.9 / (NEAREST + 1), rel=1e-3)
    assert {"output", "gradient of 99"} < set(seen.rest.dtypes["typical"]["float32"])
    assert (tmp_path / "run" / run_files.LINES).stat().st_size < 6000


@pytest.mark.parametrize(
    "fields",
    [
        {"measures": (Measure("norm", 2.0, 1.0),)},
        {"measures": (Measure("stable", 1.0, 0.0),)},
        {"measures": (Measure(RAISES, 1.0, 1.0, "another error"),)},
        {"dtype": "float16"},
        {"accepted": ("zeros",)},
        {"kind": "conduct"},
        {"kind": "absent"},
    ],
    ids="-".join,
)
def test_a_tensor_of_which_something_is_to_be_said_is_kept(fields):
    odd = many(**fields)
    kept = condense(Verdict(CELL.id, "PASS", observation=Observation("finished", discrepancies=tuple(odd)))).observation
    assert kept.discrepancies[-1] == odd[-1]
    assert len(kept.discrepancies) == NEAREST + 1
    known = judge(CELL.id, Observation("finished", discrepancies=tuple(odd))).text
    texts = [text.partition("; forward right; ")[0] for text in (judge(CELL.id, kept).text, known)]
    assert texts[0] == texts[1]  # where the fault lies is said before tensors are left out


def test_the_rest_counts_what_is_weak_and_left_to_another_run():
    seen = Observation("finished", discrepancies=tuple(many(weak=("a slice",), left_to="fp32")))
    rest = condense(Verdict(CELL.id, "PASS", observation=seen)).observation.rest
    assert (rest.weak, rest.left) == (1, 1)


def test_few_tensors_are_kept_all_and_many_on_request(tmp_path):
    few = Verdict(CELL.id, "PASS", observation=Observation("finished", discrepancies=tuple(many()[:NEAREST])))
    assert condense(few) is few
    seen = stored(tmp_path / "run", many(), every_tensor=True).observation
    assert (len(seen.discrepancies), seen.rest) == (len(many()), None)


@pytest.mark.parametrize("number", [0, MANY - 1])
@pytest.mark.parametrize("every_tensor", [False, True])
def test_a_dtype_that_changed_is_found_in_the_rest_too(tmp_path, number, every_tensor):
    before = [replace(d, dtype_asked="") for d in many()]
    after = [replace(d, dtype="float16") if d.tensor == gradient(number) else d for d in before]
    assert stored(tmp_path / "a", before).status == stored(tmp_path / "b", after, every_tensor=every_tensor).status
    (change,) = compare(*(run_files.read_summary(tmp_path / name) for name in "ab")).changes
    assert (change.kind, change.before, change.after) == ("dtype changed", "float32", "float16")
    assert change.text == f"gradient of {number}, case typical"


@pytest.mark.parametrize("every_tensor", [False, True])
def test_a_long_record_keeps_its_verdict_and_the_tensors_that_fail(tmp_path, every_tensor):
    good, bad = ((Measure("norm", value, 0.5, "x" * 10),) for value in (0.0, 1.0))
    found = [tensor(n, 0.0, measures=good) for n in range(3000)] + [tensor("bad", 0.0, measures=bad)] * 3000
    kept = stored(tmp_path / "run", found, every_tensor=every_tensor)
    assert (tmp_path / "run" / run_files.LINES).stat().st_size <= run_files.RECORD_BYTES
    assert (kept.status, kept.margin) == ("FAIL", 2.0)
    assert {str(d.tensor) for d in kept.observation.discrepancies} == {"gradient of bad"}
    assert "was shortened" in kept.notes[-1]
    assert "of 6000 compared tensors" in kept.notes[-1]


def test_a_result_that_is_too_long_is_a_reason():
    assert run_files.bound_result(run_files.Reason("r", "x" * 2**23)).short == "record too long"
