"""What models return: its description, the names of the tensors in it, and which of them share memory."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch.utils._pytree import register_pytree_node

from conformance.evaluate.containers import describe, sharing, tensors_of
from conformance.evaluate.inputs import named_leaves
from zoo.case import SpecError

T = torch.ones(3)
Pair = namedtuple("Pair", "first second")  # noqa: PYI024 -- models return such


@dataclass
class Result:
    mean: torch.Tensor
    rest: object = None


TREES = {
    "Tensor": (T, ["output"]),
    "dict[mean: Tensor, rest: tuple[Tensor, None]]": (
        {"mean": T, "rest": (T, None)},
        ["output['mean']", "output['rest'][0]", "output['rest'][1]"],
    ),
    "OrderedDict[b: Tensor, a: Tensor]": (OrderedDict(b=T, a=T), ["output['b']", "output['a']"]),
    "named tuple Pair[first: Tensor, second: list[Tensor]]": (Pair(T, [T]), ["output.first", "output.second[0]"]),
    "dataclass Result[mean: Tensor, rest: tuple[int, float, bool]]": (
        Result(T, (3, 2.5, True)),
        ["output.mean", "output.rest[0]", "output.rest[1]", "output.rest[2]"],
    ),
    "return type topk[Tensor, Tensor]": (T.topk(2), ["output[0]", "output[1]"]),
    "tuple[Tensor, 'mean']": ((T, "mean"), ["output[0]"]),
    "list": ([], []),
}


@pytest.mark.parametrize("text", TREES)
def test_a_container_has_a_description_and_names_and_only_the_same_stands_for_it(text):
    value, names = TREES[text]
    mine = describe(value)
    assert str(mine) == text
    assert list(tensors_of(value)) == names
    same = [other for other, (value, _) in TREES.items() if mine.stands_for(describe(value), scripted=False)]
    assert same == [text]


def test_torchscript_has_lists_and_tuples_in_place_of_what_it_lacks():
    for given, wanted in (([T, T], (T, T)), ((T, T), torch.ones(3).topk(2)), ([3], torch.Size([3]))):
        assert describe(given).stands_for(describe(wanted), scripted=True)
        assert not describe(given).stands_for(describe(wanted), scripted=False)
    assert not describe((T, T)).stands_for(describe([T, T]), scripted=True)


def test_numbers_become_tensors_and_other_things_are_left_aside():
    assert {name: (t.dtype, t.item()) for name, t in tensors_of((3, 2.5, True)).items()} == {
        "output[0]": (torch.int64, 3),
        "output[1]": (torch.float64, 2.5),
        "output[2]": (torch.bool, True),
    }
    returned = {"mean": T, "rest": [object(), {3}, object()]}
    assert [*tensors_of(returned)] == ["output['mean']"]
    assert describe(returned).others() == ("object", "set")
    with pytest.raises(SpecError, match=r"output\[0\] is of type object"):
        tensors_of([object()])


def test_a_sparse_tensor_becomes_a_dense_one_and_its_layout_is_described():
    sparse = torch.eye(2).to_sparse()
    assert torch.equal(tensors_of(sparse)["output"], torch.eye(2))
    assert str(describe((sparse, T))) == "tuple[sparse_coo Tensor, Tensor]"


# Which tensors share memory: an element in common, not only a storage


X = torch.arange(48.0).reshape(6, 8)


@pytest.mark.parametrize(
    "view", [X, X.t(), X[1:], X[0].expand(3, 8), X.unfold(0, 3, 1), X.view(torch.uint8), X.detach()]
)
def test_a_view_shares_memory_with_its_base(view):
    assert sharing({"output": view}, {"x": X}) == {("output", "x")}


@pytest.mark.parametrize("other", [X.clone(), X[:0], torch.ones(48)])
def test_copies_and_tensors_without_elements_share_none(other):
    assert sharing({"output": other}, {"x": X}) == frozenset()


def test_parts_of_one_storage_share_memory_only_if_they_have_an_element_in_common():
    outputs = {"even": X[::2], "odd": X[1::2], "left": X[:, :4], "right": X[:, 4:], "none": None}
    assert sharing(outputs, {}) == {("even", "left"), ("even", "right"), ("odd", "left"), ("odd", "right")}
    assert sharing({"windows": X.flatten().unfold(0, 4, 2), "last": X[5:, 6:]}, {}) == {("windows", "last")}


class Unnamed:
    """A container that tells torch its parts, and no names of them."""

    def __init__(self, *parts):
        self.parts = parts


def test_parts_without_names_have_numbers():
    register_pytree_node(Unnamed, lambda value: ([*value.parts], None), lambda parts, _: Unnamed(*parts))
    value = Unnamed(torch.ones(1), None)
    assert str(describe(value)) == "Unnamed[0: Tensor, 1: None]"
    assert [*named_leaves(value, "x")] == ["x[0]", "x[1]"]
