"""Draws the random numbers of the oracle as float32 does: from one seed, torch draws others in float64."""

from typing import Any

import torch

from conformance.evaluate.custom_ops import OpMode, Unwatched, map_leaves
from conformance.evaluate.inputs import widest

NARROW = {torch.float64: torch.float32, torch.complex128: torch.complex64}
# Ops that return what they draw, and ops that write it into their first argument.
RETURNED = frozenset({"rand", "randn", "rand_like", "randn_like", "bernoulli", "multinomial"})
WRITTEN = frozenset({"uniform_", "normal_", "bernoulli_", "exponential_"})
STANDARD: tuple[Any, ...] = (0.0, 1.0)  # the ends of the interval, or mean and standard deviation


class NarrowDraws(OpMode):
    """While active, what an op draws at random is drawn in float32 and widened.

    Means, standard deviations, rates and the ends of intervals are applied in float64. Dropout is the same in both
    dtypes, so it stays as it is.
    """

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op; if it draws floating numbers, draw narrower ones."""
        name = func.overloadpacket.__name__
        if "out" in kwargs:
            return func(*args, **kwargs)
        with Unwatched():  # a draw does not round; what is computed with it does
            drawn = _draw(name, func, args, kwargs)
        if drawn is None:
            return func(*args, **kwargs)
        return args[0].copy_(drawn) if name in WRITTEN else drawn


def _draw(name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """What an op draws; None if it draws nothing that depends on the dtype."""
    if name in WRITTEN and args[0].dtype in NARROW:
        return _write(name, *args, **kwargs)
    if name == "normal":
        return _normal(*args, **kwargs)
    if name not in RETURNED:
        return None
    if name in ("rand", "randn"):
        kwargs = {**kwargs, "dtype": kwargs.get("dtype") or torch.get_default_dtype()}
    drawn: torch.Tensor = func(*map_leaves(_narrow, args), **map_leaves(_narrow, kwargs))
    return drawn.to(widest(drawn.dtype))


def _write(name: str, target: torch.Tensor, *numbers: Any, generator: torch.Generator | None = None) -> torch.Tensor:
    """What an op that draws in place writes into a target. The order of the draws depends on its strides."""
    draw = torch.empty_strided(target.shape, target.stride(), dtype=NARROW[target.dtype], device=target.device)
    if name == "bernoulli_":
        return draw.bernoulli_(*map_leaves(_narrow, numbers), generator=generator).to(target.dtype)
    getattr(draw, name)(generator=generator)
    if name == "exponential_":
        return draw.to(target.dtype) / (numbers[0] if numbers else 1.0)
    start, other = (*numbers, *STANDARD[len(numbers) :])
    scale = other - start if name == "uniform_" else other
    drawn: torch.Tensor = draw.to(target.dtype) * scale + start
    return drawn


def _normal(mean: Any, deviation: Any = 1.0, size: Any = None, **options: Any) -> torch.Tensor:
    """`torch.normal`, whose mean, standard deviation or both may be tensors."""
    tensors = [given for given in (mean, deviation) if isinstance(given, torch.Tensor)]
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors)) if tensors else size
    target = torch.empty(shape, dtype=torch.float64)
    return _write("normal_", target, mean, deviation, generator=options.get("generator"))


def _narrow(leaf: Any) -> Any:
    if isinstance(leaf, torch.dtype):
        return NARROW.get(leaf, leaf)
    return leaf.to(NARROW[leaf.dtype]) if isinstance(leaf, torch.Tensor) and leaf.dtype in NARROW else leaf
