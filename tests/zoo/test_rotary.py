"""Rotary position embedding: its angles, its property, and its precision."""

import math

import pytest
import torch

from zoo.models.rotary import rotary_embedding


def test_a_pair_turns_by_its_own_angle_per_position():
    turned = rotary_embedding(torch.tensor([1.0, 0.0, 1.0, 0.0]).expand(3, 4), base=16.0)
    wanted = [[math.cos(p), math.sin(p), math.cos(p / 4), math.sin(p / 4)] for p in range(3)]  # 16^(-2/4) = 1/4
    torch.testing.assert_close(turned, torch.tensor(wanted))


def test_the_first_position_is_left_as_it_is_and_lengths_are_kept():
    x = torch.randn(2, 9, 6)
    turned = rotary_embedding(x)
    assert torch.equal(turned[:, 0], x[:, 0])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


def test_products_of_turned_vectors_depend_on_the_distance_only():
    q, k = torch.randn(2, 8, dtype=torch.float64)
    turned_q, turned_k = rotary_embedding(q.expand(40, 8)), rotary_embedding(k.expand(40, 8))
    products = turned_q @ turned_k.t()
    for distance in (0, 3, 11):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert (products[0, :12] - products[0, 0]).abs().max() > 0.1


@pytest.mark.parametrize(("low", "bits"), [(torch.float16, 11), (torch.bfloat16, 8)])
def test_angles_are_float32_for_a_low_dtype(low, bits):
    x = torch.randn(3000, 4).to(low)
    y = rotary_embedding(x)
    assert y.dtype == low
    exact = rotary_embedding(x.double())
    assert ((y.double() - exact).norm(dim=1) / exact.norm(dim=1)).max() < 2.0 ** (1 - bits)


def test_bfloat16_tokens_beyond_256_keep_their_own_positions():
    assert torch.tensor(257.0).bfloat16() == 256  # so angles in bfloat16 would repeat
    y = rotary_embedding(torch.ones(258, 2, dtype=torch.bfloat16))
    assert not torch.equal(y[257], y[256])


@pytest.mark.parametrize("scripted", [False, True])
def test_wrong_arguments_are_named(scripted):
    rotary = torch.jit.script(rotary_embedding) if scripted else rotary_embedding
    shape_error = torch.jit.Error if scripted else ValueError
    with pytest.raises(shape_error, match=r"rotary_embedding: x must have shape .* with an even d, got \[5, 3\]"):
        rotary(torch.ones(5, 3))
    with pytest.raises(shape_error, match=r"got \[4\]"):
        rotary(torch.ones(4))
    with pytest.raises(shape_error, match=r"rotary_embedding: base must be positive, got -1"):
        rotary(torch.ones(2, 4), -1.0)
    with pytest.raises(torch.jit.Error if scripted else TypeError, match="rotary_embedding: x must have a floating"):
        rotary(torch.ones(2, 4, dtype=torch.int64))


@pytest.mark.parametrize(("value", "came"), [([[1.0, 2.0]], "list"), (None, "None")])
def test_what_is_no_tensor_is_named(value, came):
    with pytest.raises(TypeError, match=f"^rotary_embedding: x must be a tensor, got {came}$"):
        rotary_embedding(value)
