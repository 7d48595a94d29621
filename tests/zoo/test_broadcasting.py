"""The sum along a named axis, and the two meanings of a sum with implicit broadcasting."""

import pytest
import torch

from zoo.ops.broadcasting import sum_explicit

COLUMN, VECTOR = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 2.0])


def test_an_unintended_broadcast_gives_12_and_is_refused():
    assert (COLUMN + VECTOR).sum().item() == 12
    with pytest.raises(ValueError, match=r"a and b must have the same number of axes, got shapes \[2, 1\] and \[2\]"):
        sum_explicit(COLUMN, VECTOR, 0)


def test_both_meanings_can_be_written_and_differ_in_shape():
    assert sum_explicit(COLUMN, VECTOR.unsqueeze(1), 0).tolist() == [6]
    assert sum_explicit(COLUMN, VECTOR.unsqueeze(0), 0).tolist() == [5, 7]
    assert sum_explicit(COLUMN, VECTOR.unsqueeze(0), 1).tolist() == [5, 7]


@pytest.mark.parametrize(
    ("shape_a", "shape_b", "dim", "shape"),
    [((5, 1), (1, 7), 0, (7,)), ((5, 1), (1, 7), -1, (5,)), ((2, 3, 4), (2, 1, 4), 1, (2, 4)), ((6,), (6,), 0, ())],
)
def test_the_summed_axis_goes_and_the_others_stay(shape_a, shape_b, dim, shape):
    assert sum_explicit(torch.ones(shape_a), torch.ones(shape_b), dim).shape == shape


def test_gradient_of_an_extended_axis_counts_its_copies():
    a, b = torch.zeros(5, 1, requires_grad=True), torch.zeros(1, 7, requires_grad=True)
    sum_explicit(a, b, 0).backward(torch.tensor([1.0, 0, 0, 2, 0, 0, -4]))
    assert a.grad.flatten().tolist() == [-1] * 5
    assert b.grad.flatten().tolist() == [5, 0, 0, 10, 0, 0, -20]


@pytest.mark.parametrize("scripted", [False, True])
def test_misfits_are_named(scripted):
    function = torch.jit.script(sum_explicit) if scripted else sum_explicit

    def refused(error, match):
        return pytest.raises(torch.jit.Error if scripted else error, match=match)

    with refused(ValueError, r"sizes of a and b must be equal or 1, got shapes \[2, 3\] and \[2, 2\]"):
        function(torch.ones(2, 3), torch.ones(2, 2), 0)
    with refused(IndexError, "dim must name one of 2 axes, got 2"):
        function(torch.ones(2, 3), torch.ones(2, 3), 2)
    with refused(IndexError, "dim must name one of 0 axes, got 0"):
        function(torch.tensor(1.0), torch.tensor(1.0), 0)
    with refused(TypeError, "sum_explicit: b must have a floating dtype"):
        function(torch.ones(2), torch.tensor([True, False]), 0)
