"""A scripted function keeps the autocast dtype of its first call until the process ends.

TorchScript writes the casts into its graph. It keeps one graph for autocast on and one for off, whatever the dtype.
If the first call is under bfloat16, a later call under float16 returns float16 tensors with bfloat16's precision.
With gradients, backward raises "expected m1 and m2 to have the same dtype".

Instead: use one autocast dtype per process, or define and script a new function for each dtype.
"""

import torch
from torch import Tensor

from zoo.probe import EVERY_MINOR, Probe, Seen

SYMPTOM = "under float16 autocast the product is still rounded to bfloat16"
FINE = 1 + 2**-9  # float16 represents it; bfloat16 rounds it to 1


def product(x: Tensor, y: Tensor) -> Tensor:
    """Return the product of two matrices."""
    return torch.mm(x, y)


def observe(device: str) -> str:
    """Call a scripted product under bfloat16, then float16 autocast; return SYMPTOM if bfloat16's error remains."""
    scripted = torch.jit.script(product)
    x, identity = torch.full((4, 4), FINE, device=device), torch.eye(4, device=device)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast(device, dtype=dtype):
            out = scripted(x, identity)
    truth = x.double() @ identity.double()
    return SYMPTOM if (out - truth).abs().max() > (FINE - 1) / 2 else ""


PROBE = Probe(
    name="script_keeps_first_dtype",
    summary="a scripted function called under two autocast dtypes",
    source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/jit/api/function_impl.h",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.4", checked=EVERY_MINOR)},
    observe=observe,
)
