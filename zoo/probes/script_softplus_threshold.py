"""The gradient of `softplus` with a low threshold is wrong in a scripted function from its second call on.

`softplus(x, beta, threshold)` is x itself where beta·x is above the threshold. TorchScript's own derivative compares
beta times the result instead, as autograd did before torch 1.9. The result is larger than x, so numbers just below the
threshold get the gradient 1. The error is about exp(−threshold): 0.05 for a threshold of 3, and nothing that float32
shows for the usual 20. The first call only profiles and uses autograd, so it is right. There is no error or warning.

Only on the CPU was it tried.

Instead: keep the threshold of 20, or leave the function to eager with `torch.jit.ignore`.
"""

import torch
from torch import Tensor

from zoo.probe import Probe, Seen

SYMPTOM = "the gradient just below the threshold is 1 from the second call on"


def soft(x: Tensor) -> Tensor:
    """Return the sine of softplus, whose threshold is 3."""
    return (torch.nn.functional.softplus(x, 1.0, 3.0) * 2.0).sin()


def observe(device: str) -> str:
    """Differentiate a scripted softplus three times; return SYMPTOM if the last gradient is wrong."""
    scripted = torch.jit.script(soft)
    x = torch.tensor([1.0, 2.97], device=device, requires_grad=True)
    for _ in range(3):
        (gradient,) = torch.autograd.grad(scripted(x).sum(), x)
    exact = x.detach().double().requires_grad_()
    (truth,) = torch.autograd.grad(soft(exact).sum(), exact)
    return SYMPTOM if (gradient - truth).abs().max() > 0.01 else ""  # noqa: PLR2004 -- roundings explain 1e-6


PROBE = Probe(
    name="script_softplus_threshold",
    summary="the gradient of a scripted `softplus` with a low threshold",
    issue="https://github.com/pytorch/pytorch/issues/55587",
    symptom=SYMPTOM,
    devices=("cpu",),
    seen={"cpu": Seen(torch=">=2.4", checked=("2.4.1", "2.9.1", "2.13.0", "2.14.1", "2.15.0"))},
    observe=observe,
)
