"""Shapes of a family: which are planned, what is judged at them, and how a red one is shrunk."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from harness.command import conformance
from harness.plans import SPECS, judge_of_shapes
from harness.sources import ROOT
from harness.spec_files import complaint, file_of, planned

import zoo
from conformance.judging import shrinking
from conformance.records.cell import Shape, Verdict
from conformance.records.convert import from_json, to_json
from conformance.records.plan import Plan
from conformance.show import matrix

PLANTED = str(SPECS / "at_shapes.py")
ON_CPU = {"precisions": ("fp32",), "devices": ("cpu",)}


def models(plan):
    return list(dict.fromkeys(one.cell.model for one in plan.cells))


def test_the_smallest_shape_comes_first_and_then_an_odd_one_and_more_begin_with_fewer():
    few, many = (planned("softmax", shapes=number, **ON_CPU) for number in (3, 6))
    assert models(few) == models(many)[:3] == models(planned("softmax", shapes=3, **ON_CPU))
    assert [one.cell.mode for one in few.cells] == ["eager", "scripted"] * 3
    first, second, *_ = (many.models[name].shape for name in models(many))
    assert first.sizes == first.least == {"rows": 1, "n": 1}
    assert all(size % 2 and size > 1 for size in second.sizes.values())
    assert len(set(models(many))) == 6
    assert from_json(Plan, to_json(many)) == many
    assert zoo.get_spec(models(many)[1]).cases[0].name == "drawn"


def test_another_seed_draws_others_and_a_small_family_has_no_more_than_it_has():
    family = zoo.get_spec("softmax").family
    assert family.draw(6, 0) != family.draw(6, 1)
    small = replace(family, sizes={"rows": (1, 2), "n": (3, 4)})
    assert sorted(tuple(sizes.values()) for sizes in small.draw(99, 0)) == [(1, 3), (1, 4), (2, 3), (2, 4)]


def test_compiled_cells_are_planned_where_they_are_asked_for():
    plan = planned("softmax", shapes=2, modes=("compiled",), **ON_CPU)
    assert [one.cell.mode for one in plan.cells] == ["compiled"] * 2


def test_a_model_without_a_family_is_left_out_and_named(tmp_path):
    path = file_of(tmp_path, "one")
    plan = planned(path, "softmax", shapes=1, **ON_CPU)
    assert (models(plan), plan.shapeless) == (["softmax@rows=1,n=1"], ("one",))
    assert matrix.remarks(plan, [], {}) == ["· not judged, because they have no family of shapes: one"]
    assert complaint(path, shapes=4) == "--shapes 4: no family of shapes is in the spec of one"


def test_a_source_may_be_named_at_a_shape():
    assert models(planned("softmax@rows=3,n=1", **ON_CPU)) == ["softmax@rows=3,n=1"]
    assert models(planned(f"{PLANTED}@rows=3,n=1", **ON_CPU)) == ["one_row@rows=3,n=1", "right@rows=3,n=1"]
    assert models(planned(f"{PLANTED}:ODD_WIDTH@rows=3,n=2", **ON_CPU)) == ["odd_width@rows=3,n=2"]
    assert complaint("softmax@rows=3") == "softmax@rows=3: want the sizes rows, n, got rows"
    assert complaint(f"{PLANTED}@rows=10,n=1") == "one_row@rows=10,n=1: rows must be from 1 to 9, got 10"
    assert complaint("fit_line@n=1") == "fit_line has no family of shapes, so there is no fit_line@n=1"


# A red cell is shrunk


def shrunk(is_red, status="FAIL", **sizes):
    """The verdict on a cell that is red at some shapes, and the shapes that were judged."""
    shape = Shape("net", sizes, dict.fromkeys(sizes, 1))
    plan = planned("softmax@rows=3,n=1", modes=("eager",), **ON_CPU)
    model, (cell,) = plan.models["softmax@rows=3,n=1"], plan.cells
    plan = replace(plan, models={shape.name: replace(model, shape=shape)})
    judged = []

    class Executor(SimpleNamespace):
        def verdict(self, one):
            judged.append(self.plan.models[one.cell.model].shape.sizes)
            return Verdict(one.id, status if is_red(judged[-1]) else "PASS", "why")

    return shrinking.judge(Executor(plan=plan), replace(cell, cell=replace(cell.cell, model=shape.name))), judged


@pytest.mark.parametrize(
    ("is_red", "smallest"),
    [
        (lambda at: at["rows"] == 9, "rows=9,n=1"),
        (lambda at: at["n"] % 2 and at["n"] > 1, "rows=1,n=3"),
        (lambda at: at["rows"] * at["n"] >= 6, "rows=1,n=6"),
        (bool, "rows=1,n=1"),
        (lambda at: at == {"rows": 9, "n": 13}, "rows=9,n=13"),
    ],
)
def test_the_smallest_red_shape_and_its_command_end_the_text(is_red, smallest):
    found, judged = shrunk(is_red, rows=9, n=13)
    assert found.text.startswith("why; smallest shape with this verdict: conformance run ")
    assert found.text.endswith(f"net@{smallest} --mode=eager --precision=fp32 --device=cpu --seed=3")
    assert len(judged) == len({tuple(one.items()) for one in judged}) < 25


def test_nothing_is_tried_of_what_is_green_or_takes_too_long():
    for is_red, status in ((bool, "TIMEOUT"), (bool, "OOM"), (lambda _: False, "FAIL")):
        found, judged = shrunk(is_red, status, n=9)
        assert (found.text, len(judged)) == ("why", 1)


# Real cells


def test_a_fault_at_one_row_and_one_at_odd_widths_are_found_and_shrunk_and_the_right_model_is_green():
    verdicts = judge_of_shapes(PLANTED, number=2)
    red = {cell: (one.status, one.text.rpartition("@")[2]) for cell, one in verdicts.items() if one.red}
    at = " --mode={} --precision=fp32 --device=cpu"
    assert {cell.partition("@")[0] for cell in red} == {"one_row", "odd_width"}
    for cell, found in red.items():
        mode = cell.partition("[")[2].partition("-")[0]
        wrong = ("FAIL", "rows=1,n=1") if cell.startswith("one_row") else ("INVALID", "rows=1,n=3")
        assert found == (wrong[0], wrong[1] + at.format(mode))
        assert mode == "scripted" or wrong[0] == "INVALID"


@pytest.mark.slow
def test_right_models_of_the_zoo_are_green_at_drawn_shapes():
    verdicts = judge_of_shapes("softmax", "batch_gather_vectorised", "mlp", "lstm_cell", number=4)
    assert len(verdicts) == 32
    assert {one.status for one in verdicts.values()} == {"PASS"}


PAGE = (ROOT / "docs" / "adding-a-model.md").read_text(encoding="utf-8").partition("## Shapes")[2]


@pytest.mark.slow
def test_the_documented_family_is_judged_as_the_page_says(tmp_path):
    code, table, smallest = (block.strip() for block in re.findall(r"```(?:python)?\n(.*?)```", PAGE, re.DOTALL)[:3])
    (tmp_path / "sums.py").write_text(code, encoding="utf-8")
    options = ("--precision=fp32", "--device=cpu")
    assert conformance(tmp_path, "run", "sums.py", "--mode=eager", *options)[0] == 0
    code, output = conformance(tmp_path, "run", "sums.py", "--shapes=4", *options)
    assert code == 1
    assert re.sub(r"0\.\d\d", "0.08", table) in re.sub(r"0\.\d\d", "0.08", output)
    assert output.count(smallest.replace("sums.py", str(tmp_path / "sums.py"))) == 2
