"""The gradient of a compiled function has no graph, although the caller requested one.

`torch.compile` has no second derivatives. Right versions raise "does not currently support double backward". The
versions with this fault ignore `create_graph=True` for many operations, so a gradient penalty or a MAML step adds
a constant to the loss.

Instead: run code that is differentiated twice in eager mode, and check `requires_grad` of the first gradient.
"""

import torch

from zoo.probe import EVERY_MINOR, Probe, Seen

SYMPTOM = "the first gradient does not require grad"


def observe(device: str) -> str:
    """Differentiate a compiled tanh with create_graph=True; return SYMPTOM if the gradient has no graph."""
    x = torch.tensor([0.5, -1.0], device=device, requires_grad=True)
    cotangent = torch.tensor([1.0, 2.0], device=device)
    out = torch.compile(torch.tanh, backend="aot_eager")(x)
    (first,) = torch.autograd.grad(out, x, cotangent, create_graph=True)
    if not first.requires_grad:
        return SYMPTOM
    try:
        (second,) = torch.autograd.grad(first, x, cotangent)
    except RuntimeError:
        return ""  # an error is the right behaviour
    exact = x.detach().double().tanh()
    truth = -2 * exact * (1 - exact**2) * cotangent.double() ** 2
    return "" if (second - truth).abs().max() < truth.abs().max() / 100 else "the second derivative is wrong"


PROBE = Probe(
    name="double_backward",
    summary="second derivatives of a compiled function with create_graph=True",
    issue="https://github.com/pytorch/pytorch/issues/181581",
    source="https://github.com/pytorch/pytorch/issues/91469, on second derivatives of compiled functions in general",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.4,<2.13", checked=EVERY_MINOR)},
    observe=observe,
)
