"""Which tensors share memory: an element in common, not only a storage."""

import pytest
import torch

from conformance.evaluate.memory_sharing import sharing

X = torch.arange(48.0).reshape(6, 8)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.t(),
        lambda x: x[1:],
        lambda x: x[0].expand(3, 8),
        lambda x: x.unfold(0, 3, 1),
        lambda x: x.view(torch.uint8),
        lambda x: x.detach(),
    ],
)
def test_a_view_shares_memory_with_its_base(view):
    assert sharing({"output": view(X)}, {"x": X}) == {("output", "x")}


@pytest.mark.parametrize("other", [X.clone(), X[:0], torch.ones(48)])
def test_copies_and_tensors_without_elements_share_none(other):
    assert sharing({"output": other}, {"x": X}) == frozenset()


def test_parts_of_one_storage_share_memory_only_if_they_have_an_element_in_common():
    outputs = {"even": X[::2], "odd": X[1::2], "left": X[:, :4], "right": X[:, 4:], "none": None}
    assert sharing(outputs, {}) == {("even", "left"), ("even", "right"), ("odd", "left"), ("odd", "right")}
    assert sharing({"windows": X.flatten().unfold(0, 4, 2), "last": X[5:, 6:]}, {}) == {("windows", "last")}
