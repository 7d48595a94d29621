"""Saved tensors moved to the CPU until backward: device memory for the time of two transfers.

torch has `torch.autograd.graph.save_on_cpu` for this. It moves parameters too, which stay on the device all
the same, moves a tensor again for each op that saves it, and of a tensor that is on the CPU already makes no
copy: an output saved so is never freed unless backward runs.
"""

from __future__ import annotations

from zoo.memory.replaced import Replaced


def offload_to_cpu() -> Replaced:
    """Context manager under which tensors saved for backward wait on the CPU; nothing is rounded.

    Parameters stay where they are. For a model on the CPU nothing moves, and no memory is saved.

    Returns:
        The context manager, for the forward pass. Backward runs as ever, also outside of it. It goes around
        compiled code, not into it.

    Raises:
        RuntimeError: in backward, when a tensor that did not move has been changed in place since.

    >>> import torch
    >>> x = torch.full((3,), 2.0, requires_grad=True)
    >>> with offload_to_cpu():
    ...     y = x.square().square()
    >>> torch.autograd.grad(y.sum(), x)
    (tensor([32., 32., 32.]),)
    """
    return Replaced("offload_to_cpu", lambda tensor: tensor.cpu())
