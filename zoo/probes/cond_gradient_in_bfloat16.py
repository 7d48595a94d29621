"""`torch.cond` computes gradients in bfloat16 although autocast asks for float16.

The output has the dtype float16, and so have the products inside. The backward of the branch runs with the default
dtype of autocast on the CPU. There is no error or warning: the gradient has the dtype that it should have, and the
errors of bfloat16.

Instead: use a Python `if` where nothing is traced, or `torch.where`.
"""

import torch
from torch import Tensor

from zoo.probe import Probe, Seen, Unavailable

SYMPTOM = "the gradient is rounded to bfloat16"
FINE = 1 + 2**-9  # float16 represents it; bfloat16 rounds it to 1


def observe(device: str) -> str:
    """Differentiate a product in a branch under float16 autocast; return SYMPTOM if the gradient is rounded."""
    if not hasattr(torch, "cond"):
        raise Unavailable("torch.cond")
    weight = torch.full((4, 4), FINE, device=device)
    x = torch.ones(4, 4, device=device, requires_grad=True)

    def product(y: Tensor) -> Tensor:
        return y @ weight

    def negative(y: Tensor) -> Tensor:
        return -y @ weight

    with torch.autocast(device, dtype=torch.float16):
        out = torch.cond(torch.tensor(True, device=device), product, negative, (x,))
    cotangent = torch.eye(4, device=device, dtype=out.dtype)
    (gradient,) = torch.autograd.grad(out, x, cotangent, allow_unused=True)
    if gradient is None:
        raise Unavailable("gradients of torch.cond")
    return SYMPTOM if (gradient - weight).abs().max() > (FINE - 1) / 2 else ""


PROBE = Probe(
    name="cond_gradient_in_bfloat16",
    summary="gradients of torch.cond under float16 autocast",
    source="no report found",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.8", checked=("2.6.0", "2.7.1", "2.8.0", "2.13.0", "2.14.1"))},
    observe=observe,
)
