"""Augmented assignments, x += y, x *= y, x -= y, x /= 2 and x **= 2: on a copy, or on the caller's own tensor.

Source: "Effective PyTorch", on overloaded operators. They write into the memory of the left side, so the shape and the
dtype of the left side stay. Autograd takes part, with two exceptions. A leaf that requires grad cannot be written,
because its old value would be lost: work on a copy. A tensor that an earlier operation saved for backward may be
written, but then backward raises an error: the version counter of the tensor shows it. Neither error is lost in a
scripted or compiled function; the compiled one raises the second at the first call. `x = x + y` has none of these
effects.

Two things differ from eager. TorchScript compiles `x **= 2` to `x = x ** 2`, which leaves the caller's tensor as it was
(and `x %= y` to `fmod`, whose sign is that of `x`); no report of either was found. A compiled `augment` writes into
`x`, but before torch 2.15 its gradient with respect to `y` cannot be computed: backward raises an error. For both,
return a new tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from zoo.arguments import want_tensors
from zoo.case import Case
from zoo.error_input import ErrorInput
from zoo.expect import Expect
from zoo.family import Family
from zoo.scale import Scale
from zoo.spec import Spec


def _check(function: str, x: Tensor, y: Tensor) -> None:
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        want_tensors(function, x=x, y=y)
    if x.shape != y.shape:
        raise ValueError(f"{function}: y must have the shape of x, {list(x.shape)}, got {list(y.shape)}")
    if not x.is_floating_point() or x.dtype != y.dtype:
        raise TypeError(f"{function}: x and y must have one floating dtype, got {x.dtype} and {y.dtype}")


def augment_copy(x: Tensor, y: Tensor) -> Tensor:
    """Return (((x + y) y − y) / 2)², computed in the memory of one copy of `x`.

    Args:
        x: any shape, floating.
        y: shape and dtype of `x`.

    Returns:
        A new tensor with shape and dtype of `x`, also under autocast. Gradients flow to `x` and `y`.

    Raises:
        ValueError: the shapes differ.
        TypeError: an argument is not a tensor, or the dtypes differ or are not floating.

    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> augment_copy(x, torch.tensor([3.0, 4.0])).tolist()
    [20.25, 100.0]
    """
    _check("augment_copy", x, y)
    z = x.clone()
    z += y
    z *= y
    z -= y
    z /= 2
    z **= 2
    return z


def augment(x: Tensor, y: Tensor) -> Tensor:
    """Write (((x + y) y − y) / 2)² into `x`, and return `x`.

    Args:
        x: any shape, floating; after the call it holds the result.
        y: shape and dtype of `x`.

    Returns:
        `x` itself. If `y` requires grad, then `x` is part of the graph after the call.

    Raises:
        ValueError: the shapes differ.
        TypeError: an argument is not a tensor, or the dtypes differ or are not floating.
        RuntimeError: `x` is a leaf that requires grad (torch says so), unless grad mode is off.

    >>> x = torch.tensor([1.0, 2.0])
    >>> augment(x, torch.tensor([3.0, 4.0])) is x, x.tolist()
    (True, [20.25, 100.0])
    """
    _check("augment", x, y)
    x += y
    x *= y
    x -= y
    x /= 2
    x **= 2
    return x


def _reference(_model: object, x: Tensor, y: Tensor) -> Tensor:
    return 0.25 * (y * (x + y - 1)).square()


def _pair(shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


CASES = (
    Case(name="typical", inputs=lambda g: _pair((4, 6), g)),
    Case(name="one-number", inputs=lambda g: _pair((), g)),
    Case(name="empty", inputs=lambda g: _pair((0, 3), g)),
    Case(name="extreme", inputs=lambda g: tuple(x * 2.0**k for x, k in zip(_pair((8,), g), (9, -6), strict=True))),
    Case(
        name="non-contiguous",
        inputs=lambda g: (torch.randn(6, 8, generator=g).t()[::2], torch.randn(4, 12, generator=g)[:, ::2]),
    ),
)


def _scale(model: Callable[[Tensor, Tensor], Tensor], working: int) -> Scale:
    return Scale(
        size_name="numbers",
        sizes=(2**10, 2**14, 2**17, 2**20),
        working=working,
        working_on_cuda=2**26,
        build=lambda _: model,
        inputs=lambda n, g: _pair((n,), g),
    )


ON_COPY = Spec(
    name="in_place_on_copy",
    summary="augmented assignments on a copy of the input",
    source="Effective PyTorch, overloaded operators",
    formula="z = x; z += y; z *= y; z −= y; z /= 2; z **= 2",
    shapes="(...), (...) → (...)",
    build=lambda: augment_copy,
    cases=CASES,
    error_inputs=(
        ErrorInput(
            name="two-shapes",
            inputs=lambda _: (torch.ones(4, 6), torch.ones(6)),
            error=ValueError,
            match="y must have the shape of x",
        ),
        ErrorInput(
            name="integers",
            inputs=lambda _: (torch.ones(4, 6, dtype=torch.int64), torch.ones(4, 6, dtype=torch.int64)),
            error=TypeError,
            match="x and y must have one floating dtype",
        ),
    ),
    dtypes="input",
    twice_differentiable=True,
    vmappable=True,
    one_graph=True,
    float32_accurate=("output", "gradient of x", "gradient of y"),
    reference=_reference,
    family=Family(sizes={"rows": (1, 9), "n": (1, 17)}, inputs=lambda rows, n, g: _pair((rows, n), g)),
    scale=_scale(augment_copy, 2**18),
)

ON_INPUT = replace(
    ON_COPY,
    name="in_place_on_input",
    summary="augmented assignments on the input itself",
    formula="x += y; x *= y; x −= y; x /= 2; x **= 2",
    build=lambda: augment,
    differentiable=False,
    twice_differentiable=False,
    vmappable=False,
    mutates=("x",),
    float32_accurate=("output",),
    scale=_scale(augment, 2**21),
    expectations=(
        Expect(
            outcome="FAIL",
            modes=("scripted",),
            torch=">=2.4",
            gate="norm",
            tensor="x after",
            reason="TorchScript compiles x **= 2 to x = x ** 2, so x keeps what it held before",
        ),
    ),
)
