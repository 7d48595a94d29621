"""The cubes in NumPy and in C++: derivatives, dtypes, transforms, and the errors where a tool is missing."""

import importlib
import importlib.util
import shutil
import sys

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from zoo.functions.cube import CubeBackward, cube
from zoo.functions.cube_cpp import CubeCppBackward, cube_cpp, missing_tools
from zoo.functions.cube_numpy import CubeNumpyBackward, cube_numpy

HAS_NUMPY, MISSING = importlib.util.find_spec("numpy") is not None, missing_tools()
cpp = importlib.import_module("zoo.functions.cube_cpp")  # zoo.functions.cube_cpp is the function
with_numpy = pytest.mark.skipif(not HAS_NUMPY, reason="NOT TESTED: cube_numpy, because NumPy is not installed")
with_compiler = pytest.mark.skipif(bool(MISSING), reason=f"NOT TESTED: cube_cpp, for want of {' and '.join(MISSING)}")
in_numpy, in_cpp = pytest.param(cube_numpy, marks=with_numpy), pytest.param(cube_cpp, marks=with_compiler)
both = pytest.mark.parametrize("function", [in_numpy, in_cpp], ids=["numpy", "cpp"])


def points():
    return torch.tensor([[-1.5, 0.25], [2.0, 0.0]], dtype=torch.float64, requires_grad=True)


@both
def test_derivatives_of_every_order(function):
    assert gradcheck(function, (points(),))
    assert gradgradcheck(function, (points(),))
    x = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    found = [function(x)]
    for _ in range(3):
        found += torch.autograd.grad(found[-1], x, create_graph=True)
    assert [value.item() for value in found] == [8.0, 12.0, 12.0, 6.0]


@both
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", [(), (0, 3), (64, 3)])
def test_agrees_with_the_cube_in_torch(function, dtype, shape):
    x, cotangent = torch.randn(2, *shape, dtype=dtype).unbind()
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    one, other = function(ours), cube(theirs)
    torch.testing.assert_close(one, other)
    (slope,), (wanted,) = torch.autograd.grad(one, ours, cotangent), torch.autograd.grad(other, theirs, cotangent)
    torch.testing.assert_close(slope, wanted)


@both
def test_strides_are_respected_and_an_overflow_is_infinite_and_no_warning(function):
    x = torch.arange(12.0).reshape(3, 4).t()[::2].requires_grad_()
    y = function(x)
    assert torch.equal(y, x**3)
    assert torch.equal(torch.autograd.grad(y, x, x.detach())[0], 3 * x**3)
    assert function(torch.tensor([300.0, -1e20]).half()).tolist() == [float("inf"), float("-inf")]
    assert function(torch.tensor([1e20, float("nan")])).isfinite().tolist() == [False, False]


@both
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_a_low_dtype_is_rounded_once(function, low):
    x = torch.linspace(-3, 3, 101, dtype=low).requires_grad_()
    cotangent = torch.linspace(0.5, 2, 101, dtype=low)
    y = function(x)
    assert y.dtype == low
    assert torch.equal(y, (x.double() ** 3).float().to(low))
    (slope,) = torch.autograd.grad(y, x, cotangent)
    assert torch.equal(slope, (3 * x.float() * x.float() * cotangent.float()).to(low))


@both
def test_vmap_and_func_grad(function):
    x = points().detach()
    assert torch.equal(torch.vmap(function, in_dims=1)(x), function(x.t()))
    torch.testing.assert_close(torch.vmap(torch.vmap(torch.func.grad(function)))(x), 3 * x * x)


@pytest.mark.parametrize(
    "backward",
    [
        CubeBackward,
        pytest.param(CubeNumpyBackward, marks=with_numpy),
        pytest.param(CubeCppBackward, marks=with_compiler),
    ],
)
def test_backward_orders_its_gradients_as_its_arguments(backward):
    grad, x = torch.tensor(5.0, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    backward.apply(grad, x).backward()
    assert (float(grad.grad), float(x.grad)) == (12.0, 60.0)
    mapped = torch.vmap(backward.apply, in_dims=(0, None))(torch.tensor([1.0, 2.0]), torch.tensor(2.0))
    assert mapped.tolist() == [12.0, 24.0]


@both
def test_a_script_calls_it_in_python_and_cannot_be_saved(function, tmp_path):
    scripted = torch.jit.script(function)
    for _ in range(3):
        x = points()
        assert torch.equal(torch.autograd.grad(scripted(x), x, points().detach())[0], 3 * x * x * x)
    with pytest.raises(RuntimeError, match="Could not export Python function call"):
        torch.jit.save(scripted, str(tmp_path / "cube.pt"))


@both
@pytest.mark.filterwarnings("ignore")  # torch.compile warns of what it meets inside a Function
def test_compiled_gives_the_same_value_and_gradient(function):
    compiled = torch.compile(lambda x: function(x + 1) * 2, backend="aot_eager")
    x = points()
    y = compiled(x)
    torch.testing.assert_close(y, 2 * (x + 1) ** 3)
    (slope,) = torch.autograd.grad(y, x, points().detach())
    torch.testing.assert_close(slope, 6 * (x + 1) ** 2 * x)


def test_without_numpy_the_error_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ModuleNotFoundError, match=r"^cube_numpy: needs NumPy: pip install numpy$"):
        cube_numpy(torch.ones(2))


@pytest.mark.parametrize(
    ("lost", "wanted"),
    [("c++", r"a C\+\+ compiler"), ("ninja", "ninja"), ("both", r"a C\+\+ compiler and ninja")],
)
def test_without_a_tool_the_error_says_so(monkeypatch, lost, wanted):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(shutil, "which", lambda tool: None if lost in (tool, "both") else tool)
    monkeypatch.setattr(cpp, "_operators", cpp._operators.__wrapped__)  # a second library could not be loaded
    with pytest.raises(RuntimeError, match=rf"^cube_cpp: needs {wanted}, to compile cube_cpp\.cpp$"):
        cube_cpp(torch.ones(2))


@with_compiler
def test_code_that_does_not_compile_is_one_line(monkeypatch, tmp_path):
    broken = tmp_path / "broken.cpp"
    broken.write_text("this is no C++\n")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(cpp, "SOURCE", broken)
    monkeypatch.setattr(cpp, "_operators", cpp._operators.__wrapped__)  # a second library could not be loaded
    with pytest.raises(RuntimeError, match=r"^cube_cpp: broken\.cpp does not compile: ") as caught:
        cube_cpp(torch.ones(2))
    assert "\n" not in str(caught.value)
