"""The embedding: padding, tied weights and what their gradient is, and wrong tokens."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- its usual name

import zoo
from zoo.models.embedding import TiedBigram, TokenEmbedding

IDS = torch.tensor([[3, 1, 0, 3]])


def gradient(output, weight):
    cotangent = torch.randn(output.shape, dtype=output.dtype, generator=torch.Generator().manual_seed(0))
    return torch.autograd.grad(output, weight, cotangent)[0]


def test_it_is_torchs_embedding():
    model, torchs = TokenEmbedding(5, 4, padding_idx=0), nn.Embedding(5, 4, padding_idx=0)
    torchs.load_state_dict(model.state_dict())
    assert torch.equal(model(IDS), torchs(IDS))
    assert torch.equal(gradient(model(IDS), model.weight), gradient(torchs(IDS), torchs.weight))


def test_the_padding_row_begins_as_zeros_and_lookups_do_not_train_it():
    model = TokenEmbedding(5, 4, padding_idx=0)
    assert model.weight[0].count_nonzero() == 0
    found = gradient(model(IDS), model.weight)
    assert found[0].count_nonzero() == 0
    assert found[1].count_nonzero() == 4


def test_without_padding_every_row_that_is_read_is_trained():
    model = TokenEmbedding(5, 4)
    found = gradient(model(IDS), model.weight)
    assert [bool(row.any()) for row in found] == [True, True, False, True, False]


def test_a_tied_table_gets_the_sum_of_both_gradients():
    model = TiedBigram(5, 4).double()
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


def test_there_is_one_table_only():
    model = zoo.create_model("tied_embedding")
    assert [name for name, _ in model.named_parameters()] == ["embedding.weight", "linear.weight", "linear.bias"]


def test_logits_of_normed_vectors_have_deviation_one():
    torch.manual_seed(0)
    model = TokenEmbedding(1000, 256)
    assert 0.9 < model.logits(torch.randn(64, 256)).std() < 1.1


@pytest.mark.parametrize("scripted", [False, True])
def test_wrong_tokens_are_named(scripted):
    model = torch.jit.script(TokenEmbedding(5, 4)) if scripted else TokenEmbedding(5, 4)
    kind, index = (torch.jit.Error, torch.jit.Error) if scripted else (TypeError, IndexError)
    for wrong in (torch.ones(2), torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.bool)):
        with pytest.raises(kind, match="TokenEmbedding: ids must have dtype int64, got "):
            model(wrong)
    for outside in (-1, 5):
        with pytest.raises(index, match=r"TokenEmbedding: ids must lie in \[0, 5\), the rows of the table"):
            model(torch.tensor([0, outside]))


@pytest.mark.parametrize("outside", [-1, 5])
def test_a_compiled_lookup_refuses_them_too(outside):
    compiled = torch.compile(TokenEmbedding(5, 4), backend="aot_eager", fullgraph=True)
    with pytest.raises(RuntimeError, match=r"TokenEmbedding: ids must lie in \[0, 5\)"):
        compiled(torch.tensor([0, outside]))


def test_wrong_arguments_are_named():
    with pytest.raises(TypeError, match=r"^TokenEmbedding: ids must be a tensor, got list$"):
        TokenEmbedding(5, 4)([1, 2])
    with pytest.raises(TypeError, match=r"^TokenEmbedding.logits: h must be a tensor, got None$"):
        TokenEmbedding(5, 4).logits(None)
    with pytest.raises(ValueError, match=r"^TokenEmbedding.logits: h must have trailing size 4, got shape \[2, 5\]$"):
        TokenEmbedding(5, 4).logits(torch.ones(2, 5))
    with pytest.raises(TypeError, match=r"^TokenEmbedding.logits: h must have a floating dtype, got torch.int64$"):
        TokenEmbedding(5, 4).logits(torch.ones(2, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"^TokenEmbedding: embedding_dim must be at least 1, got 0$"):
        TokenEmbedding(5, 0)
    with pytest.raises(TypeError, match=r"^TokenEmbedding: padding_idx must be an integer, got str$"):
        TokenEmbedding(5, 4, padding_idx="pad")
    for outside in (-1, 5):
        with pytest.raises(ValueError, match=rf"^TokenEmbedding: padding_idx must lie in \[0, 5\), got {outside}$"):
            TokenEmbedding(5, 4, padding_idx=outside)
