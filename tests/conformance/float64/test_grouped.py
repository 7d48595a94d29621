"""Grouped matrix products in float64 are those of torch's kernel."""

import pytest
import torch

from conformance.float64.replacements import FUNCTIONS, grouped_mm
from conformance.float64.wide import widen

pytestmark = pytest.mark.skipif(not FUNCTIONS, reason="this torch has no grouped products")
ENDS = torch.tensor([16, 16, 48], dtype=torch.int32)
SHAPES = {  # the first group has 16 rows or columns, the second none, the third 32
    "rows": ((48, 16), (3, 16, 24), ENDS),
    "columns": ((3, 16, 8), (8, 48), ENDS),
    "inner": ((16, 48), (48, 24), ENDS),
    "batch": ((3, 16, 8), (3, 8, 24), None),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_products_of_the_groups_are_those_of_the_kernel(name):
    shape_a, shape_b, ends = SHAPES[name]
    a, b = torch.randn(shape_a), torch.randn(shape_b)
    found = grouped_mm(a.double(), b.double(), ends)
    try:
        wanted = FUNCTIONS[0](a.bfloat16(), b.bfloat16(), offs=ends)
    except NotImplementedError as problem:  # some versions have it on CUDA alone
        pytest.skip(f"this torch has no kernel for it: {problem}")
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted.double(), rtol=0.05, atol=0.3)


def test_a_mixture_of_experts_runs_and_is_differentiated_in_float64():
    x = torch.randn(48, 16, dtype=torch.float64, requires_grad=True)
    experts = torch.randn(3, 16, 24, dtype=torch.float64, requires_grad=True)
    with widen():
        found = FUNCTIONS[-1](x, experts, offs=ENDS)
    cotangent = torch.randn(48, 24, dtype=torch.float64)
    gradients = torch.autograd.grad(found, (x, experts), cotangent)
    wanted = torch.cat([x[:16] @ experts[0], x[16:] @ experts[2]])
    for one, other in zip(gradients, torch.autograd.grad(wanted, (x, experts), cotangent), strict=True):
        torch.testing.assert_close(one, other)
