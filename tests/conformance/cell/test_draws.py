"""The CPU's kernels draw in half precision what they draw in float32, while they are asked to."""

import pytest
import torch
from harness.timed import timed_cell

from conformance.cell import policy
from conformance.cell.policy import drawn_in_float32
from conformance.errors import NotMeasuredError

DRAWING = {
    "randn_like": torch.randn_like,
    "rand_like": torch.rand_like,
    "in place": lambda x: x.clone().normal_(0.5, 2.0),
    "between": lambda x: x.clone().uniform_(-3.0, 5.0),
}

NOISY = """
import torch
from torch import nn
from zoo import Case, Spec

class Noisy(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y + torch.randn_like(y)

SPEC = Spec(
    name="noisy",
    summary="noise on what a Linear gives",
    source="a test",
    build=lambda: Noisy(5, 4),
    cases=(Case(name="typical", inputs=lambda g: (torch.randn(6, 5, generator=g),)),),
    changes_state=("random generator",),
)
"""

needs_kernels = pytest.mark.skipif(not policy.can_draw_in_float32(), reason="this torch hands out no kernels")


def drawn(draw, x, dtype):
    """What is drawn from one seed, and the state of the generator afterwards."""
    torch.manual_seed(3)
    return draw(x.to(dtype)), torch.get_rng_state()


@needs_kernels
@pytest.mark.parametrize("shape", [(5,), (24,), (7, 9)], ids=str)
@pytest.mark.parametrize("dtype", policy.HALF, ids=str)
@pytest.mark.parametrize("name", DRAWING)
def test_half_precision_gets_the_numbers_of_float32(name, dtype, shape):
    x = torch.zeros(shape).t()
    wanted, state = drawn(DRAWING[name], x, torch.float32)
    with drawn_in_float32() as drew:
        same, _ = drawn(DRAWING[name], x, torch.float32)
        assert drew == set()
        found, after = drawn(DRAWING[name], x, dtype)
        assert len(drew) == 1
    assert torch.equal(found, wanted.to(dtype))
    assert torch.equal(after, state)
    assert torch.equal(same, wanted)


@needs_kernels
def test_afterwards_torch_draws_as_before():
    x = torch.zeros(24)
    before, _ = drawn(torch.randn_like, x, torch.bfloat16)
    with drawn_in_float32():
        other, _ = drawn(torch.randn_like, x, torch.bfloat16)
    after, _ = drawn(torch.randn_like, x, torch.bfloat16)
    assert torch.equal(before, after)
    assert not torch.equal(before, other)


@needs_kernels
def test_a_torch_that_hands_out_one_kernel_alone_draws_as_before(monkeypatch):
    hand_out = torch.library.get_kernel

    def get_kernel(name, key):
        if name.endswith(policy.DRAWING[-1]):
            raise RuntimeError("there is no such kernel")
        return hand_out(name, key)

    x = torch.zeros(24)
    before, _ = drawn(torch.randn_like, x, torch.bfloat16)
    monkeypatch.setattr(torch.library, "get_kernel", get_kernel)
    assert not policy.can_draw_in_float32.__wrapped__()
    after, _ = drawn(torch.randn_like, x, torch.bfloat16)
    assert torch.equal(before, after)


@needs_kernels
def test_a_call_that_draws_what_the_oracle_has_not_drawn_is_not_timed(tmp_path):
    assert timed_cell(tmp_path, NOISY, "noisy", "fp32").wrong_result() == ""
    with pytest.raises(NotMeasuredError, match="other draws: its timed calls draw other numbers than the oracle"):
        timed_cell(tmp_path, NOISY, "noisy", "amp_bf16")
