"""Compiled code saves tensors that a custom Function recomputes in backward to save memory.

A fused convolution and batch norm saves its input and convolves again in backward. AOTAutograd sees both
convolutions in one graph, merges them and saves the output. The memory gain of the fusion is lost. The results are
right.

Instead: set `torch._functorch.config.cse = False` or an `activation_memory_budget` below 1, or put
`torch.utils.checkpoint` around the plain layers; the compiler keeps its recomputation.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

from zoo.probe import EVERY_MINOR, Probe, Seen

SYMPTOM = "the output of the convolution is saved"
EPS, OVER = 1e-3, (0, 2, 3)


class ConvNorm(torch.autograd.Function):
    """Convolution and batch norm that save the input, the weight, and one mean and deviation per channel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Return the normalised convolution."""
        y = torch.conv2d(x, weight)
        mean, deviation = y.mean(OVER, keepdim=True), (y.var(OVER, keepdim=True) + EPS).sqrt()
        ctx.save_for_backward(x, weight, mean, deviation)
        return (y - mean) / deviation

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of x and weight; compute the convolution again."""
        x, weight, mean, deviation = ctx.saved_tensors
        normed = (torch.conv2d(x, weight) - mean) / deviation
        count = normed.numel() // normed.size(1)
        slope = (grad * normed).sum(OVER, keepdim=True) / (count - 1)
        grad = (grad - grad.mean(OVER, keepdim=True) - normed * slope) / deviation
        return conv2d_input(x.shape, weight, grad), conv2d_weight(x, weight.shape, grad)


def saved_bytes(layer: Callable[..., Tensor], *inputs: Tensor) -> int:
    """Return the bytes of all storages that one call saves for backward."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(*inputs)
    return sum(kept.values())


def observe(device: str) -> str:
    """Compare the bytes saved by compiled and eager; return SYMPTOM if compiled also saves the convolution."""
    x = torch.ones(8, 3, 32, 32, device=device, requires_grad=True)
    weight = torch.ones(16, 3, 3, 3, device=device, requires_grad=True)
    compiled = torch.compile(ConvNorm.apply, backend="aot_eager")
    output = compiled(x, weight)  # compile before installing the hooks, which torch 2.4 would trace
    more = saved_bytes(compiled, x, weight) - saved_bytes(ConvNorm.apply, x, weight)
    return SYMPTOM if more > output.untyped_storage().nbytes() / 2 else ""


PROBE = Probe(
    name="recomputation_undone",
    summary="recomputation in the backward of a compiled custom Function",
    source="no report found; pytorch#117901 reports the same for a cast",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.4", checked=EVERY_MINOR)},
    observe=observe,
)
