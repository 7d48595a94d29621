"""Compares gradients with finite differences, element by element, on both sides of every point.

At a kink, such as a tie of a maximum, the slopes on the two sides differ, and any gradient between them is right. At a
jump, such as that of `round`, each slope is taken beyond the jump.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from conformance.errors import of_model

Forward = Callable[[], dict[str, torch.Tensor]]

STEP = 1e-6  # of an element of size one
RELATIVE, ABSOLUTE = 1e-5, 1e-7  # allowed errors of finite differences; gradcheck allows 100 times more
UNSEEN = 1e-6  # a slope below this part of the output's size is no dependence
MOST_TESTS = 1000  # directions to try in one tensor before giving up
CLEAR = 1000.0  # beside other leaves, one moves the loss by this many times what differences leave unclear, or by less
FOLLOWING = 3.0  # the slope of one leaf, in standard deviations of that in a random direction
TINY = 1e-300  # in place of a zero that divides


@dataclass(frozen=True)
class Mismatch:
    """An element whose gradient lies outside the slopes on its two sides.

    Attributes:
        tensor: name of the input or parameter.
        index: index of the element; a real and an imaginary part have an index of their own.
        analytic: its gradient.
        numeric: the two slopes of the loss, each for the outputs that make it smaller and larger.
    """

    tensor: str
    index: tuple[int, ...]
    analytic: float
    numeric: tuple[float, float]


class Slopes:
    """Finite differences of a model.

    Args:
        forward: runs the model from the same state and returns its floating outputs by name, always the same ones.
        cotangents: the cotangent of each output, which makes a loss of them.
    """

    def __init__(self, forward: Forward, cotangents: dict[str, torch.Tensor]) -> None:
        self._forward = forward
        self._weights = torch.cat([_real(cotangents[name]) for name in cotangents])

    def mismatch(
        self, name: str, leaf: torch.Tensor, gradient: torch.Tensor, *, skipped: torch.Tensor, singly: bool
    ) -> Mismatch | None:
        """Find the first element whose gradient is wrong.

        Args:
            name: name of an input or parameter.
            leaf: the input or parameter, in float64; it is changed and restored.
            gradient: its gradient of the loss.
            skipped: mask of the elements, as `leaf` is shaped, that are not asked.
            singly: test each element on its own; otherwise many at once, and divide those that fail.

        Raises:
            RuntimeError: too many directions fail to find the element.
        """
        analytic = _real(gradient.resolve_conj())
        repeats = 2 if leaf.is_complex() else 1
        asked = (~skipped.flatten()).repeat_interleave(repeats).nonzero().flatten()
        if not len(asked):
            return None
        shape = torch.view_as_real(leaf).shape if leaf.is_complex() else leaf.shape
        for tests, chunk in enumerate(self._failing(leaf, analytic, asked, singly=singly)):
            if tests > MOST_TESTS:
                raise of_model(
                    RuntimeError(f"more than {MOST_TESTS} directions of {name} do not agree with finite differences")
                )
            if len(chunk) == 1:
                direction = self._direction(leaf, chunk)
                (low, high), size = self._bounds(*self._sides({leaf: direction})[:2]), float(direction[chunk[0]])
                index = tuple(int(i) for i in torch.unravel_index(chunk[0], shape))
                return Mismatch(name, index, float(analytic[chunk[0]]), (low / size, high / size))
        return None

    def agree(
        self, outputs: torch.Tensor, gradients: dict[torch.Tensor, torch.Tensor], generator: torch.Generator
    ) -> bool:
        """Whether the gradients of several leaves fit, all moved together in one random direction.

        A leaf on which the loss hangs by much is moved by less, so the error that the loss's slope may have is about
        that of a test of each leaf alone. False also where a kink makes it unclear. `outputs` are what `forward`
        returns, flat. The gradients are used up, because they take as much memory as the directions.
        """
        sizes = _real(outputs.detach()).abs()
        unclear = self._noise(torch.zeros_like(sizes), sizes)
        directions, slope = {}, 0.0
        for leaf in [*gradients]:
            analytic = _real(gradients.pop(leaf).resolve_conj())
            direction = self._along(leaf, analytic, generator)
            parts = analytic * direction
            less = min(1.0, CLEAR * unclear / max(float(parts.norm()), TINY))
            slope += less * float(parts.sum())
            directions[leaf] = direction.mul_(less)
        left, right, noise = self._sides(directions)
        bent = float((self._weights * (right - left)).norm())  # by a kink; over many outputs, curvature averages out
        return bent <= noise and abs(slope - float((self._weights * (left + right)).sum()) / 2.0) <= noise

    def allow(self, leaf: torch.Tensor, gradient: torch.Tensor, generator: torch.Generator) -> bool:
        """Whether the gradient of a leaf, along one random direction, lies between the slopes on both sides."""
        analytic = _real(gradient.resolve_conj())
        direction = self._along(leaf, analytic, generator)
        left, right, noise = self._sides({leaf: direction})
        low, high = self._bounds(left, right)
        return low - noise <= float((analytic * direction).sum()) <= high + noise

    def _along(self, leaf: torch.Tensor, analytic: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """A random direction. So many elements follow the gradient, or oppose it, that the slope is not near zero."""
        size = _real(leaf.detach()).abs().clamp_min_(1.0).div_(len(analytic) ** 0.5)
        factors, ranks = torch.rand(2, len(size), generator=generator, dtype=torch.float64)
        direction = factors.sub_(0.5).add_(factors.sign().div_(2.0)).mul_(size)
        parts = torch.mul(analytic, direction, out=size)
        following = FOLLOWING * float(parts.norm()) / max(float(parts.abs_().sum()), TINY)
        way = float(torch.randint(2, (), generator=generator)) - 0.5
        along = torch.copysign(direction, torch.mul(analytic, way, out=size), out=size)
        return torch.where(ranks < following, along, direction, out=along)

    def _failing(
        self, leaf: torch.Tensor, analytic: torch.Tensor, asked: torch.Tensor, *, singly: bool
    ) -> Iterator[torch.Tensor]:
        """The sets of elements that fail together, larger ones before their parts."""
        waiting = list(asked.split(1)) if singly else [asked]
        while waiting:
            chunk = waiting.pop(0)
            if not self._agrees(leaf, analytic, chunk):
                yield chunk
                if len(chunk) > 1:
                    waiting = [*chunk.chunk(2), *waiting]

    def _agrees(self, leaf: torch.Tensor, analytic: torch.Tensor, chunk: torch.Tensor) -> bool:
        """Whether the gradient of the chunk's elements fits; False for several elements if a kink makes it unclear."""
        direction = self._direction(leaf, chunk)
        left, right, noise = self._sides({leaf: direction})
        low, high = self._bounds(left, right)
        slope = float((analytic[chunk] * direction[chunk]).sum())  # an infinity elsewhere says nothing of these
        if len(chunk) > 1 and high - low > noise:
            return False
        return low - noise <= slope <= high + noise

    def _direction(self, leaf: torch.Tensor, chunk: torch.Tensor) -> torch.Tensor:
        """Each chosen element, in proportion to its size; of several elements, with random factors."""
        direction = torch.zeros_like(_real(leaf.detach()))
        direction[chunk] = _real(leaf.detach())[chunk].abs().clamp_min(1.0)
        if len(chunk) > 1:
            generator = torch.Generator().manual_seed(len(chunk))
            direction *= torch.rand(len(direction), generator=generator, dtype=torch.float64) + 0.5
            direction /= len(chunk) ** 0.5
        return direction

    def _bounds(self, left: torch.Tensor, right: torch.Tensor) -> tuple[float, float]:
        """The smallest and largest slope of the loss, if each output may take any slope between its two."""
        ends = torch.stack([self._weights * left, self._weights * right])
        return float(ends.amin(0).sum()), float(ends.amax(0).sum())

    def _sides(self, directions: dict[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, float]:
        """The slopes of all outputs on both sides, and the noise of the loss's slope."""
        left, right, size = sides(self._forward, directions)
        return left, right, self._noise(torch.maximum(left.abs(), right.abs()), size)

    def _noise(self, slopes: torch.Tensor, size: torch.Tensor) -> float:
        """By how much the loss's slope may differ from that of finite differences."""
        return 3.0 * float((self._weights * (RELATIVE * slopes + ABSOLUTE * (1.0 + size))).norm())


def sides(
    forward: Forward, directions: dict[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The slopes of all outputs along a direction, on the left and on the right of where the leaves are.

    The direction says for each leaf how fast its elements move; flat, real and imaginary parts apart.

    Returns:
        The slopes left and right, and the absolute values of the outputs; flat, of one length.
    """
    start = {leaf: leaf.detach().clone() for leaf in directions}
    values = []
    try:
        for steps in (-2, -1, 1, 2):
            set_to(start, (_like(_real(at) + steps * STEP * directions[leaf], leaf) for leaf, at in start.items()))
            with torch.no_grad():
                values.append(torch.cat([_real(t.detach()) for t in forward().values()]))
    finally:
        set_to(start, start.values())
    left, right = (values[1] - values[0]) / STEP, (values[3] - values[2]) / STEP
    return left.nan_to_num(0.0, 0.0, 0.0), right.nan_to_num(0.0, 0.0, 0.0), values[1].abs().nan_to_num(0.0, 0.0, 0.0)


def set_to(leaves: Iterable[torch.Tensor], numbers: Iterable[torch.Tensor]) -> None:
    """Give leaves other numbers, in place."""
    with torch.no_grad():
        for leaf, number in zip(leaves, numbers, strict=True):
            leaf.copy_(number)


def differ(one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> bool:
    """Whether slopes and sizes as `sides` gives them differ by more than errors of finite differences."""
    (left, right, size), (left2, right2, _) = one, other
    unclear = RELATIVE * torch.maximum(left.abs(), right.abs()) + ABSOLUTE * (1.0 + size)
    return bool(((left - left2).abs() > unclear).any() or ((right - right2).abs() > unclear).any())


def random_direction(leaf: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A random direction of a leaf, flat, real and imaginary parts apart."""
    return torch.randn(len(_real(leaf.detach())), generator=generator, dtype=torch.float64)


def dependents(forward: Forward, leaves: list[torch.Tensor], generator: torch.Generator) -> dict[str, float]:
    """The outputs that change with some leaves, and their largest slope along a random direction of these.

    An output that only jumps, such as a comparison, does not count.
    """
    left, right, size = sides(forward, {leaf: random_direction(leaf, generator) for leaf in leaves})
    found = {}
    lengths = {name: len(_real(tensor.detach())) for name, tensor in forward().items()}
    parts = zip(lengths, *(t.split(list(lengths.values())) for t in (left, right, size)), strict=True)
    for name, *(before, after, values) in parts:
        slope = torch.maximum(before.abs(), after.abs())
        if len(slope) and float(slope.amax()) > UNSEEN * float(values.amax()):
            found[name] = float(slope.amax())
    return found


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor in one dimension, real and imaginary parts apart."""
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).reshape(-1)


def _like(flat: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    if leaf.is_complex():
        return torch.view_as_complex(flat.reshape(*leaf.shape, 2))
    return flat.reshape(leaf.shape)
