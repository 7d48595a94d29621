"""Fused attention of an empty batch in half precision is None on GPUs where torch takes cuDNN's kernel.

`scaled_dot_product_attention` returns None and no tensor, without an error. The next op fails with a message that does
not name the cause. torch takes cuDNN's kernel by default on Hopper; in float32 it takes another one, which is right.

Only on CUDA: other devices do not use cuDNN.

Instead: return the values as they are if the batch is empty, as `FusedCausalSelfAttention` does.
"""

import torch
from torch.nn import functional as F  # noqa: N812 -- torch's own name for it
from torch.nn.attention import SDPBackend, sdpa_kernel

from zoo.probe import Probe, Seen, Unavailable

SYMPTOM = "the result is None"
BATCH, HEADS, TOKENS, FEATURES = 0, 2, 5, 8


def observe(device: str) -> str:
    """Let no tokens attend to each other, by cuDNN's kernel."""
    if not hasattr(SDPBackend, "CUDNN_ATTENTION"):
        raise Unavailable("this torch has no attention by cuDNN")
    x = torch.ones(1 + BATCH, HEADS, TOKENS, FEATURES, device=device, dtype=torch.float16)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        try:
            F.scaled_dot_product_attention(x, x, x)
        except RuntimeError as problem:
            raise Unavailable("this GPU has no attention by cuDNN") from problem
        nothing = x[:BATCH]
        result = F.scaled_dot_product_attention(nothing, nothing, nothing)
    return "" if isinstance(result, torch.Tensor) else SYMPTOM


PROBE = Probe(
    name="attention_of_nothing",
    summary="fused attention of an empty batch in half precision",
    issue="https://github.com/pytorch/pytorch/issues/133780",
    symptom=SYMPTOM,
    devices=("cuda",),
    seen={"cuda": Seen(torch=">=2.11", checked=("2.11.0",))},
    observe=observe,
)
