"""Further draws: other inputs and weights, the same in every process; and runs rounded to nearest."""

import pytest
import torch
from torch import nn

from conformance.axes import PRECISIONS
from conformance.evaluate import inputs, weights
from conformance.float64.wide import Oracle
from conformance.oracle import draws
from conformance.oracle.draws import Redraw
from conformance.perturb.rounding import Nearest
from zoo import Call, Case, Spec

CASE = Case(name="typical", inputs=lambda g: (torch.randn(4, 3, generator=g), 2))


def test_weights_change_by_name_and_not_by_order():
    state = {"a": torch.ones(3), "n": torch.tensor(7), "z": torch.ones(2, dtype=torch.complex64)}
    other = {"b": torch.ones(5), **dict(reversed(state.items()))}
    one, two = Redraw(64, 1).state(state, 0), Redraw(64, 1).state(other, 0)
    assert all(torch.equal(one[name], two[name]) for name in state)
    assert one["n"] == 7
    assert not torch.equal(one["a"], Redraw(64, 2).state(state, 0)["a"])


@pytest.mark.parametrize(("fine", "least"), [(False, 0.875), (True, 0.5)])
def test_weights_shrink_and_less_where_float16_has_to_hold_what_many_layers_leave(fine, least):
    found = Redraw(64, 1, fine=fine).state({"a": torch.ones(1000)}, 0)["a"]
    assert least <= float(found.min()) < least + 0.01
    assert 0.99 < float(found.max()) <= 1.0


def test_the_wide_state_is_the_narrow_one():
    state = weights.state_of(nn.Linear(3, 2))
    wide = {name: tensor.double() for name, tensor in state.items()}
    for redraw in (Redraw(64, 1), Redraw(63, 0, fine=True)):
        narrow, widened = redraw.state(state, 0), redraw.state(wide, 0)
        assert all(torch.equal(narrow[name].double(), widened[name]) for name in state)


def test_only_a_fine_draw_needs_float32():
    coarse, fine = Redraw(64, 1).inputs(CASE, 0).args[0], Redraw(64, 1, fine=True).inputs(CASE, 0).args[0]
    assert torch.equal(coarse, coarse.bfloat16().float())
    assert torch.equal(inputs.representable(fine), coarse)
    assert not torch.equal(fine, coarse)


def test_a_draw_may_have_a_row_less_or_more_or_lie_in_memory_in_another_order():
    plain, fewer, more, reordered = (
        Redraw(64, 1, **way).inputs(CASE, 0).args[0] for way in ({}, {"rows": -1}, {"rows": 1}, {"reordered": True})
    )
    assert torch.equal(fewer, plain[:3])
    assert more.shape == (5, 3)
    assert torch.equal(more[:4], plain)
    assert not any(torch.equal(more[4], row) for row in plain)
    assert torch.equal(plain, reordered)
    assert (plain.stride(), reordered.stride()) == ((3, 1), (1, 4))


@pytest.mark.parametrize(
    "other",
    [Call((torch.ones(4, 3), 3)), Call((torch.ones(3, 4).t(), 2)), Call((torch.ones(4, 3).double(), 2)), Call((2,))],
)
def test_calls_that_need_other_code_are_not_alike(other):
    assert not inputs.alike(Call((torch.ones(4, 3), 2)), other)


@pytest.mark.parametrize(("name", "dtype"), [("amp_bf16", torch.bfloat16), ("amp_fp16", torch.float16)])
def test_a_nearest_run_rounds_as_the_dtype_does(name, dtype):
    x, y = torch.rand(2, 100, dtype=torch.float64) + 0.5
    with Nearest(PRECISIONS[name]):
        product = x * y
    assert torch.equal(product, (x.to(dtype).double() * y.to(dtype).double()).to(dtype).double())


def test_a_nearest_run_keeps_infinities():
    mask = torch.tensor([0.0, -torch.inf], dtype=torch.float64)
    with Nearest(PRECISIONS["amp_bf16"]):
        assert (mask + 1.0).tolist() == [1.0, -torch.inf]


def test_a_draw_that_takes_a_batch_whole_takes_the_one_farthest_from_kinks():
    def chosen(*shape):
        case = Case(name="typical", inputs=lambda generator: (torch.randn(*shape, generator=generator),))
        spec = Spec(name="kinky", summary="", source="", build=lambda: lambda x: (x * 1.0).relu(), cases=(case,))
        oracle = Oracle(spec, seed=0)
        redraw = Redraw(start, weights=1)
        numbers = range(start, start + 8)
        picked = draws._batch_off_the_kinks(oracle, case, redraw, numbers)
        return picked, [float(inputs.draw_batch(case, 0, n).args[0].abs().amin()) for n in numbers]

    start = 40
    picked, gaps = chosen(12, 12)
    assert picked != start
    assert gaps[picked - start] == max(gaps)
    picked, gaps = chosen(200, 300)
    assert picked - start == max((0, 1), key=gaps.__getitem__)
