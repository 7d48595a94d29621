"""Saved tensors kept as bfloat16: half the memory of float32, and gradients rounded like bfloat16.

The forward pass is exact. Each saved number carries a relative error of at most 2^-8, about 2^-9 in the mean,
into the gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.memory.replaced import Replaced

BYTES = torch.bfloat16.itemsize


def compress() -> Replaced:
    """Context manager under which float32 and float64 tensors saved for backward are held as bfloat16.

    As they are stay integers, booleans, complex numbers, dtypes of two bytes or fewer, and parameters: leaves
    that require a gradient live anyway, so a copy would cost memory and precision. What the caller keeps
    alive otherwise, such as the batch given to a network, is copied: there nothing is saved.

    Returns:
        The context manager, for the forward pass. Backward runs as ever, also outside of it. It goes around
        compiled code, not into it.

    Raises:
        RuntimeError: in backward, when a tensor held as it is has been changed in place since.

    >>> x = torch.full((2,), 0.1, requires_grad=True)
    >>> with compress():
    ...     y = (x * 2).exp()
    >>> torch.autograd.grad(y.sum(), x)[0].tolist()  # exp(0.2) = 1.2214 rounds to 1.21875
    [2.4375, 2.4375]
    """
    return Replaced("compress", _compressed)


def _compressed(tensor: Tensor) -> Tensor:
    wide = tensor.is_floating_point() and tensor.element_size() > BYTES
    return tensor.to(torch.bfloat16) if wide else tensor
