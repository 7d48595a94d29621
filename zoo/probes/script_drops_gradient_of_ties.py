"""A scripted `torch.min` or `torch.max` of two tensors loses the gradient of equal elements from its second call on.

Eager gives half of it to each operand. TorchScript has its own formula, which gives it to neither. The first call only
profiles and uses autograd, so it is right. The clipped loss of PPO, min(r A, clamp(r) A), has equal elements wherever
the ratio is between its limits: a script of it learns next to nothing. There is no error or warning.

Instead: use `torch.minimum` and `torch.maximum`.
"""

import torch
from torch import Tensor

from zoo.probe import Probe, Seen

SYMPTOM = "the gradient of equal elements is zero"


def clipped(x: Tensor) -> Tensor:
    """Return x, if no element is beyond 2."""
    return torch.min(x, x.clamp(-2.0, 2.0))


def observe(device: str) -> str:
    """Differentiate a scripted function three times; return SYMPTOM if the last gradient is zero."""
    scripted, cotangent = torch.jit.script(clipped), torch.tensor([1.0, 2.0], device=device)
    x = torch.tensor([0.5, -1.0], device=device, requires_grad=True)
    for _ in range(3):
        (gradient,) = torch.autograd.grad(scripted(x), x, cotangent)
    return "" if torch.equal(gradient, cotangent) else SYMPTOM


PROBE = Probe(
    name="script_drops_gradient_of_ties",
    summary="the minimum or maximum of two tensors with equal elements, in a scripted function that is trained",
    issue="https://github.com/pytorch/pytorch/issues/82635",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.4", checked=("2.4.1", "2.8.0", "2.13.0"))},
    observe=observe,
)
