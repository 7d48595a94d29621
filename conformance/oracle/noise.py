"""Draws the random numbers of one perturbed run: fresh ones, and in a large model the same ones at other places.

Drawing a number takes longer than the product that it perturbs. So a run draws `POOL` numbers at most. When these are
used up, every further use takes a window of them at a random place and with a random sign. Within a window the numbers
are independent. Two windows may overlap, but because of their signs their numbers are uncorrelated. The variance of a
sum over noise therefore is what it would be with fresh numbers. No window is longer than `blocks.BLOCK`, so a large
tensor takes many.
"""

from __future__ import annotations

import torch

POOL = 2**18  # numbers; as many as eight blocks
AHEAD = 2**10  # numbers to draw at once, because a call takes as long as hundreds of them
PLACES = 2**8  # random places to draw at once
FAR = 2**62


class Noise:
    """The noise of one run.

    Args:
        generator: the source of all random numbers.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._pool = torch.empty(0, dtype=torch.float64)
        self._drawn = self._used = 0
        self._places: list[int] = []

    def window(self, count: int) -> tuple[torch.Tensor, float]:
        """Numbers uniform in [−1, 1], and a sign to multiply them with.

        Args:
            count: how many; `blocks.BLOCK` at most.

        Returns:
            A view of the pool, float64 of shape (count,), and 1 or −1.
        """
        start, end = self._used, self._used + count
        if end <= POOL:
            self._draw(end)
            self._used = end
            return self._pool[start:end], 1.0
        self._draw(POOL)
        if not self._places:
            self._places = torch.randint(FAR, (PLACES,), generator=self._generator).tolist()
        place, sign = divmod(self._places.pop(), 2)
        start = place % (POOL - count + 1)
        return self._pool[start : start + count], 1.0 - 2.0 * sign

    def factors(self, count: int, down: float, up: float) -> torch.Tensor:
        """Factors uniform in [1 − down, 1 + up]: float64 of shape (count,)."""
        numbers, sign = self.window(count)
        return torch.rsub(numbers, 1.0 + (up - down) / 2.0, alpha=-sign * (up + down) / 2.0)

    def _draw(self, wanted: int) -> None:
        """Draw fresh numbers until there are as many as wanted, and some more."""
        if wanted <= self._drawn:
            return
        if not self._drawn:
            self._pool = torch.empty(POOL, dtype=torch.float64)
        end = min(POOL, max(wanted, self._drawn + AHEAD))
        self._pool[self._drawn : end].uniform_(-1.0, 1.0, generator=self._generator)
        self._drawn = end
