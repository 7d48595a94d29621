"""Attention of the oracle, op by op where torch would call a kernel that does all of it.

Such a kernel rounds inside too: under autocast it rounds the weights before they multiply the values, and what backward
passes on. The perturbed runs perturb the operands and results of ops, and nothing inside an op.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

FUNCTION = functional.scaled_dot_product_attention
MOST_SCORES = 2**25  # numbers of float64, 256 MiB; the scores of more tokens are not stored


def attention(query: torch.Tensor, key: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """What `scaled_dot_product_attention` returns, with its arguments."""
    if query.shape[:-1].numel() * key.size(-2) > MOST_SCORES:
        return FUNCTION(query, key, *args, **kwargs)
    with sdpa_kernel(SDPBackend.MATH):
        return FUNCTION(query, key, *args, **kwargs)
