"""Arithmetic on low-precision values gives float32 in a scripted function under autocast, but not in eager.

TorchScript's autocast pass does not know the dtypes and promotes to be safe: after a bfloat16 product, `z * 2`,
`z + z` and `z ** 2` are float32. The result is more precise, needs more memory and has a dtype that the next layer
may not expect.

Instead: cast the result to the dtype you want.
"""

import torch
from torch import Tensor

from zoo.probe import EVERY_MINOR, Probe, Seen

SYMPTOM = "twice a bfloat16 product is float32"


def doubled(x: Tensor, y: Tensor) -> Tensor:
    """Return twice the product of two matrices."""
    return torch.mm(x, y) * 2


def observe(device: str) -> str:
    """Compare the dtypes of eager and scripted under bfloat16 autocast; return SYMPTOM if scripted is float32."""
    scripted, x = torch.jit.script(doubled), torch.ones(4, 4, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        asked, got = doubled(x, x).dtype, scripted(x, x).dtype
    return SYMPTOM if (asked, got) == (torch.bfloat16, torch.float32) else ""


PROBE = Probe(
    name="script_promotes_arithmetic",
    summary="the dtype of arithmetic in a scripted function under autocast",
    source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/jit/JIT-AUTOCAST.md",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.4", checked=EVERY_MINOR)},
    observe=observe,
)
