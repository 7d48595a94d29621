"""Every counterexample is caught as declared, in exactly the cells where its fault exists.

Two kinds of compiled cells run here: those that the float64 reference decides without compiling, and those in which
compiling changes the result. `conformance run` judges the others.
"""

import pkgutil
import re
from dataclasses import dataclass
from functools import cache

import pytest
import torch

import zoo.counterexamples
from conformance.judging.executor import Executor
from conformance.process import child
from conformance.records.cell import Cell
from conformance.records.tasks import PLAN, PlanRequest
from conformance.verdict import judge
from zoo.counterexamples import every_worker_reads_all as reading
from zoo.counterexamples.index_changed_in_place import index_changed_in_place

MODES = frozenset({"eager", "scripted", "compiled"})
PRECISIONS = frozenset({"fp32", "amp_fp16", "amp_bf16"})
HALVES = PRECISIONS - {"fp32"}
NO_COMPILER = MODES - {"compiled"}


@dataclass(frozen=True)
class Caught:
    """The undeclared verdict of a counterexample, and the cells that get it; in all other cells it is right."""

    status: str
    text: str
    modes: frozenset[str] = MODES
    precisions: frozenset[str] = PRECISIONS

    def holds(self, mode, precision):
        return mode in self.modes and precision in self.precisions


TWICE = r"gradgradcheck in float64: Jacobian mismatch for output 0 with respect to input"
FORMULA = r"output: the float64 oracle differs from the spec's reference"
NOT_FINITE = r"class  .*, case large: element .* is (nan|inf), the oracle's -?\d"
CAUGHT = {
    "cross_entropy_of_softmax": Caught("FAIL", NOT_FINITE),
    "detached_tie": Caught("INVALID", "^gradcheck.* Jacobian mismatch: gradient of weight at"),
    "every_worker_reads_all": Caught("INVALID", r"reference gives shape \(6,\), the float64 oracle shape \(12,\)"),
    "fused_conv_bn_twice": Caught("INVALID", TWICE),
    "gather_check_lost": Caught(
        "FAIL",
        r"raises  output, case row-of-the-next-sample: float32 \[3, 1, 2\]; it must raise IndexError",
        modes=MODES - {"eager"},
    ),
    "gather_off_by_one": Caught("INVALID", FORMULA),
    "global_rng": Caught("UNSTABLE", "output: two identical float64 runs differ"),
    "gradient_sample_dropped": Caught("INVALID", "^gradcheck.* Jacobian mismatch: gradient of weight at"),
    "gradient_too_large": Caught("INVALID", "^gradcheck.* Jacobian mismatch: gradient of x at"),
    "hidden_state": Caught("UNSTABLE", "output: two identical float64 runs differ"),
    "index_changed_in_place": Caught("FAIL", "^structure  index, case .*: changed in forward, undeclared"),
    "log_without_clamp": Caught(
        "FAIL",
        r"class  .*, case rare: element .* is (-?inf|nan), the oracle's -?\d",
        precisions=frozenset({"amp_fp16"}),
    ),
    "matmul_without_custom_fwd": Caught("ERROR", "in phase call: .* to have the same dtype", NO_COMPILER, HALVES),
    "sinh_gradients_ignored": Caught("INVALID", TWICE),
    "sinh_kept_on_ctx": Caught("INVALID", TWICE),
    "sinh_non_differentiable": Caught("INVALID", TWICE),
    "softmax_unshifted": Caught("FAIL", NOT_FINITE),
    "sum_over_broadcast": Caught("INVALID", FORMULA),
    "through_bfloat16": Caught("FAIL", r"slice  output, case typical: error 0\.00", NO_COMPILER),
    "training_clips_scaled_gradients": Caught("FAIL", "gain  output", precisions=frozenset({"amp_fp16"})),
    "training_without_scaler": Caught("FAIL", "norm  output", precisions=frozenset({"amp_fp16"})),
    "wrong_output_dtype": Caught("FAIL", "dtype  output, case typical: float64, should be float32"),
}
COMPILED = {  # right, but wrong in eager, or the other way round
    ("gather_check_lost", "fp32"),
    ("matmul_without_custom_fwd", "amp_fp16"),
    ("through_bfloat16", "fp32"),
}


def cells():
    """The cells to run: model, mode and precision."""
    for name, known in CAUGHT.items():
        settled = known.status in ("INVALID", "UNSTABLE")
        for precision in sorted(PRECISIONS):
            modes = MODES if settled or (name, precision) in COMPILED else NO_COMPILER
            yield from ((name, mode, precision) for mode in sorted(modes))


@cache
def plan():
    folder = pkgutil.iter_modules(zoo.counterexamples.__path__, "zoo.counterexamples.")
    request = PlanRequest(tuple(module.name for module in folder), devices=("cpu",), deadline=240.0)
    ending = child.run(PLAN, request, deadline=120.0, method="spawn")
    assert ending.kind == "answered", ending
    return ending.result


@pytest.fixture(scope="module")
def verdict_of(tmp_path_factory):
    planned = {planned.cell: planned for planned in plan().cells}
    executor = Executor(plan(), tmp_path_factory.mktemp("references"))
    return lambda *cell: executor.verdict(planned[Cell(*cell, "cpu")])


def test_the_table_names_every_counterexample():
    assert {planned.cell.model for planned in plan().cells} == set(CAUGHT)
    assert {name for name, *place in cells() if CAUGHT[name].holds(*place)} == set(CAUGHT)


@pytest.mark.parametrize(("model", "mode", "precision"), list(cells()))
def test_is_caught_as_declared_where_the_fault_exists_and_red_without_the_declaration(
    model, mode, precision, verdict_of
):
    known, verdict = CAUGHT[model], verdict_of(model, mode, precision)
    is_caught = known.holds(mode, precision)
    assert verdict.status == ("EXPECTED" if is_caught else "PASS"), verdict.text
    assert not verdict.red
    if is_caught:
        undeclared = judge(verdict.cell, verdict.observation)
        assert undeclared.red
        assert undeclared.status == known.status
        assert re.search(known.text, undeclared.text), undeclared.text


def test_index_changed_in_place_is_right_once():
    tensor, index = torch.arange(6).reshape(3, 2, 1), torch.tensor([[0], [1], [1]])
    assert index_changed_in_place(tensor, index).flatten().tolist() == [0, 3, 5]
    assert index.flatten().tolist() == [0, 3, 5]
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        index_changed_in_place(tensor, index)


def test_a_dataset_without_self_or_getitem_fails_at_once():
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        reading.WithoutSelf(["a.tar"])
    with pytest.raises(NotImplementedError):
        reading.ItemForGetitem()[0]
