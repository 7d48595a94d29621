"""Copies of inputs: with the same numbers, strides and overlaps, and never a view."""

import pytest
import torch

from conformance.evaluate import inputs
from zoo.case import Call

LAYOUTS = {
    "contiguous": torch.arange(6.0).reshape(2, 3),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "every second": torch.arange(12.0)[1::2],
    "expanded": torch.arange(3.0).expand(4, 3),
    "windows": torch.arange(6.0).as_strided((4, 3), (1, 1)),
    "scalar": torch.tensor(2.0),
    "empty": torch.empty(0, 3),
}


@pytest.mark.parametrize("tensor", LAYOUTS.values(), ids=LAYOUTS)
def test_a_copy_has_numbers_and_strides_of_the_original_and_is_no_view(tensor):
    (placed,) = inputs.place(Call((tensor,), {}), convert=lambda t: t.double()).args
    assert placed.dtype == torch.float64
    assert torch.equal(placed, tensor.double())
    assert placed.stride() == tensor.stride()
    assert not placed._is_view()
    assert placed.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() or not tensor.numel()


def test_a_tensor_that_is_given_twice_is_copied_once():
    tensor = torch.ones(2)
    one, other = inputs.place(Call((tensor, tensor), {}), convert=lambda t: t).args
    assert one is other
