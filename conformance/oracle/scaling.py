"""Chooses the scale of the cotangents under float16, as a GradScaler does: gradients neither vanish nor overflow.

The scale of a case follows from its first draw, and a further draw may have larger gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

COTANGENT = 4.0  # random cotangents are hardly ever larger
HEADROOM = 2.0**12  # the largest scaled gradient, well inside float16's range of 2^16
LEAST = 2.0**-10
LARGEST = 2.0**16  # no number of float16 is larger
LARGER = 4.0  # how many times as large the gradients of a further draw may be


def scale_for(tensors: Mapping[str, torch.Tensor | None]) -> float:
    """The largest power of two with which the scaled gradients stay within `HEADROOM`, but at least `LEAST`.

    Args:
        tensors: what the oracle returned.
    """
    largest = COTANGENT
    for name, tensor in tensors.items():
        if "gradient of" in name and tensor is not None and tensor.numel():
            largest = max(largest, float(tensor.abs().nan_to_num(0.0, posinf=0.0).amax()))
    return max(LEAST, float(2.0 ** math.floor(math.log2(HEADROOM / largest))))


@dataclass(frozen=True)
class Scale:
    """The scale of the cotangents, and the draws for which it will do.

    Attributes:
        factor: a power of two.
        inner: the largest gradient inside the model that float16 may have to hold.
    """

    factor: float
    inner: float

    def fits(self, tensors: Mapping[str, torch.Tensor | None], inner: float) -> bool:
        """Whether the gradients of a further draw stay well inside float16's range.

        Args:
            tensors: what the oracle returned.
            inner: the largest gradient inside the model.
        """
        return inner <= self.inner and self.factor <= LARGER * scale_for(tensors)
