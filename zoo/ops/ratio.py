"""Division by a number that may have underflowed to zero: x·y / y, and log y, with a lower bound (floor) on y.

Source: "Effective PyTorch", on numerical stability, and articles on automatic mixed precision. If y is below the
smallest number of its dtype, it becomes zero: x·y / y is 0 / 0 = NaN, and log y is -inf. A floor prevents both if
the dtype can represent it: 1e-8 is zero in float16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from zoo.arguments import want_floating, want_numbers
from zoo.case import Case
from zoo.error_input import ErrorInput
from zoo.family import Family
from zoo.scale import Scale
from zoo.shared_expectations import BEYOND_FLOAT16
from zoo.spec import Spec


def ratio_naive(x: Tensor, y: Tensor) -> Tensor:
    """Compute x·y / y as written: x, or NaN where `y` or the product has underflowed to zero.

    Args:
        x: any shape, floating.
        y: shape and dtype of `x`.

    Returns:
        A tensor with the shape and dtype of `x`.

    Raises:
        TypeError: an argument is no tensor, or the dtypes differ or are not floating.
        ValueError: the shapes differ.

    >>> ratio_naive(torch.tensor([3.0, 3.0]), torch.tensor([0.5, 1e-46]))
    tensor([3., nan])
    """
    _check("ratio_naive", x, y)
    return x * y / y


def ratio_safe(x: Tensor, y: Tensor, floor: float) -> Tensor:
    """Compute x·y / y, but x·|y| / floor where |y| is below the floor; values and gradients are finite.

    Args:
        x: any shape, floating.
        y: shape and dtype of `x`.
        floor: the smallest divisor, a normal number of that dtype. Gradients of `y` are at most |x| / floor.

    Returns:
        A tensor with the shape and dtype of `x`.

    Raises:
        TypeError: `x` or `y` is no tensor, the dtypes differ or are not floating, or `floor` is no number.
        ValueError: the shapes differ, or the floor is not a normal number of the dtype of `y`.

    >>> ratio_safe(torch.tensor([3.0, 3.0]), torch.tensor([0.5, 1e-46]), floor=1e-6)
    tensor([3., 0.])
    """
    _check("ratio_safe", x, y)
    _check_floor("ratio_safe", y, floor)
    return x * (y.abs() / floor).clamp(max=1.0)  # y cancels at or above the floor, so there is no division by y


def log_clamped(y: Tensor, floor: float) -> Tensor:
    """Compute log max(y, floor); where `y` is below the floor, the gradient is zero.

    Args:
        y: any shape, floating.
        floor: the smallest argument of the logarithm, a normal number of the dtype of `y`.

    Returns:
        A tensor with the shape and dtype of `y`; with autocast on CUDA, in float32 at least.

    Raises:
        TypeError: `y` is no tensor or does not hold floating-point numbers, or `floor` is no number.
        ValueError: the floor is not a normal number of the dtype of `y`.

    >>> log_clamped(torch.tensor([1.0, 0.0]), floor=1e-6)
    tensor([  0.0000, -13.8155])
    """
    want_floating("log_clamped", "y", y)
    _check_floor("log_clamped", y, floor)
    return y.clamp(min=floor).log()


def _check(name: str, x: Tensor, y: Tensor) -> None:
    want_floating(name, "x", x)
    want_floating(name, "y", y)
    if x.dtype != y.dtype:
        raise TypeError(f"{name}: y must have the dtype of x, {x.dtype}, got {y.dtype}")
    if x.shape != y.shape:
        raise ValueError(f"{name}: y must have the shape of x, {list(x.shape)}, got {list(y.shape)}")


def _check_floor(name: str, y: Tensor, floor: float) -> None:
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        want_numbers(name, floor=floor)
    smallest = 2.0**-126  # for float32 and bfloat16; TorchScript has no torch.finfo
    if y.dtype == torch.float16:
        smallest = 2.0**-14
    elif y.dtype == torch.float64:
        smallest = 2.0**-1022
    if not floor >= smallest:
        raise ValueError(f"{name}: floor must be at least {smallest}, the smallest normal number of y, got {floor}")


FLOOR = 2.0**-10  # for the cases


def _naive_reference(_model: object, x: Tensor, y: Tensor) -> Tensor:
    return x.where(y != 0, torch.nan)


def _safe_reference(_model: object, x: Tensor, y: Tensor, floor: float) -> Tensor:
    return x * y.abs() / torch.maximum(y.abs(), torch.full_like(y, floor))


def _log_reference(_model: object, y: Tensor, floor: float) -> Tensor:
    """Use log m = 2 atanh((m - 1) / (m + 1))."""
    floored = torch.where(y > floor, y, floor)
    return 2 * torch.atanh((floored - 1) / (floored + 1))


def _pair(shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw dividends, and divisors of either sign with absolute values between 1/4 and 4."""
    signs = torch.randint(2, shape, generator=generator) * 2 - 1
    sizes = torch.exp2(4 * torch.rand(shape, generator=generator) - 2)
    return torch.randn(shape, generator=generator), signs * sizes


def _strided(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x, y = _pair((6, 8), generator)
    return x.t(), y.t()


def _vanished(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw ordinary divisors, and among them zeros and divisors at a quarter of the floor."""
    x, y = _pair((6, 4), generator)
    y[::2, 0], y[:, 1] = 0, FLOOR / 4
    return x, y


_PAIRS: dict[str, Callable[[torch.Generator], tuple[Tensor, Tensor]]] = {
    "typical": partial(_pair, (6, 4)),
    "one-row": partial(_pair, (1, 8)),
    "empty": partial(_pair, (0, 4)),
    "non-contiguous": _strided,
    "vanished": _vanished,
}


def _with_floor(
    pair: Callable[[torch.Generator], tuple[Tensor, Tensor]],
) -> Callable[..., tuple[Tensor, Tensor, float]]:
    return lambda generator: (*pair(generator), FLOOR)


def _size_and_floor(pair: Callable[[torch.Generator], tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, float]]:
    return lambda generator: (pair(generator)[1].abs(), FLOOR)


def _scale(model: Callable[..., Tensor], inputs: Callable[[int, torch.Generator], tuple[Any, ...]]) -> Scale:
    return Scale(
        size_name="numbers",
        sizes=(2**10, 2**14, 2**17, 2**20),
        working=2**19,
        working_on_cuda=2**26,
        build=lambda _: model,
        inputs=inputs,
    )


def _errors(*floor: float) -> tuple[ErrorInput, ...]:
    """Return what all functions of x and y refuse."""
    return (
        ErrorInput(
            name="shapes-differ",  # torch would add an axis
            inputs=lambda g: (torch.randn(6, 5, generator=g), torch.randn(5, generator=g), *floor),
            error=ValueError,
            match="y must have the shape of x",
        ),
        ErrorInput(
            name="integers",
            inputs=lambda _: (torch.ones(6, dtype=torch.int64), torch.ones(6, dtype=torch.int64), *floor),
            error=TypeError,
            match="floating dtype",
        ),
    )


def _floor_of_zero(tensors: int) -> ErrorInput:
    return ErrorInput(
        name="floor-of-zero",
        inputs=lambda g: (*torch.randn(tensors, 6, generator=g).abs(), 0.0),
        error=ValueError,
        match="floor must be at least",
    )


# There is no case with a divisor that has vanished: there the naive form is wrong.
NAIVE = Spec(
    name="ratio_naive",
    summary="`x·y / y` as written, NaN where y has vanished",
    source="Effective PyTorch, numerical stability; articles on automatic mixed precision",
    formula="x·y / y",
    shapes="(…), (…) → (…)",
    build=lambda: ratio_naive,
    cases=tuple(Case(name=name, inputs=pair) for name, pair in _PAIRS.items() if name != "vanished"),
    error_inputs=_errors(),
    dtypes="input",
    one_graph=True,
    float32_accurate=("output", "gradient of x", "gradient of y"),
    reference=_naive_reference,
    family=Family(sizes={"rows": (1, 9), "n": (1, 17)}, inputs=lambda rows, n, g: _pair((rows, n), g)),
    scale=_scale(ratio_naive, lambda n, g: _pair((n,), g)),
)
SAFE = replace(
    NAIVE,
    name="ratio_safe",
    summary="`x·y / y` with a lower bound on the divisor",
    formula="x·|y| / max(|y|, floor)",
    build=lambda: ratio_safe,
    cases=tuple(Case(name=name, inputs=_with_floor(pair)) for name, pair in _PAIRS.items()),
    error_inputs=(*_errors(FLOOR), _floor_of_zero(2)),
    reference=_safe_reference,
    family=Family(sizes={"rows": (1, 9), "n": (1, 17)}, inputs=lambda rows, n, g: (*_pair((rows, n), g), FLOOR)),
    scale=_scale(ratio_safe, lambda n, g: (*_pair((n,), g), FLOOR)),
)
LOG = replace(
    NAIVE,
    name="log_clamped",
    summary="logarithm with a lower bound on its argument",
    formula="log max(y, floor)",
    shapes="(…) → (…)",
    build=lambda: log_clamped,
    family=Family(
        sizes={"rows": (1, 9), "n": (1, 17)}, inputs=lambda rows, n, g: (_pair((rows, n), g)[1].abs(), FLOOR)
    ),
    scale=_scale(log_clamped, lambda n, g: (_pair((n,), g)[1].abs(), FLOOR)),
    cases=tuple(Case(name=name, inputs=_size_and_floor(pair)) for name, pair in _PAIRS.items()),
    error_inputs=(
        ErrorInput(
            name="integers",
            inputs=lambda _: (torch.ones(6, dtype=torch.int64), FLOOR),
            error=TypeError,
            match="floating dtype",
        ),
        _floor_of_zero(1),
    ),
    twice_differentiable=True,
    float32_accurate=("output", "gradient of y", "second gradient of y"),
    reference=_log_reference,
    expectations=(replace(BEYOND_FLOAT16, modes=("scripted",), tensor="second gradient of y", case="vanished"),),
)
