"""A mode that watches ops sees those inside an operator written in Python, which torch dispatches as one."""

import pytest
import torch
from harness.processes import printed
from torch import Tensor

from conformance.evaluate.custom_ops import OpMode

LIBRARY = torch.library.Library("conformance_tests_in_one", "DEF")
LIBRARY.define("thrice(Tensor x) -> Tensor")
LIBRARY.impl("thrice", lambda x: x * 3, "CompositeExplicitAutograd")


@torch.library.custom_op("conformance_tests::scaled_sine", mutates_args=())
def scaled_sine(x: Tensor, factor: float = 2.0) -> Tensor:
    return x.sin() * factor


@torch.library.custom_op("conformance_tests::outer", mutates_args=())
def outer(x: Tensor) -> Tensor:
    return scaled_sine(x.exp(), factor=0.5) + 1


@torch.library.custom_op("conformance_tests::halve", mutates_args=("x",))
def halve(x: Tensor) -> None:
    x.mul_(0.5)


@torch.library.custom_op("conformance_tests::convolved", mutates_args=())
def convolved(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.conv2d(x, weight)


class Names(OpMode):
    """Notes the name of every op that it runs, and turns the sign of every sine."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def run_op(self, func, args, kwargs):
        self.seen.append(func._schema.name.rpartition("::")[2])
        result = super().run_op(func, args, kwargs)
        return -result if self.seen[-1] == "sin" else result


def halved(x):
    halve(x)
    return x


@pytest.mark.parametrize(
    ("function", "ops", "wanted"),
    [
        (outer, ["exp", "sin", "mul", "add"], lambda x: x.exp().sin() * -0.5 + 1),
        (halved, ["mul_"], lambda x: x * 0.5),
        (torch.ops.conformance_tests_in_one.thrice, ["thrice"], lambda x: x * 3),  # one op, of another kind
    ],
)
def test_a_mode_sees_and_changes_the_ops_inside_an_operator(function, ops, wanted):
    x = torch.linspace(-1.0, 1.0, 5, dtype=torch.float64)
    given, plain = x.clone(), function(x.clone())
    with Names() as watch:
        found = function(given)
    assert watch.seen == ops
    assert torch.equal(found, wanted(x))
    assert torch.equal(function(x), plain)  # itself again


def test_composite_ops_inside_an_operator_or_in_inference_mode_are_seen_as_their_parts():
    x, weight = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 2, 2)
    with Names() as inside:
        convolved(x, weight)
    with torch.inference_mode(), Names() as inferred:
        torch.nn.functional.conv2d(x.clone(), weight.clone())
    assert (inside.seen, inferred.seen[-1]) == (["convolution"], "convolution")


def test_a_mode_does_not_import_the_compiler():
    script = """
import json, sys, torch
from conformance.evaluate.custom_ops import OpMode

with OpMode():
    torch.ones(2) + 1
print(json.dumps("torch._dynamo" in sys.modules))
"""
    assert printed(script) is False


def test_the_compiler_does_not_look_into_a_mode():
    """Where a model compiles a part of itself, it would compile the mode's own work on each op."""
    graphs = []

    def backend(module, _inputs):
        graphs.append(module)
        return module.forward

    compiled = torch.compile(lambda x: x.sin() + 1, backend=backend)
    with Names() as seen:
        compiled(torch.ones(2))
    assert seen.seen == ["ones", "sin", "add"]
    assert not graphs


def test_an_op_on_tensors_without_numbers_is_none_of_a_mode():
    with Names() as names:
        torch.cat([torch.ones(3, device="meta") * 2])
    assert not {"mul", "cat"} & set(names.seen)


def test_a_nested_tensor_says_what_runs():
    parts = [torch.full((rows, 2), 2.0) for rows in (1, 3)]
    with Names() as names:
        found = torch.nested.as_nested_tensor(parts, layout=torch.jagged).exp()
    assert "exp" in names.seen
    torch.testing.assert_close(list(found.unbind()), [part.exp() for part in parts])
