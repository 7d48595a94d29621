"""torch.compile gives NaN or no gradient for `amax` and `amin` of what it computes in low precision.

The backward of `amax` looks for the elements that equal the largest, and divides by their number. Compiled code
computes the elements again there, and does not round them as forward did. So none equals the largest, and it divides by
zero. There is no error or warning.

Instead: use `x.max(dim).values`, whose backward knows the index; or compute what `amax` reads in float32.
"""

import torch
from torch import Tensor

from zoo.probe import Probe, Seen

SYMPTOM = "the compiled gradient is NaN"


def observe(device: str) -> str:
    """Differentiate the largest of some bfloat16 products; return SYMPTOM if a compiled gradient is NaN."""

    def largest(x: Tensor) -> Tensor:
        return (x * 1.1).amax(-1)

    numbers = torch.linspace(-3, 2, 128, device=device).view(8, 16)
    x = numbers.to(torch.bfloat16).requires_grad_()
    (gradient,) = torch.autograd.grad(torch.compile(largest)(x), x, torch.ones(8, device=device, dtype=x.dtype))
    return SYMPTOM if bool(gradient.isnan().any()) else ""


PROBE = Probe(
    name="amax_of_recomputed_input",
    summary="compiled gradients of amax",
    issue="https://github.com/pytorch/pytorch/issues/186799",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.4", checked=("2.4.1", "2.8.0", "2.13.0", "2.14.1"))},
    observe=observe,
)
