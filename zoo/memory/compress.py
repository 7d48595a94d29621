"""Saved tensors in bfloat16: half the memory of float32, and gradients with the rounding errors of bfloat16.

The forward pass is exact. Each saved number has a relative error of at most 2^-8, about 2^-9 on average, when
backward uses it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.memory.replaced import Replaced

BYTES = torch.bfloat16.itemsize


def compress() -> Replaced:
    """Return a context manager that stores float32 and float64 tensors saved for backward as bfloat16.

    It does not convert integers, booleans, complex numbers, dtypes of two bytes or fewer, and parameters. Leaves
    that require a gradient exist anyway, so a copy would cost memory and precision. Other tensors that the caller
    keeps, such as the batch given to a network, are copied; for these it saves no memory.

    Returns:
        The context manager, for the forward pass. Backward may run inside or outside of it. Enter it around
        compiled code, not inside.

    Raises:
        RuntimeError: in backward, if a tensor that is stored without a copy was changed in place after forward.

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
