"""Gradients of complex numbers are wrong in a scripted function from its second call on.

TorchScript has its own derivative formulas, which omit the complex conjugate. The first call only profiles and uses
autograd, so it is right. The error of later calls is as large as the gradient. Under autocast even a single
product has the fault. There is no error or warning.

Instead: do not use complex arithmetic in scripted functions that are trained.
"""

import torch
from torch import Tensor

from zoo.probe import EVERY_MINOR, Probe, Seen

SYMPTOM = "the gradient changes from the first call to the third, and is wrong"


def wave(x: Tensor) -> Tensor:
    """Return the real part of exp(x²)."""
    return torch.exp(x * x).real


def observe(device: str) -> str:
    """Differentiate a scripted function three times; return SYMPTOM if the last gradient is wrong."""
    scripted, cotangent = torch.jit.script(wave), torch.tensor([1.0, 2.0], device=device)
    x = torch.tensor([0.5 + 0.5j, 0.25 - 1.0j], device=device, requires_grad=True)
    for _ in range(3):
        (gradient,) = torch.autograd.grad(scripted(x), x, cotangent)
    exact = x.detach().to(torch.complex128).requires_grad_()
    (truth,) = torch.autograd.grad(wave(exact), exact, cotangent.double())
    return SYMPTOM if (gradient - truth).norm() > truth.norm() / 10 else ""


PROBE = Probe(
    name="script_complex_gradient",
    summary="gradients of complex numbers in a scripted function",
    issue="https://github.com/pytorch/pytorch/issues/154324",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.4", checked=EVERY_MINOR)},
    observe=observe,
)
