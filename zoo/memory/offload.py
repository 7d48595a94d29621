"""Saved tensors on the CPU until backward: less device memory, for the time of two transfers.

torch has `torch.autograd.graph.save_on_cpu` for this purpose. It has three faults. It also copies parameters, which
stay on the device anyway. It copies a tensor again for each op that saves it. It does not copy a tensor that is
already on the CPU, so a saved output is never freed unless backward runs.
"""

from __future__ import annotations

from zoo.memory.replaced import Replaced


def offload_to_cpu() -> Replaced:
    """Return a context manager that keeps tensors saved for backward on the CPU; nothing is rounded.

    Parameters stay on their device. For a model on the CPU nothing moves, and no memory is saved.

    Returns:
        The context manager, for the forward pass. Backward may run inside or outside of it. Enter it around
        compiled code, not inside.

    Raises:
        RuntimeError: in backward, if a tensor that was not copied was changed in place after forward.

    >>> import torch
    >>> x = torch.full((3,), 2.0, requires_grad=True)
    >>> with offload_to_cpu():
    ...     y = x.square().square()
    >>> torch.autograd.grad(y.sum(), x)
    (tensor([32., 32., 32.]),)
    """
    return Replaced("offload_to_cpu", lambda tensor: tensor.cpu())
