"""A second derivative through a compiled function is None if unused inputs are allowed.

The first gradient has a graph, but the graph does not lead to the input. `backward()` raises "does not currently
support double backward". `torch.autograd.grad` for the input finds no path to it: it raises too, or with
`allow_unused=True` returns None, which callers treat as zero.

Instead: run code that is differentiated twice in eager mode, and do not use `allow_unused`.
"""

import torch

from zoo.probe import EVERY_MINOR, Probe, Seen

SYMPTOM = "the second derivative is None, as if it were zero"


def observe(device: str) -> str:
    """Differentiate a compiled tanh twice with allow_unused=True; return SYMPTOM if the result is None."""
    x = torch.tensor([0.5, -1.0], device=device, requires_grad=True)
    cotangent = torch.tensor([1.0, 2.0], device=device)
    out = torch.compile(torch.tanh, backend="aot_eager")(x)
    (first,) = torch.autograd.grad(out, x, cotangent, create_graph=True)
    try:
        (second,) = torch.autograd.grad(first, x, cotangent, allow_unused=True)
    except RuntimeError:
        return ""  # an error is the right behaviour
    return SYMPTOM if second is None else ""


PROBE = Probe(
    name="double_backward_unused",
    summary="second derivatives of a compiled function with allow_unused=True",
    issue="https://github.com/pytorch/pytorch/issues/91469",
    source="https://github.com/pytorch/pytorch/pull/181606, which gave the first gradient its graph",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.13", checked=EVERY_MINOR)},
    observe=observe,
)
