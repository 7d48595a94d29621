"""Causal self-attention, written out and fused: what a token sees, masks, large logits, and wrong arguments."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from zoo.models.attention import CausalSelfAttention, FusedCausalSelfAttention

BOTH = [CausalSelfAttention, FusedCausalSelfAttention]


def pair(embed_dim=16, num_heads=2, **more):
    torch.manual_seed(0)
    model = CausalSelfAttention(embed_dim, num_heads, **more)
    fused = FusedCausalSelfAttention(embed_dim, num_heads, **more)
    fused.load_state_dict(model.state_dict())
    return model.double(), fused.double()


def gradients(model, *args):
    x = args[0].clone().requires_grad_()
    y = model(x, *args[1:])
    cotangent = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
    return [y, *torch.autograd.grad(y, (x, *model.parameters()), cotangent)]


@pytest.mark.parametrize(("heads", "tokens"), [(1, 5), (2, 5), (8, 5), (2, 1)])
@pytest.mark.parametrize("rotary", [False, True])
def test_both_agree_with_their_gradients(heads, tokens, rotary):
    model, fused = pair(num_heads=heads, rotary=rotary)
    x = torch.randn(3, tokens, 16, dtype=torch.float64)
    torch.testing.assert_close(gradients(model, x), gradients(fused, x))


def test_it_is_torchs_multi_head_attention_with_a_causal_mask():
    model, _ = pair(num_heads=4)
    torchs = nn.MultiheadAttention(16, 4, batch_first=True).double()
    torchs.load_state_dict(
        {
            "in_proj_weight": model.qkv.weight,
            "in_proj_bias": model.qkv.bias,
            "out_proj.weight": model.out.weight,
            "out_proj.bias": model.out.bias,
        }
    )
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    torch.testing.assert_close(model(x), torchs(x, x, x, attn_mask=later, need_weights=False)[0])


@pytest.mark.parametrize("build", BOTH)
def test_one_token_gets_its_own_value(build):
    model = build(16, 2).double()
    x = torch.randn(3, 1, 16, dtype=torch.float64)
    torch.testing.assert_close(model(x), model.out(model.qkv(x)[..., 32:]))


@pytest.mark.parametrize("rotary", [False, True])
def test_only_rotary_attention_knows_the_order_of_what_came_before(rotary):
    model, _ = pair(rotary=rotary)
    x = torch.randn(1, 4, 16, dtype=torch.float64)
    swapped = x[:, [1, 0, 2, 3]]
    assert torch.allclose(model(x)[:, 3], model(swapped)[:, 3], rtol=0, atol=1e-12) is not rotary


@pytest.mark.parametrize("build", BOTH)
def test_a_masked_token_is_not_seen(build):
    model = build(16, 2).double()
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    mask = torch.tensor([[False, True, False, True, False]])
    others = [0, 2, 4]
    torch.testing.assert_close(model(x, mask)[:, others], model(x[:, others]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("build", BOTH)
def test_a_token_without_any_key_gets_the_bias_alone_and_no_gradient(build, dtype):
    model = build(16, 2)
    x = torch.randn(2, 4, 16, requires_grad=True)
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        y = model(x, mask)
    blind = y[mask]
    assert torch.equal(blind, model.out.bias.to(y.dtype).expand_as(blind))
    found = torch.autograd.grad(y, (x, *model.parameters()), torch.randn_like(y))
    assert all(gradient.isfinite().all() for gradient in found)
    assert found[0][mask].count_nonzero() == 0
    assert found[0][~mask].count_nonzero() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("build", BOTH)
def test_large_logits_in_long_rows_stay_finite(build, dtype):
    """Scores of a million would overflow exp in every dtype; every token then attends to the largest alone."""
    model = build(8, 1)
    with torch.no_grad():
        model.qkv.weight.copy_(torch.eye(8).repeat(3, 1))
        model.qkv.bias.zero_()
    x = torch.zeros(1, 400, 8)
    x[..., 0] = 200
    x[:, 7, 0] = 400  # a score of up to 400 · 400 / √8 in float32
    x[..., 1] = torch.arange(400) % 4
    if dtype == torch.float16:
        x[..., 0] /= 4  # so that the scores themselves fit
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        y, wanted = model(x), model.out(x[:, 7])
    torch.testing.assert_close(y[:, 8:], wanted.unsqueeze(1).expand(1, 392, 8), rtol=0.01, atol=0.05)


def test_the_fused_kernel_does_not_save_the_scores():
    sizes = []
    for model in pair():
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, saved=saved: saved.append(t) or t, lambda t: t):
            model(torch.randn(1, 256, 16, dtype=torch.float64))
        sizes.append(max(t.numel() for t in saved))
    assert sizes[0] >= 2 * 256 * 256
    assert sizes[1] < 256 * 256


@pytest.mark.parametrize("scripted", [False, True])
@pytest.mark.parametrize("build", BOTH)
def test_wrong_inputs_are_named(build, scripted):
    model = torch.jit.script(build(16, 2)) if scripted else build(16, 2)
    value, kind = (torch.jit.Error, torch.jit.Error) if scripted else (ValueError, TypeError)
    x = torch.ones(2, 5, 16)
    with pytest.raises(value, match=r"CausalSelfAttention: x must have shape \(batch, tokens, 16\), got \[2, 5, 8\]"):
        model(x[..., :8])
    with pytest.raises(value, match=r"CausalSelfAttention: x must have shape \(batch, tokens, 16\), got \[5, 16\]"):
        model(x[0])
    with pytest.raises(kind, match="CausalSelfAttention: x must have a floating dtype, got "):
        model(x.long())
    with pytest.raises(kind, match="CausalSelfAttention: key_padding_mask must have dtype bool, got "):
        model(x, torch.ones(2, 5))
    with pytest.raises(value, match=r"CausalSelfAttention: key_padding_mask must have shape \[2, 5\], got \[5\]"):
        model(x, torch.ones(5, dtype=torch.bool))


@pytest.mark.parametrize("build", BOTH)
def test_wrong_arguments_are_named(build):
    name = build.__name__
    with pytest.raises(TypeError, match=rf"^{name}: x must be a tensor, got list$"):
        build(4, 2)([[[1.0, 2.0, 3.0, 4.0]]])
    with pytest.raises(TypeError, match=rf"^{name}: key_padding_mask must be a tensor, got list$"):
        build(4, 2)(torch.ones(1, 1, 4), [[False]])
    with pytest.raises(ValueError, match=rf"^{name}: num_heads must divide embed_dim, got 3 and 16$"):
        build(16, 3)
    with pytest.raises(ValueError, match=rf"^{name}: num_heads must be at least 1, got 0$"):
        build(16, 0)
    with pytest.raises(TypeError, match=rf"^{name}: embed_dim must be an integer, got None$"):
        build(None, 2)
    with pytest.raises(ValueError, match=r"rotary needs an even number of features per head, got 3$"):
        build(6, 2, rotary=True)


@pytest.mark.parametrize("mask", [None, torch.zeros(0, 5, dtype=torch.bool)])
def test_an_empty_batch_never_reaches_a_kernel_that_may_return_none(monkeypatch, mask):
    monkeypatch.setattr(functional, "scaled_dot_product_attention", lambda *_, **__: None)
    x = torch.randn(0, 5, 16, requires_grad=True)
    model = FusedCausalSelfAttention(16, 2)
    y = model(x, mask)
    y.sum().backward()
    assert (y.shape, x.grad.shape) == ((0, 5, 16), (0, 5, 16))
    assert not model.qkv.weight.grad.any()
