"""What a custom Function recomputes to save memory is kept after all, once compiled.

A fused convolution and batch norm saves the input and convolves again in backward. AOTAutograd sees both
convolutions in one graph, takes them for one, and saves its output: the memory the fusion was written for.
Results are right.

Instead: `torch._functorch.config.cse = False`, an `activation_memory_budget` below 1, or
`torch.utils.checkpoint` around the plain layers, which the compiler respects.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

from zoo.probe import Probe, Seen

SYMPTOM = "the output of the convolution is saved"
EPS, OVER = 1e-3, (0, 2, 3)


class ConvNorm(torch.autograd.Function):
    """Convolution and batch norm, saving the input, the weight and one mean and deviation per channel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        y = torch.conv2d(x, weight)
        mean, deviation = y.mean(OVER, keepdim=True), (y.var(OVER, keepdim=True) + EPS).sqrt()
        ctx.save_for_backward(x, weight, mean, deviation)
        return (y - mean) / deviation

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, mean, deviation = ctx.saved_tensors
        normed = (torch.conv2d(x, weight) - mean) / deviation
        count = normed.numel() // normed.size(1)
        slope = (grad * normed).sum(OVER, keepdim=True) / (count - 1)
        grad = (grad - grad.mean(OVER, keepdim=True) - normed * slope) / deviation
        return conv2d_input(x.shape, weight, grad), conv2d_weight(x, weight.shape, grad)


def saved_bytes(layer: Callable[..., Tensor], *inputs: Tensor) -> int:
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(*inputs)
    return sum(kept.values())


def observe(device: str) -> str:
    x = torch.ones(8, 3, 32, 32, device=device, requires_grad=True)
    weight = torch.ones(16, 3, 3, 3, device=device, requires_grad=True)
    compiled = torch.compile(ConvNorm.apply, backend="aot_eager")
    output = compiled(x, weight)  # compiled before the hooks are on, which torch 2.4 would trace
    more = saved_bytes(compiled, x, weight) - saved_bytes(ConvNorm.apply, x, weight)
    return SYMPTOM if more > output.untyped_storage().nbytes() / 2 else ""


PROBE = Probe(
    name="recomputation_undone",
    summary="memory saved by recomputing in the backward of a custom Function, compiled",
    source="no report found; pytorch#117901 has the same of a cast",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.4", checked=("2.4.1", "2.5.1", "2.6.0", "2.8.0", "2.11.0", "2.13.0", "2.15.0"))},
    observe=observe,
)
