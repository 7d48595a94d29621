"""The cost of a cell that no clock is needed for: right by hand, the same in every process."""

import pytest
import torch
from harness.counting import ALL, counted

from conformance.measure.costs import FIELDS, least_bytes
from conformance.records.cell import Cell
from conformance.records.measurements import Footprint, PerPass, Reason
from conformance.records.plan import SpecLocation
from zoo import catalog

SPECS = """
import torch
from conformance import Prepared, register_mode
from torch import nn
from zoo.spec import Case, Expect, Spec

register_mode("captured", lambda model: Prepared(torch.compile(model, backend="aot_eager"), dict))

def spec(name, build, **more):
    case = Case(name="typical", inputs=lambda g: (torch.randn(8, 4, generator=g),))
    return Spec(name=name, summary=name, source="here", build=build, cases=(case,), **more)

@torch.library.custom_op("footprint::product", mutates_args=())
def product(x: torch.Tensor) -> torch.Tensor:
    return x @ x.t()

def refuses(x):
    raise RuntimeError("not today")

def half(x):
    return x.mul_(0.5)

class NoWayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("no way back")

LINEAR = spec("linear", lambda: nn.Linear(4, 3))
EXP = spec("exponential", lambda: torch.exp)
LARGEST = spec("largest", lambda: lambda x: x.argmax(1), differentiable=False)
PRODUCT = spec("python_product", lambda: product, differentiable=False)
NO_WAY_BACK = spec("no_way_back", lambda: NoWayBack.apply)
REFUSES = spec("refuses", lambda: refuses)
HALF = spec("half", lambda: half, mutates=("x",), differentiable=False)
FIT = spec("training", lambda: nn.Linear(4, 1), differentiable=False, fit=lambda call, model, precision, x: call(x))
"""


@pytest.fixture(scope="module")
def count(tmp_path_factory):
    """A function that counts a cell in a fresh process."""
    file = tmp_path_factory.mktemp("specs") / "specs.py"
    file.write_text(SPECS)

    def counts(model, mode="eager", precision="fp32"):
        own = f'"{model}"' in SPECS
        location = SpecLocation(file=str(file)) if own else SpecLocation(module=catalog.home_of(model))
        return counted(Cell(model, mode, precision, "cpu"), location, sources=(SpecLocation(file=str(file)),))

    return counts


def test_a_linear_layer_by_hand(count):
    seen = count("linear")
    assert (seen.saved, seen.held) == (0, 0)  # the input and the weight, which live anyway
    assert seen.peak == 4 * (8 * 3 + 8 * 4 + 3 * 4 + 3)  # the output, and three gradients
    assert seen.flops == PerPass(forward=2 * 8 * 4 * 3, both=3 * 2 * 8 * 4 * 3)
    moved = 4 * (8 * 4 + 3 * 4 + 3 + 8 * 3)
    assert seen.least_bytes == PerPass(forward=moved, both=moved + 4 * (8 * 4 + 3 * 4 + 3))
    assert seen.why == {}
    assert {*FIELDS, "why"} == set(Footprint.__dataclass_fields__)


def test_a_saved_result_is_read_and_not_written_again(count):
    seen = count("exponential")
    assert (seen.saved, seen.held, seen.flops) == (128, 0, PerPass(0, 0))
    assert seen.least_bytes == PerPass(2 * 128, 4 * 128)


def test_without_gradients_there_is_no_backward(count):
    seen = count("largest")
    assert (seen.saved, seen.peak) == (None, None)
    assert seen.held == 0
    assert seen.flops == PerPass(0, None)
    assert seen.least_bytes == PerPass(128 + 64, None)
    assert {"saved", "peak", "flops.both", "least_bytes.both"} <= set(seen.why)
    assert seen.why["peak"] == Reason("no gradient is asked for")


def test_operators_written_in_python_are_looked_into_and_inputs_that_change_count_once(count):
    assert count("python_product").flops.forward == 2 * 8 * 8 * 4
    assert count("half").least_bytes.forward == 128


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("training", Reason("a training, which is many calls and no single one")),
        ("refuses", Reason("RuntimeError", "not today")),
    ],
)
def test_a_training_and_a_model_that_raises_have_reasons_for_everything(count, model, reason):
    seen = count(model)
    assert all(seen.count(name) is None for name in ALL)
    assert seen.why == dict.fromkeys(FIELDS, reason)


def test_a_backward_that_raises_leaves_forward_counted(count):
    seen = count("no_way_back")
    assert (seen.held, seen.peak) == (0, None)
    assert seen.flops == PerPass(0, None)
    assert seen.least_bytes == PerPass(256, None)
    assert seen.why["peak"] == seen.why["flops.both"] == Reason("RuntimeError", "no way back")


def test_a_mode_that_refuses_leaves_the_work_counted(count):
    seen = count("exponential", mode="scripted")
    assert seen.flops == PerPass(0, 0)
    assert seen.peak is None
    assert "peak" in seen.why


@pytest.mark.parametrize("mode", ["scripted", "captured"])
def test_two_processes_count_the_same(count, mode):
    first, second = (count("mlp", mode, "amp_bf16") for _ in range(2))
    assert first == second
    assert (first.why, None in vars(first).values()) == ({}, False)


def test_each_storage_counts_once_as_far_as_it_is_touched_and_backward_adds_what_it_moves():
    base = torch.zeros(10)
    assert least_bytes([base, base.view(2, 5)], [base[:3]]) == 40
    assert least_bytes([base[:3]], []) == 12
    assert least_bytes([torch.zeros(1).expand(1000)], [torch.zeros(5)]) == 4 + 20
    x = [torch.zeros(10)]
    assert least_bytes(x, []) == 40
    assert least_bytes(x, [], [torch.zeros(10)], saved=8, held=8) == 40 + 40 + 16
    assert least_bytes(x, [], saved=8, held=3) == 40 + 8 + 3
    assert least_bytes(x, [], saved=8, held=100) == 40 + 8 + 8  # what is held and not saved need not be moved
