"""`autocast(enabled=False)` inside a scripted function does not stop the caller's autocast.

TorchScript and the dispatcher have separate autocast states. The block stops the casts of TorchScript, but not those
of the dispatcher. Code for float32 runs in bfloat16, without an error.

Instead: switch autocast off around the call, outside the script.
"""

from typing import Final

import torch
from torch import Tensor, nn

from zoo.probe import EVERY_MINOR, Probe, Seen

SYMPTOM = "a product in a block without autocast is bfloat16"


class Product(nn.Module):
    """A product with autocast off; it is a module because a script needs the device as a constant."""

    device: Final[str]

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the product of two matrices."""
        with torch.autocast(self.device, enabled=False):
            return torch.mm(x, y)


def observe(device: str) -> str:
    """Call the scripted module under bfloat16 autocast; return SYMPTOM if the product is bfloat16."""
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
    seen={"cpu": Seen(torch=">=2.4", checked=EVERY_MINOR)},
    observe=observe,
)
