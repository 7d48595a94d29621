"""The compiled gradient of a lookup loses repeated indices if the CPU has one thread.

The gradient of a row is the sum over all places where its index stands. With one thread Inductor needs no atomic add.
Its vectorised kernel then stores each term, where it should add it, and the last term remains. An embedding is such a
lookup: each token that stands twice in a batch gets a part of its gradient, without an error.

Only on the CPU, and only on one thread: with more, Inductor adds atomically.

Instead: take a torch that does not show the fault, or more threads (`torch.set_num_threads(2)`).
"""

import torch
from torch import Tensor

from zoo.probe import Probe, Seen

SYMPTOM = "the gradient of a repeated index is that of its last place"


def observe(device: str) -> str:
    """Differentiate a compiled lookup; return SYMPTOM if the terms of a repeated index are not added."""

    def look_up(table: Tensor, index: Tensor) -> Tensor:
        return table[index]

    table = torch.zeros(4, 64, device=device, requires_grad=True)
    index = torch.tensor([2, 0, 2], device=device)
    out = torch.compile(look_up, options={"cpp.threads": 1})(table, index)
    cotangent = torch.tensor([[1.0], [2.0], [4.0]], device=device).expand_as(out)
    (gradient,) = torch.autograd.grad(out, table, cotangent)
    if gradient.unique(dim=1).flatten().tolist() == [2.0, 0.0, 4.0, 0.0]:
        return SYMPTOM
    right = gradient.unique(dim=1).flatten().tolist() == [2.0, 0.0, 5.0, 0.0]
    return "" if right else "the gradient is wrong"


PROBE = Probe(
    name="repeated_index_on_one_thread",
    summary="the compiled gradient of an embedding, or of another lookup, on one thread of a CPU",
    issue="https://github.com/pytorch/pytorch/pull/147961",
    symptom=SYMPTOM,
    devices=("cpu",),
    seen={
        "cpu": Seen(
            torch=">=2.5,<2.7",
            checked=("2.4.1", "2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.13.0", "2.14.1"),
        )
    },
    observe=observe,
)
