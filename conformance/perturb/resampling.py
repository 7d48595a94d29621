"""Computes interpolation from its coefficients, so that the roundings inside torch's kernels can be perturbed.

A kernel computes the place in the input that each output element comes from, and from it the weights of the elements
around, all in float32. Torch dispatches the kernel as one op, so a mode sees only its operands and its result. An error
of a place grows with the place, and no perturbation of operands shows it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.evaluate.custom_ops import by_name
from conformance.perturb.ops import rule_of

Noise = Callable[[torch.Tensor], torch.Tensor]

NEAREST = ("nearest", "nearest-exact")
SUPPORT = {"linear-aa": 1.0, "cubic-aa": 2.0, "lanczos-aa": 3.0}  # how far a kernel reaches, in output pixels
BEND = {"cubic": -0.75, "cubic-aa": -0.5}  # the parameter of the cubic kernel


@dataclass(frozen=True)
class Axis:
    """One axis of an interpolation.

    Attributes:
        length, size: number of elements before and after.
        scale: the factor that the caller gave; None if it gave a size.
        align: the centres of the corner elements stay where they are.
    """

    length: int
    size: int
    scale: float | None = None
    align: bool = False

    def step(self, dtype: torch.dtype) -> torch.Tensor:
        """How far apart in the input two neighbours of the output lie, computed in some precision."""
        if self.align:
            return torch.tensor(self.length - 1.0 if self.size > 1 else 0.0, dtype=dtype) / max(self.size - 1, 1)
        if self.scale:
            return (1.0 / torch.tensor(self.scale, dtype=torch.float64)).to(dtype)
        return torch.tensor(self.length, dtype=dtype) / self.size

    def step_is_rounded(self) -> bool:
        """Whether float32 rounds the step. Then it rounds places too, and may agree with float64 by chance only."""
        step = float(self.step(torch.float32))
        if self.align:
            return self.size > 1 and step * (self.size - 1) != self.length - 1
        return step * self.scale != 1.0 if self.scale else step * self.size != self.length

    def is_unsettled(self, kernel: str) -> torch.Tensor:
        """Boolean mask of the output elements for which float32 takes another input element than float64.

        A kernel multiplies by the step, or divides by the scale.
        """
        exact, single = (self.places(kernel, dtype).floor() for dtype in (torch.float64, torch.float32))
        half = 0.5 if kernel == "nearest-exact" else 0.0
        divided = (torch.arange(self.size, dtype=torch.float32) + half) / (self.scale or self.size / self.length)
        return (single != exact) | (divided.floor() != exact)

    def places(self, kernel: str, dtype: torch.dtype) -> torch.Tensor:
        """Where in the input each element of the output lies, computed in some precision."""
        step, index = self.step(dtype), torch.arange(self.size, dtype=dtype)
        if kernel == "nearest":
            return index * step
        if kernel == "nearest-exact" or kernel in SUPPORT:
            return (index + 0.5) * step
        return index * step if self.align else (index + 0.5) * step - 0.5


def resample(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], place: Noise, weight: Noise) -> torch.Tensor:
    """What a resampling op returns, with perturbed places and weights.

    Args:
        func: the op, which has a `kernel` in the table of ops.
        args: its arguments by position.
        kwargs: its arguments by name.
        place: perturbs by float32's rounding: the places in the input of a row of output elements, float64 of shape
            (output size,), and the terms of their weights, float64 of shape (output size, input size).
        weight: perturbs the weights of one axis: float64 of shape (output size, input size).
    """
    axes = _axes(func, args, kwargs)
    return _apply(rule_of(func, kwargs).kernel, axes, args[0], place, weight, backward=_is_backward(func, args, kwargs))


def _apply(  # noqa: PLR0913 -- the arguments of two
    kernel: str, axes: Sequence[Axis], values: torch.Tensor, place: Noise, weight: Noise, *, backward: bool
) -> torch.Tensor:
    for k, axis in enumerate(axes, start=2):
        matrix = weight(coefficients(kernel, axis, place))
        values = (values.movedim(k, -1) @ (matrix if backward else matrix.T)).movedim(-1, k)
    return values


def _is_backward(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return "input_size" in by_name(func, args, kwargs)


def _axes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Axis]:
    """The axes of a resampling op.

    Some kernels ignore the scale of an axis that keeps its length, or doubles it. Which ones do so depends on the op,
    on the order in memory and on whether it is the backward, so the kernel is asked: it resamples numbers that rise.
    """
    given, backward = by_name(func, args, kwargs), _is_backward(func, args, kwargs)
    outer = given["output_size"]
    inner = given["input_size"][2:] if backward else args[0].shape[2:]
    scales = [value for key, value in given.items() if key.startswith("scales")]
    scales += [None] * (len(outer) - len(scales))
    align = bool(given.get("align_corners"))
    axes = [Axis(*lengths, align) for lengths in zip(inner, outer, scales, strict=True)]
    kernel = rule_of(func, kwargs).kernel
    kept = [1, 2] if kernel == "nearest" else [1]
    without = [
        replace(axis, scale=None if axis.size in (axis.length * k for k in kept) else axis.scale) for axis in axes
    ]
    if axes == without:
        return axes
    rising = torch.empty_like(args[0]).copy_(torch.arange(args[0].numel()).view(args[0].shape)).div_(args[0].numel())
    asked = func(rising, *args[1:], **kwargs)

    def gap(axes: list[Axis]) -> float:
        return float((_apply(kernel, axes, rising, torch.clone, torch.clone, backward=backward) - asked).norm())

    return min(without, axes, key=gap)


def coefficients(kernel: str, axis: Axis, noise: Noise) -> torch.Tensor:
    """The weights of one axis: float64 of shape (size, length). `noise` perturbs what float32 rounds."""
    exact, single = (axis.places(kernel, dtype) for dtype in (torch.float64, torch.float32))
    steps = torch.maximum(exact.abs() + 0.5, torch.ones_like(exact))  # a place is a difference: its terms are larger
    places = exact
    if axis.step_is_rounded() or not torch.equal(single.double(), exact):
        places = exact + noise(steps) - steps
    if kernel in NEAREST:  # float32 is no more than a rounding off, so most borders stay where they are
        places = torch.where(axis.is_unsettled(kernel), places, exact)
    weights = _smooth(kernel, axis, places) if kernel in SUPPORT else _weights_at(kernel, axis, places)
    if kernel in BEND:  # sums of terms of about one, so weights near zero are no more exact than others
        weights = torch.where(weights == 0.0, 0.0, weights + noise(torch.ones_like(weights)) - 1.0)
    return weights


def _weights_at(kernel: str, axis: Axis, places: torch.Tensor) -> torch.Tensor:
    """Weights of the kernels that take one, two or four elements around a place."""
    last = axis.length - 1
    if kernel == "linear" and not axis.align:
        places = places.clamp(min=0.0)
    base = places.floor()
    if kernel == "linear":
        base = base.clamp(0, last)
    part = places - base
    match kernel:
        case "linear":
            part = part.clamp(0.0, 1.0)
            taps = {0: 1.0 - part, 1: part}
        case "cubic":
            taps = {k: _cubic((part - k).abs(), BEND[kernel]) for k in (-1, 0, 1, 2)}
        case _:
            taps = {0: torch.ones_like(part)}
    weights = torch.zeros(axis.size, axis.length, dtype=torch.float64)
    for offset, share in taps.items():
        index = (base.long() + offset).clamp(0, last)
        weights.scatter_add_(1, index[:, None], share[:, None])
    return weights


def _smooth(kernel: str, axis: Axis, places: torch.Tensor) -> torch.Tensor:
    """Weights of the kernels that widen with the step, against aliasing, and add up to one."""
    centres = torch.arange(axis.length, dtype=torch.float64) + 0.5
    far = (centres - places[:, None]).abs() / axis.step(torch.float64).clamp(min=1.0)
    match kernel:
        case "linear-aa":
            weights = (1.0 - far).clamp(min=0.0)
        case "cubic-aa":
            weights = _cubic(far, BEND[kernel])
        case _:
            weights = torch.where(far < SUPPORT[kernel], torch.sinc(far) * torch.sinc(far / SUPPORT[kernel]), 0.0)
    return weights / weights.sum(1, keepdim=True)


def _cubic(far: torch.Tensor, bend: float) -> torch.Tensor:
    """The cubic convolution kernel, of distances in pixels."""
    near = ((bend + 2.0) * far - (bend + 3.0)) * far * far + 1.0
    rest = (((far - 5.0) * far + 8.0) * far - 4.0) * bend
    return torch.where(far <= 1.0, near, torch.where(far < 2.0, rest, 0.0))  # noqa: PLR2004 -- its support
