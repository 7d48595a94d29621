"""In-place operators, and what autograd allows, in each mode."""

import pytest
import torch
from packaging.version import Version

from zoo.ops.in_place import augment, augment_copy

MODES = {
    "eager": lambda function: function,
    "scripted": torch.jit.script,
    "compiled": lambda function: torch.compile(function, backend="aot_eager"),
}
WRITES = ["eager", "compiled"]  # a script does not write a power into its input


@pytest.fixture(params=MODES)
def prepared(request):
    """Return a function that prepares another one for a mode."""
    torch._dynamo.reset()
    return MODES[request.param]


def remainder(x):
    """Replace x by its remainder by two."""
    x %= 2
    return x


def saved_and_changed(x):
    """Change a tensor that the exponential has saved for backward."""
    y = torch.exp(x)
    y += 1
    return y


def test_the_copy_leaves_its_input_alone(prepared):
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    assert prepared(augment_copy)(x, y).tolist() == [20.25, 100.0]
    assert x.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("mode", WRITES)
def test_the_input_holds_the_result_and_its_version_has_moved(mode):
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    result, version = MODES[mode](augment)(x, y), x._version
    assert x.tolist() == [20.25, 100.0]
    assert result.data_ptr() == x.data_ptr()
    assert version > 0


def test_a_leaf_that_requires_grad_is_refused(prepared):
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place operation"):
        prepared(augment)(x, torch.ones(2))
    assert x.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("mode", WRITES)
def test_a_leaf_may_be_changed_without_grad_mode(mode):
    x = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        MODES[mode](augment)(x, torch.full((2,), 3.0))
    assert x.tolist() == [20.25, 20.25]
    assert x.is_leaf
    assert x.requires_grad


@pytest.mark.parametrize("mode", ["eager", "scripted"])
def test_a_changed_input_becomes_part_of_the_graph(mode):
    x, y = torch.tensor([1.0]), torch.tensor([3.0], requires_grad=True)
    result = MODES[mode](augment)(x, y)
    assert x.requires_grad
    (gradient,) = torch.autograd.grad(result, y, torch.ones(1))
    assert gradient.item() == 27.0  # (((1 + y) y − y) / 2)² = y⁴ / 4, whose derivative is y³


def test_the_gradient_of_a_compiled_change_raises_before_torch_2_15_and_is_right_since():
    x, y = torch.tensor([1.0]), torch.tensor([3.0], requires_grad=True)
    result = MODES["compiled"](augment)(x, y)
    assert result.item() == 20.25
    if Version(torch.__version__) >= Version("2.15.dev0"):
        assert torch.autograd.grad(result, y, torch.ones(1))[0].item() == 27.0
        return
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        torch.autograd.grad(result, y, torch.ones(1))


@pytest.mark.parametrize("mode", ["eager", "scripted"])
def test_a_saved_tensor_that_changes_makes_backward_raise(mode):
    x = torch.ones(2, requires_grad=True)
    y = MODES[mode](saved_and_changed)(x)
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        torch.autograd.grad(y, x, torch.ones(2))


def test_the_compiler_raises_that_error_at_the_call():
    with pytest.raises(Exception, match="has been modified by an inplace operation"):  # its type is the compiler's
        MODES["compiled"](saved_and_changed)(torch.ones(2, requires_grad=True))


def test_a_script_does_not_write_a_power_into_its_input():
    x = torch.tensor([1.0, 2.0])
    assert torch.jit.script(augment)(x, torch.tensor([3.0, 4.0])).tolist() == [20.25, 100.0]
    assert x.tolist() == [4.5, 10.0]  # what it held before x **= 2


def test_a_remainder_in_a_script_has_the_sign_of_its_left_side():
    eager, scripted = (mode(remainder)(torch.tensor([-3.0])) for mode in (MODES["eager"], MODES["scripted"]))
    assert (eager.item(), scripted.item()) == (1.0, -1.0)


def test_a_saved_input_that_the_caller_changes_later_makes_backward_raise(prepared):
    x, y = torch.ones(2, requires_grad=True), torch.full((2,), 3.0)
    result = prepared(augment_copy)(x, y)
    y += 1
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        torch.autograd.grad(result, x, torch.ones(2))


def test_the_left_side_keeps_its_dtype_and_shape():
    x = torch.ones(2, dtype=torch.float16)
    x += torch.ones(2, dtype=torch.float32)
    assert x.dtype == torch.float16
    with pytest.raises(RuntimeError, match="result type Float can't be cast to the desired output type"):
        torch.ones(2, dtype=torch.int64).add_(0.5)
    with pytest.raises(RuntimeError, match=r"output with shape \[2\] doesn't match the broadcast shape \[3, 2\]"):
        torch.ones(2).add_(torch.ones(3, 2))
