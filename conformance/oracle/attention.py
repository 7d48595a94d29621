"""Attention of the oracle, op by op where torch would call a kernel that does all of it.

Such a kernel rounds inside too: under autocast it rounds the weights before they multiply the values, and what backward
passes on. On the CPU it takes the queries block by block, and backward adds up the gradients of keys and values in the
low precision itself. The perturbed runs perturb the operands and results of ops, and nothing inside an op.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

FUNCTION = functional.scaled_dot_product_attention
MOST_SCORES = 2**25  # numbers of float64, 256 MiB; the scores of more tokens are not stored
BLOCKS = ((768, 256), (192, 64), (0, 32))  # from so many queries on, the kernel of the CPU takes so many at once


def attention(  # noqa: PLR0913 -- torch's own signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 -- the same
    **others: Any,
) -> torch.Tensor:
    """What `scaled_dot_product_attention` returns, with its arguments."""
    scores = query.shape[:-1].numel() * key.size(-2)
    if scores > MOST_SCORES:
        return FUNCTION(query, key, value, attn_mask, dropout_p, is_causal, **others)
    tokens = query.size(-2)
    size = next(size for least, size in BLOCKS if tokens >= least)
    with sdpa_kernel(SDPBackend.MATH):
        if tokens <= size or dropout_p or (is_causal and attn_mask is not None):  # torch refuses the last itself
            return FUNCTION(query, key, value, attn_mask, dropout_p, is_causal, **others)
        if is_causal:
            attn_mask = query.new_ones(tokens, key.size(-2), dtype=torch.bool).tril()
        blocks = query.split(size, -2)
        masks: Sequence[torch.Tensor | None] = [attn_mask] * len(blocks)
        if attn_mask is not None and attn_mask.size(-2) > 1:
            masks = attn_mask.split(size, -2)
        return torch.cat([FUNCTION(q, key, value, m, **others) for q, m in zip(blocks, masks, strict=True)], -2)
