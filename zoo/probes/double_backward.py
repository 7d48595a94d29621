"""The gradient of a compiled function comes back without a graph, although one was asked for.

`torch.compile` has no second derivatives. Where it says so, with "does not currently support double
backward", all is well; on the versions that show this, `create_graph=True` is ignored for many operations, and
a gradient penalty or a MAML step adds a constant to the loss.

Instead: run what is differentiated twice eagerly, and check `requires_grad` of the first gradient.
"""

import torch

from zoo.probe import Probe, Seen

SYMPTOM = "the first gradient does not require grad"


def observe(device: str) -> str:
    x = torch.tensor([0.5, -1.0], device=device, requires_grad=True)
    cotangent = torch.tensor([1.0, 2.0], device=device)
    out = torch.compile(torch.tanh, backend="aot_eager")(x)
    (first,) = torch.autograd.grad(out, x, cotangent, create_graph=True)
    if not first.requires_grad:
        return SYMPTOM
    try:
        (second,) = torch.autograd.grad(first, x, cotangent)
    except RuntimeError:
        return ""  # refused out loud, as it should be
    exact = x.detach().double().tanh()
    truth = -2 * exact * (1 - exact**2) * cotangent.double() ** 2
    return "" if (second - truth).abs().max() < truth.abs().max() / 100 else "the second derivative is wrong"


PROBE = Probe(
    name="double_backward",
    summary="the gradient of a compiled function, to be differentiated again",
    issue="https://github.com/pytorch/pytorch/issues/181581",
    source="https://github.com/pytorch/pytorch/issues/91469, on second derivatives of compiled functions at large",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.4,<2.13", checked=("2.4.1", "2.5.1", "2.6.0", "2.8.0", "2.11.0", "2.13.0", "2.15.0"))},
    observe=observe,
)
