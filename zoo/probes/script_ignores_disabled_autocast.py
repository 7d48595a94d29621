"""`autocast(enabled=False)` inside a scripted function does not stop the caller's autocast.

The two keep separate states: the block switches off the scripted casts, the dispatcher goes on with its own.
What was meant to run in float32 runs in bfloat16, and nothing is said.

Instead: switch autocast off around the call, outside the script.
"""

from typing import Final

import torch
from torch import Tensor, nn

from zoo.probe import Probe, Seen

SYMPTOM = "a product where autocast is off is bfloat16"


class Product(nn.Module):
    """A product with autocast off; a module, since a script wants the device as a constant."""

    device: Final[str]

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The product of two matrices."""
        with torch.autocast(self.device, enabled=False):
            return torch.mm(x, y)


def observe(device: str) -> str:
    scripted, x = torch.jit.script(Product(device)), torch.ones(4, 4, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        dtype = scripted(x, x).dtype
    return SYMPTOM if dtype == torch.bfloat16 else ""


PROBE = Probe(
    name="script_ignores_disabled_autocast",
    summary="autocast(enabled=False) inside a scripted function",
    issue="https://github.com/pytorch/pytorch/pull/81747",
    source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/jit/JIT-AUTOCAST.md",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.4", checked=("2.4.1", "2.5.1", "2.6.0", "2.8.0", "2.11.0", "2.13.0", "2.15.0"))},
    observe=observe,
)
