"""y = x³ in C++, forward and backward, compiled at the first call.

Source: "Double backward with custom functions", backward with a Function of its own. Autograd records operations of
torch; of a loop in C++ it sees nothing. So the gradient is written in C++ too, and is a Function of its own,
CubeCppBackward(g, x) = 3 x² g, whose gradients are CubeCppBackward(h, x) for g and 6 x g h for x. The code is in
cube_cpp.cpp. `torch.utils.cpp_extension` compiles it into torch's folder of extensions, which takes a minute once.
"""

import importlib.util
import os
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.arguments import want_floating
from zoo.case import Case
from zoo.error_input import INTEGERS
from zoo.expect import Expect
from zoo.family import MATRICES
from zoo.scale import elementwise
from zoo.spec import Spec

SOURCE = Path(__file__).with_suffix(".cpp")


def missing_tools() -> list[str]:
    """Return the names of the tools that compiling needs and this machine lacks.

    >>> {*missing_tools()} <= {"a C++ compiler", "ninja", "setuptools"}
    True
    """
    compiler = os.environ.get("CXX", "cl" if os.name == "nt" else "c++").split()[0]
    found = {
        "a C++ compiler": shutil.which(compiler),
        "ninja": shutil.which("ninja"),
        "setuptools": importlib.util.find_spec("setuptools"),
    }
    return [tool for tool, place in found.items() if not place]


@cache
def _operators() -> Any:
    missing = missing_tools()
    if missing:
        raise RuntimeError(f"cube_cpp: needs {' and '.join(missing)}, to compile {SOURCE.name}")
    from torch.utils import cpp_extension  # noqa: PLC0415 -- it imports setuptools

    name = re.sub(r"\W", "_", f"zoo_cube_{torch.__version__}")  # a build is for one version of torch
    try:
        cpp_extension.load(name, [str(SOURCE)], extra_cflags=["-O2"], is_python_module=False)
    except RuntimeError as problem:  # an OSError, such as that of a full disk, is no fault of the code
        raise RuntimeError(f"cube_cpp: {SOURCE.name} does not compile: {str(problem).splitlines()[0]}") from problem
    return torch.ops.torch_conformance_cpp


def _cube(x: Tensor) -> Tensor:
    y: Tensor = _operators().cube(x.detach().cpu())
    return y.to(x.device)


def _cube_backward(grad: Tensor, x: Tensor) -> Tensor:
    gradient: Tensor = _operators().cube_backward(grad.detach().cpu(), x.detach().cpu())
    return gradient.to(x.device)


class CubeCppBackward(torch.autograd.Function):
    """3 x² grad in C++, with handwritten gradients of `grad` and `x`."""

    @staticmethod
    def forward(grad: Tensor, x: Tensor) -> Tensor:
        """Return 3 x² grad."""
        want_floating("CubeCppBackward", "grad", grad)
        want_floating("CubeCppBackward", "x", x)
        return _cube_backward(grad, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        """Save grad and x."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of grad and x, in that order."""
        grad, x = ctx.saved_tensors
        return CubeCppBackward.apply(outer, x), 6 * x * grad * outer  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, int | None], *both: Tensor) -> tuple[Tensor, int]:  # noqa: ARG004
        """Call it once, on the whole batch: the C++ code knows nothing of `vmap`."""
        grad, x = (t.unsqueeze(0) if d is None else t.movedim(d, 0) for t, d in zip(both, in_dims, strict=True))
        result: Tensor = CubeCppBackward.apply(*torch.broadcast_tensors(grad, x))  # type: ignore[no-untyped-call]
        return result, 0


class CubeCpp(torch.autograd.Function):
    """x³ in C++, with `CubeCppBackward` as its gradient."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """Return x³."""
        want_floating("CubeCpp", "x", x)
        return _cube(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG004
        """Save x."""
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return 3 x² grad."""
        result: Tensor = CubeCppBackward.apply(grad, ctx.saved_tensors[0])  # type: ignore[no-untyped-call]
        return result

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:  # noqa: ARG004
        """Call it once, on the whole batch."""
        return CubeCpp.apply(x), in_dims[0]  # type: ignore[no-untyped-call]


@torch.jit.ignore  # type: ignore[untyped-decorator]
def _apply(x: Tensor) -> Tensor:
    result: Tensor = CubeCpp.apply(x)  # type: ignore[no-untyped-call]
    return result


def cube_cpp(x: Tensor) -> Tensor:
    """Return the cube of each element, computed by C++ code on the CPU.

    float16 and bfloat16 are computed in float32 and rounded once. The function can be differentiated any number of
    times, and supports `vmap` and `torch.func.grad`. torch.compile breaks the graph there.

    Args:
        x: any shape, floating.

    Returns:
        A tensor with the shape, the dtype and the device of `x`.

    Raises:
        TypeError: `x` is no tensor, or does not hold floating-point numbers.
        RuntimeError: the C++ code cannot be compiled, because a tool is missing or fails.

    >>> cube_cpp([2.0])
    Traceback (most recent call last):
    TypeError: cube_cpp: x must be a tensor, got list
    """
    want_floating("cube_cpp", "x", x)
    result: Tensor = _apply(x)
    return result


def _torch_cube(x: Tensor) -> Tensor:
    """Compute it in torch: the oracle, because the matrix cannot perturb the roundings of a loop in C++."""
    return x * x * x


CASES = (
    Case(name="typical", inputs=lambda g: (torch.randn(4, 6, generator=g),)),
    Case(name="extreme", inputs=lambda g: (torch.randn(4, 6, generator=g) * torch.logspace(-4, 5, 6, base=2),)),
    Case(name="single", inputs=lambda g: (1 + torch.rand((), generator=g),)),
    Case(name="empty", inputs=lambda _: (torch.empty(0, 6),)),
    Case(name="non-contiguous", inputs=lambda g: (torch.randn(6, 8, generator=g).t()[::2],)),
)

WITHOUT_COMPILER = Expect(
    outcome="refuses",
    error="RuntimeError",
    match="cube_cpp: needs",
    reason="this machine lacks a tool for compiling C++",
)

WITHOUT_FAKE_KERNEL = Expect(
    outcome="refuses",
    modes=("exported", "packaged"),
    error="UnsupportedOperatorException",
    match="torch_conformance_cpp.cube",
    reason="torch.export asks an operator for the shape of its result, and this one has no kernel for that",
    link="https://docs.pytorch.org/tutorials/advanced/cpp_custom_ops.html",
)

SPEC = Spec(
    name="cube_cpp",
    summary="`x³` by C++ code, with a Function in C++ for its backward",
    source="Double backward with custom functions, backward with a Function of its own",
    formula="y = x³",
    shapes="(...) → (...)",
    build=lambda: cube_cpp,
    one_graph=False,  # Dynamo leaves the check of the tools, and the extension, to eager
    cases=CASES,
    error_inputs=(INTEGERS,),
    dtypes="input",
    twice_differentiable=True,
    vmappable=True,
    float32_accurate=("output", "gradient of x", "second gradient of x"),
    reference=lambda: _torch_cube,
    family=MATRICES,
    scale=elementwise(cube_cpp),
    expectations=(WITHOUT_COMPILER,) if missing_tools() else (WITHOUT_FAKE_KERNEL,),
)
