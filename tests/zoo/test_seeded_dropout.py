"""Dropout with a seed: one mask in every mode, and a mask as random as it should be."""

import pytest
import torch

from zoo.models.seeded_dropout import SeededDropout, seeded_mask

COUNT = 1 << 16


def seed(number):
    """Return a seed."""
    return torch.tensor(number)


@pytest.mark.parametrize("precision", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("number", [0, 7, -1, 2**62 + 3])
def test_all_modes_have_the_same_mask_bit_for_bit(number, precision):
    model, x = SeededDropout(0.3), torch.randn(64, 65)
    wanted = seeded_mask(x, seed(number), 0.3)
    modes = [model, torch.jit.script(model), torch.compile(model, backend="aot_eager", fullgraph=True)]
    for call in modes:
        with torch.autocast("cpu", dtype=precision or torch.bfloat16, enabled=precision is not None):
            leaf = x.clone().requires_grad_()
            y = [call(leaf, seed(number)) for _ in range(4)][-1]
        assert torch.equal(y != 0, wanted)
        (gradient,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
        assert torch.equal(gradient != 0, wanted)


def test_inductor_has_the_same_mask_and_makes_one_graph_for_all_seeds():
    torch._dynamo.reset()
    compiled, x = torch.compile(seeded_mask), torch.empty(1000)
    for number in (1, 2, -3):
        with torch.compiler.set_stance("fail_on_recompile" if number != 1 else "default"):
            assert torch.equal(compiled(x, seed(number)), seeded_mask(x, seed(number)))


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_share_of_dropped_elements_is_p(p):
    dropped = 1 - seeded_mask(torch.empty(COUNT), seed(11), p).double().mean().item()
    assert abs(dropped - p) <= 4 * (p * (1 - p) / COUNT) ** 0.5


def test_masks_of_neighbouring_seeds_and_of_shifted_positions_are_independent():
    masks = torch.stack([seeded_mask(torch.empty(COUNT), seed(n)).double() for n in (0, 1, 2, 2**32)]) * 2 - 1
    shifted = [masks[0].roll(k) for k in (1, 2, 64, 256)]
    pairs = torch.stack([*masks, *shifted])
    correlation = pairs @ pairs.t() / COUNT - torch.eye(len(pairs), dtype=torch.float64)
    assert correlation.abs().max() < 5 / COUNT**0.5


def test_the_mask_depends_on_the_position_and_not_on_strides():
    x = torch.randn(6, 8)
    assert torch.equal(seeded_mask(x.t().contiguous().t(), seed(3)), seeded_mask(x, seed(3)))
    assert torch.equal(seeded_mask(x, seed(3)), seeded_mask(x.flatten(), seed(3)).reshape(6, 8))


def test_edges_of_p_and_of_values():
    x = torch.tensor([1.0, float("inf"), float("nan"), -2.0])
    assert torch.equal(SeededDropout(1.0)(x, seed(1)), torch.zeros(4))
    torch.testing.assert_close(SeededDropout(0.0)(x, seed(1)), x, equal_nan=True)
    assert SeededDropout(0.5).eval()(x, seed(1)) is x


def test_the_global_generator_has_no_part_in_it():
    before, x = torch.get_rng_state(), torch.ones(100)
    one = SeededDropout()(x, seed(5))
    torch.manual_seed(99)
    after = torch.get_rng_state()
    assert torch.equal(SeededDropout()(x, seed(5)), one)
    assert torch.equal(torch.get_rng_state(), after)
    torch.set_rng_state(before)


def test_why_not_a_global_seed_inductor_draws_another_mask():
    torch._dynamo.reset()
    dropout, x, found = torch.nn.Dropout(), torch.ones(1000), []
    for call in (dropout, torch.jit.script(dropout), torch.compile(dropout)):
        torch.manual_seed(0)
        found.append(call(x))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("scripted", [False, True])
def test_bad_input_gets_one_line(scripted):
    model = torch.jit.script(SeededDropout()) if scripted else SeededDropout()
    value, kind = (torch.jit.Error,) * 2 if scripted else (ValueError, TypeError)
    with pytest.raises(kind, match=r"SeededDropout: x must have a floating dtype, got"):
        model(torch.ones(2, dtype=torch.int64), seed(1))
    with pytest.raises(kind, match=r"seeded_mask: seed must have dtype torch.int64, got"):
        model(torch.ones(2), torch.tensor(1.0))
    with pytest.raises(value, match=r"seeded_mask: seed must have shape \[\], got \[1\]"):
        model(torch.ones(2), torch.tensor([1]))


def test_what_is_no_tensor_or_no_probability_is_named():
    with pytest.raises(TypeError, match=r"^SeededDropout: x must be a tensor, got list$"):
        SeededDropout()([1.0], seed(1))
    with pytest.raises(TypeError, match=r"^SeededDropout: seed must be a tensor, got int$"):
        SeededDropout()(torch.ones(2), 1)
    with pytest.raises(TypeError, match=r"^seeded_mask: seed must be a tensor, got None$"):
        seeded_mask(torch.ones(2), None)
    with pytest.raises(ValueError, match=r"^seeded_mask: p must lie in \[0, 1\], got 2.0$"):
        seeded_mask(torch.ones(2), seed(1), 2.0)
    with pytest.raises(ValueError, match=r"^SeededDropout: p must lie in \[0, 1\], got -0.1$"):
        SeededDropout(-0.1)
    with pytest.raises(TypeError, match=r"^SeededDropout: p must be a number, got None$"):
        SeededDropout(None)
