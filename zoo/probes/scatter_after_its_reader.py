"""torch.compile gives wrong gradients on a CPU where a backward scatters: that of max pooling, or of interpolation.

Such a backward adds its numbers to a buffer of zeros, and the next kernel reads the buffer. Inductor may change the
loops of that kernel to join it with others. Then it forgets that the scatter comes first, and may put the kernel before
it, so that it reads zeros. Whether this happens depends on the rest of the network, and on the number of threads. There
is no error or warning.

Only on CPUs: Inductor changes loops in this way for its C++ code alone.

Instead: compare the compiled gradients with eager's. Where they differ, leave the op to eager, with
`torch.compiler.disable(torch.nn.functional.max_pool2d)`.
"""

import torch
from torch import Tensor

from zoo.probe import Probe, Seen

SYMPTOM = "the compiled gradient is far off"


def observe(device: str) -> str:
    """Take pooled pixels where a mask says so; return SYMPTOM if the image's compiled gradient is not eager's."""

    def mixed(image: Tensor, kernel: Tensor, mask: Tensor) -> Tensor:
        pixels = torch.nn.functional.conv2d(image, kernel, padding=1)
        return torch.where(mask, pixels, torch.nn.functional.max_pool2d(pixels, 3, stride=1, padding=1))

    image = torch.arange(384.0, device=device).sin().view(2, 3, 8, 8).requires_grad_()
    kernel = torch.arange(135.0, device=device).cos().view(5, 3, 3, 3).requires_grad_()
    cotangent = torch.arange(640.0, device=device).sin().view(2, 5, 8, 8)
    mask = cotangent > 0
    compiled_mixed = torch.compile(mixed, options={"cpp.threads": 2})
    (expected,) = torch.autograd.grad(mixed(image, kernel, mask), image, cotangent)
    (compiled,) = torch.autograd.grad(compiled_mixed(image, kernel, mask), image, cotangent)
    return SYMPTOM if (compiled - expected).norm() > 0.1 * expected.norm() else ""


PROBE = Probe(
    name="scatter_after_its_reader",
    summary="compiled gradients of max pooling",
    issue="https://github.com/pytorch/pytorch/issues/185509",
    symptom=SYMPTOM,
    devices=("cpu",),
    seen={"cpu": Seen(torch=">=2.13,<2.14", checked=("2.8.0", "2.10.0", "2.12.1", "2.13.0", "2.14.1"))},
    observe=observe,
)
