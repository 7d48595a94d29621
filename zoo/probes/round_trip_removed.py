"""Inductor removes a cast to bfloat16 and back when it fuses the two casts.

`x.to(torch.bfloat16).float()` rounds x. Eager does so, but the fused kernel keeps the float32 value. Simulated
quantisation and comparisons with a low-precision run then give wrong results.

Instead: set `torch._inductor.config.emulate_precision_casts = True`, which works on the CPU from 2.13 on, or
round in a `torch.library.custom_op`.
"""

import torch
from torch import Tensor

from zoo.probe import EVERY_MINOR, Probe, Seen

SYMPTOM = "the values are not rounded"
FINE = 1 + 2**-12  # float32 represents it; bfloat16 rounds it to 1


def observe(device: str) -> str:
    """Compile a function that casts to bfloat16 and back; return SYMPTOM if its values are not rounded."""

    def rounded_twice(x: Tensor) -> Tensor:
        return x.to(torch.bfloat16).float() * 2

    x = torch.full((64,), FINE, device=device)
    return "" if torch.equal(torch.compile(rounded_twice)(x), torch.full_like(x, 2.0)) else SYMPTOM


PROBE = Probe(
    name="round_trip_removed",
    summary="an explicit cast to bfloat16 and back, compiled",
    issue="https://github.com/pytorch/pytorch/pull/179572",
    source="https://github.com/pytorch/pytorch/pull/181583, for the CPU",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.4", checked=EVERY_MINOR)},
    observe=observe,
)
