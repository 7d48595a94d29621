"""A scripted `nn.Embedding` or `nn.EmbeddingBag` ignores `max_norm`.

Eager scales the rows that it looks up down to the given norm, in place. TorchScript has an op of its own for that. Its
schema does not say that the op writes to the weights, and nothing uses its result. So TorchScript removes it as dead
code. There is no error or warning.

Instead: call `torch.renorm` on the weights after each step of the optimizer, outside the script.
"""

import torch

from zoo.probe import Probe, Seen

SYMPTOM = "the row is longer than max_norm"
NORM = 1.0  # the row that is looked up has twice this norm


def observe(device: str) -> str:
    """Look up a row of norm 2 with a scripted embedding whose `max_norm` is 1; return SYMPTOM if it stays so."""
    embedding = torch.nn.Embedding(3, 4, max_norm=NORM, device=device)
    torch.nn.init.ones_(embedding.weight)
    row = torch.jit.script(embedding)(torch.tensor([1], device=device))
    return SYMPTOM if row.norm() > 1.5 * NORM else ""


PROBE = Probe(
    name="script_drops_max_norm",
    summary="an embedding with max_norm in a script",
    source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/jit/runtime/register_special_ops.cpp",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.4", checked=("2.4.1", "2.13.0", "2.14.1"))},
    observe=observe,
)
