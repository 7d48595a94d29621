"""Two sums of one low-precision tensor over the same axis do not compile on the CPU.

Inductor merges them into one kernel and declares the cast accumulator twice. The C++ compiler reports
"conflicting declaration 'auto at_BFloat16_tmp_acc0_vec'". The backward of a broadcast add under autocast contains
such a pair: one gradient keeps the axis that the gradient of the bias drops.

Only on the CPU: for CUDA, Inductor writes Triton kernels.

Instead: sum in float32 (`x.float().sum(0)`), or compile with `backend="aot_eager"`.
"""

import torch
from torch import Tensor

from zoo.probe import EVERY_MINOR, Probe, Seen

SYMPTOM = "the C++ compiler rejects the kernel"


def observe(device: str) -> str:
    """Compile two sums of one bfloat16 tensor; return SYMPTOM if the C++ compiler rejects the kernel."""

    def sums(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(0), x.sum(0, keepdim=True)

    x = torch.ones(16, 16, dtype=torch.bfloat16, device=device)
    try:
        first, second = torch.compile(sums)(x)
    except Exception as problem:
        if "conflicting declaration" in str(problem):
            return SYMPTOM
        raise
    right = torch.equal(first, torch.full_like(first, 16)) and torch.equal(first, second[0])
    return "" if right else "the sums are wrong"


PROBE = Probe(
    name="two_sums_do_not_compile",
    summary="two sums of one bfloat16 or float16 tensor, compiled for the CPU",
    source="no report found; pytorch#159245 has the same message for a float32 model",
    symptom=SYMPTOM,
    devices=("cpu",),
    seen={"cpu": Seen(torch=">=2.4", checked=EVERY_MINOR)},
    observe=observe,
)
