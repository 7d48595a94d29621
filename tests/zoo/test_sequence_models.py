"""Models of sequences: attention, rotary positions, norms, embeddings, the transformer of them, and the LSTM cell."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn import functional as F  # noqa: N812 -- its usual name
from torch.nn.functional import cross_entropy

from zoo.models.attention import CausalSelfAttention, FusedCausalSelfAttention
from zoo.models.embedding import TiedBigram, TokenEmbedding
from zoo.models.layer_norm import LayerNormByHand
from zoo.models.lstm_cell import LSTMCell, Recurrence
from zoo.models.rms_norm import RMSNormByHand
from zoo.models.rotary import rotary_embedding
from zoo.models.transformer import DecoderOnlyTransformer

# attention, written out and fused


BOTH = [CausalSelfAttention, FusedCausalSelfAttention]


def attentions(embed_dim=16, num_heads=2, **more):
    torch.manual_seed(0)
    model = CausalSelfAttention(embed_dim, num_heads, **more)
    fused = FusedCausalSelfAttention(embed_dim, num_heads, **more)
    fused.load_state_dict(model.state_dict())
    return model.double(), fused.double()


def with_gradients(model, *args):
    x = args[0].clone().requires_grad_()
    y = model(x, *args[1:])
    cotangent = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
    return [y, *torch.autograd.grad(y, (x, *model.parameters()), cotangent)]


@pytest.mark.parametrize(("heads", "tokens"), [(1, 5), (2, 5), (8, 5), (2, 1)])
@pytest.mark.parametrize("rotary", [False, True])
def test_both_agree_with_their_gradients(heads, tokens, rotary):
    model, fused = attentions(num_heads=heads, rotary=rotary)
    x = torch.randn(3, tokens, 16, dtype=torch.float64)
    torch.testing.assert_close(with_gradients(model, x), with_gradients(fused, x))


def test_it_is_torchs_multi_head_attention_with_a_causal_mask():
    model, _ = attentions(num_heads=4)
    torchs = nn.MultiheadAttention(16, 4, batch_first=True).double()
    state = {f"in_proj_{name}": parameter for name, parameter in model.qkv.named_parameters()}
    torchs.load_state_dict({**state, **{f"out_proj.{name}": p for name, p in model.out.named_parameters()}})
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    torch.testing.assert_close(model(x), torchs(x, x, x, attn_mask=later, need_weights=False)[0])


@pytest.mark.parametrize("rotary", [False, True])
def test_only_rotary_attention_knows_the_order_of_what_came_before(rotary):
    model, _ = attentions(rotary=rotary)
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
    for model in attentions():
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, saved=saved: saved.append(t) or t, lambda t: t):
            model(torch.randn(1, 256, 16, dtype=torch.float64))
        sizes.append(max(t.numel() for t in saved))
    assert sizes[0] >= 2 * 256 * 256
    assert sizes[1] < 256 * 256


@pytest.mark.parametrize("mask", [None, torch.zeros(0, 5, dtype=torch.bool)])
def test_an_empty_batch_never_reaches_a_kernel_that_may_return_none(monkeypatch, mask):
    monkeypatch.setattr(functional, "scaled_dot_product_attention", lambda *_, **__: None)
    x = torch.randn(0, 5, 16, requires_grad=True)
    model = FusedCausalSelfAttention(16, 2)
    y = model(x, mask)
    y.sum().backward()
    assert (y.shape, x.grad.shape) == ((0, 5, 16), (0, 5, 16))
    assert not model.qkv.weight.grad.any()


# rotary positions


def test_a_pair_turns_by_its_own_angle_per_position():
    turned = rotary_embedding(torch.tensor([1.0, 0.0, 1.0, 0.0]).expand(3, 4), base=16.0)
    wanted = [[math.cos(p), math.sin(p), math.cos(p / 4), math.sin(p / 4)] for p in range(3)]  # 16^(-2/4) = 1/4
    torch.testing.assert_close(turned, torch.tensor(wanted))


@pytest.mark.parametrize(("low", "bits"), [(torch.float16, 11), (torch.bfloat16, 8)])
def test_angles_are_float32_for_a_low_dtype(low, bits):
    x = torch.randn(3000, 4).to(low)
    y = rotary_embedding(x)
    assert y.dtype == low
    exact = rotary_embedding(x.double())
    assert ((y.double() - exact).norm(dim=1) / exact.norm(dim=1)).max() < 2.0 ** (1 - bits)
    y = rotary_embedding(torch.ones(258, 2, dtype=low))
    assert not torch.equal(y[257], y[256])  # 257 in bfloat16 is 256, so angles in it would repeat


# layer norm and RMS norm, beside torch's own

BY_HAND = [LayerNormByHand, RMSNormByHand]


def bias_error(norm, rows=8192):
    """Relative error of the gradient of the bias, for many rows of bfloat16 that all ask for the same."""
    generator = torch.Generator().manual_seed(0)
    y = norm(torch.randn(rows, 32, generator=generator).bfloat16())
    gradient = torch.randn(32, generator=generator).to(y.dtype).expand(rows, 32)
    y.backward(gradient)
    right = gradient.double().sum(0)
    return float((norm.bias.grad.double() - right).norm() / right.norm())


def test_a_mean_of_1000_deviations_costs_no_accuracy():
    x = 1000 + torch.randn(8, 64)
    exact = LayerNormByHand(64).double()(x.double())
    assert (LayerNormByHand(64)(x) - exact).abs().max() < 1e-3


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("build", BY_HAND)
def test_statistics_are_float32_for_a_low_dtype(build, low):
    x = (300 * torch.randn(4, 512)).to(low)  # in float16 their squares are infinite
    y = build(512)(x)
    assert y.dtype == low
    wide = build(512).double()(x.double())
    assert (y.double() - wide).abs().max() <= torch.finfo(low).eps * wide.abs().max()


def test_the_bias_gradient_of_many_bfloat16_rows_is_right_where_torchs_is_not():
    assert bias_error(LayerNormByHand(32)) < 1e-5
    assert bias_error(nn.LayerNorm(32)) > 0.5  # zoo/probes/layer_norm_sums_in_low_precision.py


# the embedding: padding, and tied weights

IDS = torch.tensor([[3, 1, 0, 3]])


def gradient(output, weight):
    cotangent = torch.randn(output.shape, dtype=output.dtype, generator=torch.Generator().manual_seed(0))
    return torch.autograd.grad(output, weight, cotangent)[0]


def test_it_is_torchs_embedding():
    model, torchs = TokenEmbedding(5, 4, padding_idx=0), nn.Embedding(5, 4, padding_idx=0)
    torchs.load_state_dict(model.state_dict())
    assert torch.equal(model(IDS), torchs(IDS))
    assert torch.equal(gradient(model(IDS), model.weight), gradient(torchs(IDS), torchs.weight))


@pytest.mark.parametrize("padding", [0, None])
def test_the_padding_row_begins_as_zeros_and_lookups_train_every_other_row_that_is_read(padding):
    model = TokenEmbedding(5, 4, padding_idx=padding)
    assert bool(model.weight[0].any()) is (padding is None)
    found = gradient(model(IDS), model.weight)
    assert [bool(row.any()) for row in found] == [padding is None, True, False, True, False]


def test_a_tied_table_gets_the_sum_of_both_gradients():
    model = TiedBigram(5, 4).double()
    assert [name for name, _ in model.named_parameters()] == ["embedding.weight", "linear.weight", "linear.bias"]
    one, other = (model.embedding.weight.detach().clone().requires_grad_() for _ in range(2))

    def apart():
        return F.linear(model.linear(F.embedding(IDS, one)), other)

    terms = [gradient(apart(), table) for table in (one, other)]
    assert all(term.any() for term in terms)
    torch.testing.assert_close(gradient(model(IDS), model.embedding.weight), sum(terms))


def test_the_padding_row_of_a_tied_table_has_the_gradient_of_its_logit_alone():
    model = TiedBigram(5, 4, padding_idx=0).double()
    table = model.embedding.weight
    copy = table.detach().clone().requires_grad_()
    hidden = model.linear(F.embedding(IDS, table.detach()))
    wanted = gradient(F.linear(hidden, copy), copy)[0]
    assert wanted.count_nonzero() == 4
    torch.testing.assert_close(gradient(model(IDS), table)[0], wanted)


def test_logits_of_normed_vectors_have_deviation_one():
    torch.manual_seed(0)
    model = TokenEmbedding(1000, 256)
    assert 0.9 < model.logits(torch.randn(64, 256)).std() < 1.1


@pytest.mark.parametrize("outside", [-1, 5])
def test_a_compiled_lookup_refuses_them_too(outside):
    compiled = torch.compile(TokenEmbedding(5, 4), backend="aot_eager", fullgraph=True)
    with pytest.raises(RuntimeError, match=r"TokenEmbedding: ids must lie in \[0, 5\)"):
        compiled(torch.tensor([0, outside]))


# the decoder-only transformer

PARTS = [(CausalSelfAttention, RMSNormByHand), (FusedCausalSelfAttention, nn.RMSNorm)]


def small(attention=CausalSelfAttention, norm=RMSNormByHand, padding_idx=0):
    torch.manual_seed(0)
    return DecoderOnlyTransformer(13, 16, 2, 2, 24, padding_idx, attention, norm)


@pytest.mark.parametrize(("attention", "norm"), PARTS)
def test_a_token_depends_on_those_before_it_and_neither_on_later_ones_nor_on_padding(attention, norm):
    """Padding in front moves all positions alike, and rotary attention knows distances only."""
    model = small(attention, norm).double()
    ids = torch.tensor([[3, 1, 4, 1, 5, 9]])
    later, earlier = ids.clone(), ids.clone()
    later[0, 4], earlier[0, 0] = 2, 2
    torch.testing.assert_close(model(later)[0, :4], model(ids)[0, :4], rtol=0, atol=1e-12)
    assert (model(earlier)[0, 5] - model(ids)[0, 5]).abs().max() > 1e-3
    ids = torch.tensor([[3, 1, 4]])
    alone = model(ids)
    behind, in_front = torch.tensor([[3, 1, 4, 0, 0]]), torch.tensor([[0, 0, 3, 1, 4]])
    torch.testing.assert_close(model(behind)[:, :3], alone, rtol=0, atol=1e-12)
    torch.testing.assert_close(model(in_front)[:, 2:], alone, rtol=0, atol=1e-12)
    logits = model(torch.zeros(1, 4, dtype=torch.int64))  # padding alone
    logits.square().sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


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


# the LSTM cell, beside torch's


def lstm_state(batch=3, hidden=6, **options):
    """Return a hidden state and a cell state."""
    return torch.randn(batch, hidden, **options), torch.randn(batch, hidden, **options)


def test_a_state_dict_fits_both_cells_and_a_layer_of_torch():
    torch.manual_seed(0)
    cell, native, layer = LSTMCell(4, 6).double(), nn.LSTMCell(4, 6).double(), nn.LSTM(4, 6).double()
    native.load_state_dict(cell.state_dict())
    layer.load_state_dict({f"{name}_l0": tensor for name, tensor in cell.state_dict().items()})
    x, (h, c) = torch.randn(5, 3, 4, dtype=torch.float64), lstm_state(dtype=torch.float64)
    torch.testing.assert_close(cell(x[0], (h, c)), native(x[0], (h, c)))
    outputs, last_h, last_c = Recurrence(cell)(x, h, c)
    wanted, (wanted_h, wanted_c) = layer(x, (h[None], c[None]))
    torch.testing.assert_close((outputs, last_h, last_c), (wanted, wanted_h[0], wanted_c[0]))


def test_the_loop_compiles_into_one_graph_and_its_state_stays_in_float32_under_autocast():
    model, graphs, x, state = Recurrence(LSTMCell(4, 6)), [], torch.randn(5, 3, 4), lstm_state()
    torch.compile(model, backend=lambda graph, _: graphs.append(graph) or graph.forward, fullgraph=True)(x, *state)
    assert len(graphs) == 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert {t.dtype for t in model(x, *state)} == {torch.float32}
