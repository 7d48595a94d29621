"""Parameters whose gradients are equal share one `.grad`, if Inductor compiles their backward.

In `x + (b + c)` both biases have the same gradient. Inductor computes it once and returns that tensor for both, and
each bias takes it for its own. The next backward adds to it twice: of two equal steps, each bias holds three times the
gradient of one instead of twice. So gradient accumulation is wrong, without an error.

Instead: clone gradients in a hook of one of them (`c.register_hook(torch.clone)`), or use a version without the fault.
"""

import torch
from torch import Tensor

from zoo.probe import Probe, Seen

SYMPTOM = "the second backward adds to both gradients twice"


def observe(device: str) -> str:
    """Go back twice through a compiled sum of two biases; return SYMPTOM if they accumulate wrong gradients."""

    def add(x: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return x + (b + c)

    b, c = (torch.ones(3, device=device, requires_grad=True) for _ in range(2))
    compiled, x = torch.compile(add), torch.ones(4, 3, device=device)
    for _ in range(2):
        compiled(x, b, c).backward(torch.ones_like(x))
    wanted = torch.full_like(b, 8.0)
    return "" if b.grad is not None and torch.equal(b.grad, wanted) else SYMPTOM


PROBE = Probe(
    name="equal_gradients_share_memory",
    summary="gradient accumulation of two parameters with the same gradient, compiled",
    source="no report found",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.4", checked=("2.4.1", "2.7.1", "2.13.0", "2.15.0"))},
    observe=observe,
)
