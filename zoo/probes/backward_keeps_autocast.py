"""A region with autocast switched off computes its gradients in low precision all the same, once compiled.

`torch.compile` traces the backward pass under the autocast state of the call, not of the region. The output
is float32 and so is the gradient's dtype; its values carry bfloat16's error. Eager is right.

Instead: set `torch._functorch.config.backward_pass_autocast = "off"` where this torch has it, or call the
compiled function outside autocast.
"""

import torch
from torch import Tensor

from zoo.probe import Probe, Seen

SYMPTOM = "the gradient is rounded to bfloat16"
FINE = 1 + 2**-9  # float32 holds it, and so does TF32; bfloat16 makes it 1


def observe(device: str) -> str:
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
    seen={"cpu": Seen(torch=">=2.4", checked=("2.4.1", "2.5.1", "2.6.0", "2.8.0", "2.11.0", "2.13.0", "2.15.0"))},
    observe=observe,
)
