"""A declared convention: a tensor whose gradient is, by design, not the derivative of the outputs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zoo.case import SpecError


@dataclass(frozen=True, kw_only=True)
class Convention:
    """A gradient that finite differences would reject although it is as its author wants it.

    Only the named tensor is left out of the comparison with finite differences. All other gradients stay in it.

    Attributes:
        tensor: an input, a parameter or an output, as the report prints it: "x", "embed.weight", "output[1]". A "*"
            stands for any text: "encoder.*". An output that is named may be detached.
        why: one sentence that a reader can check, such as "straight-through estimator".
        rows: indices of the first axis that the convention is about; empty: all of them.
        zero: the gradient there is zero, which the matrix tests.

    >>> padding = Convention(tensor="embed.weight", rows=(0,), zero=True, why="row 0 is padding")
    >>> padding.concerns("embed.weight"), padding.concerns("head.weight"), padding.is_whole
    (True, False, False)
    """

    tensor: str
    why: str
    rows: tuple[int, ...] = ()
    zero: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.tensor, str) or not self.tensor:
            raise SpecError(f"a convention needs the name of a tensor, the text `tensor`, got {self.tensor!r}")
        if not isinstance(self.why, str) or not self.why:
            raise SpecError(f"the convention on {self.tensor!r} needs a reason, the text `why`, got {self.why!r}")
        if not isinstance(self.rows, tuple) or not all(isinstance(row, int) and row >= 0 for row in self.rows):
            raise SpecError(f"convention on {self.tensor!r}: rows must be a tuple of indices, got {self.rows!r}")
        if not isinstance(self.zero, bool):
            raise SpecError(f"convention on {self.tensor!r}: zero must be True or False, got {self.zero!r}")

    @property
    def is_whole(self) -> bool:
        """Whether it takes the whole tensor out of the comparison with finite differences."""
        return not self.rows and not self.zero

    def concerns(self, name: str) -> bool:
        """Return whether a tensor of this name is meant.

        Raises:
            TypeError: `name` is not a str.
        """
        if not isinstance(name, str):
            raise TypeError(f"Convention.concerns: name must be a str, got {type(name).__name__}")
        return re.fullmatch(re.escape(self.tensor).replace(r"\*", ".*"), name) is not None
