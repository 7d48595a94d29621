"""A second derivative through a compiled function is None where unused inputs are allowed.

The first gradient has a graph that only claims to lead somewhere. Walking it raises, "does not currently
support double backward", and so does `backward()`. Asked for the one input, `torch.autograd.grad` sees no way
there: it raises too, or with `allow_unused=True` returns None, which callers take for zero.

Instead: run what is differentiated twice eagerly, and leave `allow_unused` alone.
"""

import torch

from zoo.probe import Probe, Seen

SYMPTOM = "the second derivative is None, as if it were zero"


def observe(device: str) -> str:
    x = torch.tensor([0.5, -1.0], device=device, requires_grad=True)
    cotangent = torch.tensor([1.0, 2.0], device=device)
    out = torch.compile(torch.tanh, backend="aot_eager")(x)
    (first,) = torch.autograd.grad(out, x, cotangent, create_graph=True)
    try:
        (second,) = torch.autograd.grad(first, x, cotangent, allow_unused=True)
    except RuntimeError:
        return ""  # refused out loud, as it should be
    return SYMPTOM if second is None else ""


PROBE = Probe(
    name="double_backward_unused",
    summary="second derivatives of a compiled function with allow_unused=True",
    issue="https://github.com/pytorch/pytorch/issues/91469",
    source="https://github.com/pytorch/pytorch/pull/181606, which gave the first gradient its graph",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.13", checked=("2.4.1", "2.5.1", "2.6.0", "2.8.0", "2.11.0", "2.13.0", "2.15.0"))},
    observe=observe,
)
