"""Attention in the oracle runs op by op, so that the perturbed runs reach what a fused kernel rounds inside."""

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.oracle import attention
from conformance.oracle.float64 import widened


class Names(TorchDispatchMode):
    """Notes the names of all ops."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add(func._overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def names_of_ops(**options):
    """The result for five tokens, and the names of the ops that made it and its gradients."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 5, 8, generator=generator, dtype=torch.float64).requires_grad_()
    with widened(), Names() as names:
        result = functional.scaled_dot_product_attention(q, k, v, **options)
        result.square().sum().backward()
    return result, names.seen


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"attn_mask": torch.ones(5, 5, dtype=torch.bool).tril()}, {"scale": 0.1}]
)
def test_the_ops_of_the_formula_run_and_not_one_kernel(options, monkeypatch):
    result, names = names_of_ops(**options)
    assert not [name for name in names if "attention" in name]
    assert any("softmax" in name for name in names)
    monkeypatch.setattr(attention, "MOST_SCORES", 2 * 4 * 5 * 5 - 1)
    fused, names = names_of_ops(**options)
    assert [name for name in names if "attention" in name]
    torch.testing.assert_close(result, fused)
    assert torch.backends.cuda.flash_sdp_enabled()  # as before, for the cells
