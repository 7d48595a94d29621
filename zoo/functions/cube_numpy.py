"""y = x³ in NumPy, forward and backward: code that autograd cannot follow needs a Function.

Source: "Double backward with custom functions", backward with a Function of its own. Autograd records operations of
torch. An array has no history, so `.numpy()` refuses a tensor that requires a gradient, and the gradient of a detached
one is lost. Here backward is NumPy too. So it is a Function of its own, CubeNumpyBackward(g, x) = 3 x² g, whose
gradients are CubeNumpyBackward(h, x) for g and 6 x g h for x. NumPy is imported at the first call.
"""

import importlib
import importlib.util
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


def _numpy() -> Any:
    try:
        return importlib.import_module("numpy")
    except ImportError:
        raise ModuleNotFoundError("cube_numpy: needs NumPy: pip install numpy") from None


def _array(x: Tensor) -> Any:
    """Return the numbers of x on the CPU, in float32 at least: NumPy has no bfloat16."""
    return x.detach().to("cpu", torch.promote_types(x.dtype, torch.float32)).numpy()


def _tensor(array: Any, like: Tensor) -> Tensor:
    return torch.from_numpy(array).to(like.device, like.dtype)


def _cube(x: Tensor) -> Tensor:
    numpy = _numpy()
    with numpy.errstate(all="ignore"):  # torch does not warn of an overflow either
        return _tensor(numpy.asarray(numpy.power(_array(x), 3)), x)  # of a single number, NumPy returns no array


def _cube_backward(grad: Tensor, x: Tensor) -> Tensor:
    numpy = _numpy()
    with numpy.errstate(all="ignore"):
        return _tensor(numpy.asarray(3 * numpy.square(_array(x)) * _array(grad)), x)


class CubeNumpyBackward(torch.autograd.Function):
    """3 x² grad in NumPy, with handwritten gradients of `grad` and `x`."""

    @staticmethod
    def forward(grad: Tensor, x: Tensor) -> Tensor:
        """Return 3 x² grad."""
        want_floating("CubeNumpyBackward", "grad", grad)
        want_floating("CubeNumpyBackward", "x", x)
        return _cube_backward(grad, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        """Save grad and x."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of grad and x, in that order."""
        grad, x = ctx.saved_tensors
        return CubeNumpyBackward.apply(outer, x), 6 * x * grad * outer  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, int | None], *both: Tensor) -> tuple[Tensor, int]:  # noqa: ARG004
        """Call it once, on the whole batch: NumPy cannot look into the tensors that `vmap` passes on."""
        grad, x = (t.unsqueeze(0) if d is None else t.movedim(d, 0) for t, d in zip(both, in_dims, strict=True))
        result: Tensor = CubeNumpyBackward.apply(*torch.broadcast_tensors(grad, x))  # type: ignore[no-untyped-call]
        return result, 0


class CubeNumpy(torch.autograd.Function):
    """x³ in NumPy, with `CubeNumpyBackward` as its gradient."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """Return x³."""
        want_floating("CubeNumpy", "x", x)
        return _cube(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG004
        """Save x."""
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return 3 x² grad."""
        result: Tensor = CubeNumpyBackward.apply(grad, ctx.saved_tensors[0])  # type: ignore[no-untyped-call]
        return result

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:  # noqa: ARG004
        """Call it once, on the whole batch."""
        return CubeNumpy.apply(x), in_dims[0]  # type: ignore[no-untyped-call]


@torch.jit.ignore  # type: ignore[untyped-decorator]
def _apply(x: Tensor) -> Tensor:
    result: Tensor = CubeNumpy.apply(x)  # type: ignore[no-untyped-call]
    return result


def cube_numpy(x: Tensor) -> Tensor:
    """Return the cube of each element, computed by NumPy on the CPU.

    float16 and bfloat16 are computed in float32 and rounded once. The function can be differentiated any number of
    times, and supports `vmap` and `torch.func.grad`. torch.compile does not keep it in one graph.

    Args:
        x: any shape, floating.

    Returns:
        A tensor with the shape, the dtype and the device of `x`.

    Raises:
        TypeError: `x` is no tensor, or does not hold floating-point numbers.
        ModuleNotFoundError: NumPy is not installed.

    >>> cube_numpy([2.0])
    Traceback (most recent call last):
    TypeError: cube_numpy: x must be a tensor, got list
    """
    want_floating("cube_numpy", "x", x)
    result: Tensor = _apply(x)
    return result


def _torch_cube(x: Tensor) -> Tensor:
    """Compute it in torch: the oracle, because the matrix cannot perturb the roundings of NumPy."""
    return x * x * x


CASES = (
    Case(name="typical", inputs=lambda g: (torch.randn(4, 6, generator=g),)),
    Case(name="extreme", inputs=lambda g: (torch.randn(4, 6, generator=g) * torch.logspace(-4, 5, 6, base=2),)),
    Case(name="single", inputs=lambda g: (1 + torch.rand((), generator=g),)),
    Case(name="empty", inputs=lambda _: (torch.empty(0, 6),)),
    Case(name="non-contiguous", inputs=lambda g: (torch.randn(6, 8, generator=g).t()[::2],)),
)

WITHOUT_NUMPY = tuple(
    Expect(
        outcome="refuses", modes=modes, error=error, match="cube_numpy: needs NumPy", reason="NumPy is not installed"
    )
    for modes, error in (
        (("eager", "compiled", "exported", "packaged", "graphed"), "ModuleNotFoundError"),
        (("scripted",), "RuntimeError"),
    )
)
NOT_EXPORTED = Expect(
    outcome="refuses",
    modes=("exported", "packaged"),
    error="RuntimeError",
    match=r"\.numpy\(\) is not supported for tensor subclasses",
    reason="torch.export traces with tensors that hold no data, so NumPy has nothing to read",
)

SPEC = Spec(
    name="cube_numpy",
    summary="`x³` by NumPy, with a Function in NumPy for its backward",
    source="Double backward with custom functions, backward with a Function of its own",
    formula="y = x³",
    shapes="(...) → (...)",
    build=lambda: cube_numpy,
    one_graph=False,  # Dynamo leaves NumPy's part to eager
    cases=CASES,
    error_inputs=(INTEGERS,),
    dtypes="input",
    twice_differentiable=True,
    vmappable=True,
    float32_accurate=("output", "gradient of x", "second gradient of x"),
    reference=lambda: _torch_cube,
    family=MATRICES,
    scale=elementwise(cube_numpy),
    expectations=(NOT_EXPORTED,) if importlib.util.find_spec("numpy") else WITHOUT_NUMPY,
)
