"""The weight gradient of a bfloat16 convolution over two frames is not written on some processors.

torch leaves bfloat16 convolutions on the CPU to oneDNN. On processors with AVX-512 BF16, the gradient of a 3D kernel of
size 3×1×1 with padding along the frames, as in R(2+1)D, is partly what was in memory before, if there are two frames.
It may hold NaN. One frame and three frames, few channels, float16 and a 2D convolution are right. So is a processor
with AMX, for which oneDNN has another kernel (seen on an Intel Xeon with torch 2.13.0).

Only on the CPU: GPUs do not use oneDNN here.

Instead: give the model more frames, or turn oneDNN off around backward (`torch.backends.mkldnn.flags(enabled=False)`).
"""

import torch
from torch import nn

from zoo.probe import EVERY_MINOR, Probe, Seen, Unavailable, processor_has

SYMPTOM = "the gradient is wrong by more than half of its size"


def observe(device: str) -> str:
    """Differentiate a convolution over two frames in bfloat16; return SYMPTOM if its gradient is far from float64's.

    Raises:
        Unavailable: the processor has no AVX-512 BF16, or has AMX, or the system does not say so.
    """
    if not processor_has("avx512_bf16") or processor_has("amx_tile"):
        raise Unavailable("the processor has no AVX-512 BF16, or has AMX, or the system does not say so")
    torch.manual_seed(0)
    convolution = nn.Conv3d(16, 16, (3, 1, 1), padding=(1, 0, 0), bias=False, device=device)
    frames = torch.randn(2, 16, 2, 4, 4, device=device)
    with torch.autocast(device, torch.bfloat16):
        convolved = convolution(frames)
    cotangent = torch.randn_like(convolved)
    (gradient,) = torch.autograd.grad(convolved, convolution.weight, cotangent)
    wide = convolution.double()
    (right,) = torch.autograd.grad(wide(frames.double()), wide.weight, cotangent.double())
    error = (gradient.double() - right).norm() / right.norm()
    return "" if error < 0.5 else SYMPTOM  # noqa: PLR2004 -- bfloat16 alone explains 0.005; unwritten zeros make 0.8


PROBE = Probe(
    name="convolution_of_two_frames",
    summary="the weight gradient of a bfloat16 3D convolution over two frames, with AVX-512 BF16 and without AMX",
    source="no report found; pytorch#68868 reported another weight gradient of oneDNN",
    symptom=SYMPTOM,
    devices=("cpu",),
    seen={"cpu": Seen(torch=">=2.4", checked=EVERY_MINOR)},
    observe=observe,
)
