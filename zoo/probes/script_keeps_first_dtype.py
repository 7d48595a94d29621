"""A scripted function keeps the autocast dtype of its first call for the life of the process.

TorchScript writes the casts into its graph and keeps one graph for autocast on and one for off, whatever the
dtype. Run under bfloat16 first, it later answers a float16 region with float16 tensors that hold bfloat16's
precision; with gradients the mixture raises "expected m1 and m2 to have the same dtype" in backward.

Instead: one autocast dtype per process, or script a freshly defined function for each.
"""

import torch
from torch import Tensor

from zoo.probe import Probe, Seen

SYMPTOM = "under float16 autocast the product is still rounded to bfloat16"
FINE = 1 + 2**-9  # float16 holds it; bfloat16 makes it 1


def product(x: Tensor, y: Tensor) -> Tensor:
    return torch.mm(x, y)


def observe(device: str) -> str:
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
    seen={"cpu": Seen(torch=">=2.4", checked=("2.4.1", "2.5.1", "2.6.0", "2.8.0", "2.11.0", "2.13.0", "2.15.0"))},
    observe=observe,
)
