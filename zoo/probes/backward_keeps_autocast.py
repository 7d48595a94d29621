"""Compiled code computes the gradients of a region in low precision even if autocast is off in that region.

`torch.compile` traces the backward pass under the autocast state of the call, not of the region. The output and the
gradient have dtype float32, but the values of the gradient have bfloat16's errors. Eager is right.

Instead: set `torch._functorch.config.backward_pass_autocast = "off"` if this torch has it, or call the compiled
function outside autocast.
"""

import torch
from torch import Tensor

from zoo.probe import EVERY_MINOR, Probe, Seen

SYMPTOM = "the gradient is rounded to bfloat16"
FINE = 1 + 2**-9  # float32 and TF32 represent it; bfloat16 rounds it to 1


def observe(device: str) -> str:
    """Differentiate a compiled product in a region without autocast; return SYMPTOM if the gradient is rounded."""

    def product(x: Tensor, weight: Tensor) -> Tensor:
        with torch.autocast(device, enabled=False):
            return x @ weight

    x, cotangent = torch.full((4, 4), FINE, device=device), torch.eye(4, device=device)
    weight = torch.ones(4, 4, device=device, requires_grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = torch.compile(product, backend="aot_eager")(x, weight)
    (gradient,) = torch.autograd.grad(out, weight, cotangent)
    truth = x.double().t() @ cotangent.double()
    return SYMPTOM if (gradient - truth).abs().max() > (FINE - 1) / 2 else ""


PROBE = Probe(
    name="backward_keeps_autocast",
    summary="gradients of a compiled region in which autocast is off",
    issue="https://github.com/pytorch/pytorch/issues/179804",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.4", checked=EVERY_MINOR)},
    observe=observe,
)
