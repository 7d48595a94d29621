"""A bfloat16 convolution of eight channels with an 8×8 kernel is wrong on processors with AMX.

torch leaves bfloat16 convolutions on the CPU to oneDNN. On Intel processors with AMX, oneDNN chooses a kernel whose
result has an error as large as the result itself, if the input has eight channels and the side of the kernel is 8 or
12. The weight gradient of a 3×3 convolution over eight images of 10×10 is such a convolution, when a custom Function
writes it as one: `conv_bn` and `fused_conv_bn` of this zoo declare it, where this probe shows it.

Only on the CPU: GPUs do not use oneDNN here.

Instead: set the environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 before torch is imported, or turn oneDNN off
around the call (`torch.backends.mkldnn.flags(enabled=False)`).
"""

import torch
from torch.nn import functional

from zoo.probe import Probe, Seen, Unavailable, processor_has

SYMPTOM = "the error is as large as the result"


def observe(device: str) -> str:
    """Convolve in bfloat16; return SYMPTOM if the result is far from that in float64.

    Raises:
        Unavailable: the processor has no AMX, or the system does not say so.
    """
    if not processor_has("amx_tile"):
        raise Unavailable("the processor has no AMX, or the system does not say so")
    torch.manual_seed(0)
    image = torch.randn(1, 8, 10, 10, dtype=torch.bfloat16, device=device)
    kernel = torch.randn(8, 8, 8, 8, dtype=torch.bfloat16, device=device)
    right = functional.conv2d(image.double(), kernel.double())
    error = (functional.conv2d(image, kernel).double() - right).norm() / right.norm()
    return SYMPTOM if error > 0.5 else ""  # noqa: PLR2004 -- bfloat16 alone explains 0.002


PROBE = Probe(
    name="convolution_wrong_with_amx",
    summary="a bfloat16 convolution with a large kernel, on a processor with AMX",
    source="no report found; pytorch#169688 reports the same of a convolution with stride 3",
    symptom=SYMPTOM,
    devices=("cpu",),
    seen={"cpu": Seen(torch=">=2.4", checked=("2.4.1", "2.9.1", "2.13.0", "2.14.1", "2.15.0"))},
    observe=observe,
)
