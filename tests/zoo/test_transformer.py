"""The decoder-only transformer: what a token depends on, padding, its twin, and that it learns."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import zoo
from zoo.models.attention import CausalSelfAttention, FusedCausalSelfAttention
from zoo.models.rms_norm import RMSNormByHand
from zoo.models.transformer import DecoderOnlyTransformer, GatedMLP

PARTS = [(CausalSelfAttention, RMSNormByHand), (FusedCausalSelfAttention, nn.RMSNorm)]


def small(attention=CausalSelfAttention, norm=RMSNormByHand, padding_idx=0):
    torch.manual_seed(0)
    return DecoderOnlyTransformer(13, 16, 2, 2, 24, padding_idx, attention, norm)


@pytest.mark.parametrize(("attention", "norm"), PARTS)
def test_a_token_depends_on_those_before_it_and_on_no_later_one(attention, norm):
    model = small(attention, norm).double()
    ids = torch.tensor([[3, 1, 4, 1, 5, 9]])
    later, earlier = ids.clone(), ids.clone()
    later[0, 4], earlier[0, 0] = 2, 2
    torch.testing.assert_close(model(later)[0, :4], model(ids)[0, :4], rtol=0, atol=1e-12)
    assert (model(earlier)[0, 5] - model(ids)[0, 5]).abs().max() > 1e-3


@pytest.mark.parametrize(("attention", "norm"), PARTS)
def test_padding_changes_nothing_for_other_tokens(attention, norm):
    """Padding in front moves all positions alike, and rotary attention knows distances only."""
    model = small(attention, norm).double()
    ids = torch.tensor([[3, 1, 4]])
    alone = model(ids)
    behind, in_front = torch.tensor([[3, 1, 4, 0, 0]]), torch.tensor([[0, 0, 3, 1, 4]])
    torch.testing.assert_close(model(behind)[:, :3], alone, rtol=0, atol=1e-12)
    torch.testing.assert_close(model(in_front)[:, 2:], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("attention", "norm"), PARTS)
def test_padding_alone_gives_finite_logits_and_gradients(attention, norm):
    model = small(attention, norm)
    logits = model(torch.zeros(1, 4, dtype=torch.int64))
    logits.square().sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_the_twin_has_the_same_gradients():
    model, twin = small(*PARTS[0]).double(), small(*PARTS[1]).double()
    twin.load_state_dict(model.state_dict())
    (ids,) = zoo.example_inputs("transformer", "padded")
    one, other = model(ids), twin(ids)
    torch.testing.assert_close(one, other)
    cotangent = torch.randn_like(one)
    torch.testing.assert_close(
        torch.autograd.grad(one, list(model.parameters()), cotangent),
        torch.autograd.grad(other, list(twin.parameters()), cotangent),
    )


def test_it_has_no_table_of_positions_and_no_second_table_of_tokens():
    shapes = {name: tuple(p.shape) for name, p in small().named_parameters() if p.shape[0] == 13}
    assert shapes == {"embedding.weight": (13, 16)}
    assert sum(p.numel() for p in small().parameters()) == 13 * 16 + 2 * (16 * 64 + 64 + 3 * 16 * 24 + 32) + 16


def test_it_learns_to_copy_the_token_before_the_last():
    """A bigram model cannot: the answer stands one place back."""
    model = small(*PARTS[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        ids = torch.randint(1, 13, (16, 8), generator=generator)
        loss = cross_entropy(model(ids)[:, 1:].flatten(0, 1), ids[:, :-1].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.5  # log 12 = 2.5 for a guess


@pytest.mark.parametrize("scripted", [False, True])
def test_wrong_tokens_are_named(scripted):
    model = torch.jit.script(small()) if scripted else small()
    value, kind, index = (torch.jit.Error,) * 3 if scripted else (ValueError, TypeError, IndexError)
    with pytest.raises(value, match=r"DecoderOnlyTransformer: ids must have shape \(batch, tokens\), got \[3\]"):
        model(torch.tensor([1, 2, 3]))
    with pytest.raises(kind, match="ids must have dtype int64, got "):
        model(torch.ones(1, 3))
    with pytest.raises(index, match=r"ids must lie in \[0, 13\)"):
        model(torch.tensor([[1, 13]]))


def test_wrong_arguments_are_named():
    with pytest.raises(TypeError, match=r"^DecoderOnlyTransformer: ids must be a tensor, got list$"):
        small()([[1, 2]])
    with pytest.raises(ValueError, match=r"^DecoderOnlyTransformer: num_layers must be at least 1, got 0$"):
        DecoderOnlyTransformer(13, 16, 2, 0, 24)
    with pytest.raises(TypeError, match=r"^DecoderOnlyTransformer: embed_dim must be an integer, got None$"):
        DecoderOnlyTransformer(13, None, 2, 2, 24)
    with pytest.raises(ValueError, match=r"num_heads must divide embed_dim, got 3 and 16$"):
        DecoderOnlyTransformer(13, 16, 3, 2, 24)
    with pytest.raises(ValueError, match=r"^GatedMLP: hidden_dim must be at least 1, got -1$"):
        GatedMLP(4, -1)
