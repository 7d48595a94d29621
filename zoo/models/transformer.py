"""A small decoder-only transformer, put together from the parts of the zoo.

Tokens are looked up in a table that is also the output layer. Each block adds causal self-attention with rotary
positions, then a gated perceptron, both behind a norm by the root mean square. The form is that of Touvron et al. 2023,
"LLaMA: Open and Efficient Foundation Language Models", arXiv:2302.13971. `DecoderOnlyTransformer` takes its attention
and its norm as classes: those that are written out, or torch's own. The parameters are the same.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from zoo.arguments import want_callables, want_sizes, want_tensors
from zoo.case import Case
from zoo.convention import Convention
from zoo.error_input import ErrorInput
from zoo.family import Family
from zoo.models.attention import CausalSelfAttention, FusedCausalSelfAttention
from zoo.models.embedding import TokenEmbedding, want_padding
from zoo.models.rms_norm import EPS, RMSNormByHand
from zoo.scale import Scale
from zoo.shared_expectations import LOOPS_MERGED, NAN_IN_BOUNDS, REPEATED_TOKENS_LOST
from zoo.spec import Spec

PADDING = 0


class GatedMLP(nn.Module):
    """The perceptron of a block: down(silu(gate(x)) · up(x)), without biases. Source: Shazeer 2020, arXiv:2002.05202.

    Args:
        embed_dim: number of features of a token.
        hidden_dim: number of hidden units.

    >>> GatedMLP(4, 6)(torch.ones(2, 3, 4)).shape
    torch.Size([2, 3, 4])
    """

    def __init__(self, embed_dim: int, hidden_dim: int) -> None:
        super().__init__()
        want_sizes("GatedMLP", embed_dim=embed_dim, hidden_dim=hidden_dim)
        self.gate = nn.Linear(embed_dim, hidden_dim, bias=False)
        self.up = nn.Linear(embed_dim, hidden_dim, bias=False)
        self.down = nn.Linear(hidden_dim, embed_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (*, embed_dim), floating, to the same shape, in its dtype or in the autocast dtype.

        Raises:
            TypeError: `x` is not a tensor.
            RuntimeError: shape or dtype of `x` do not fit the parameters (torch names both).
        """
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            want_tensors("GatedMLP", x=x)
        y: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return y


class DecoderBlock(nn.Module):
    """x + attention(norm(x)), and to this its own gated perceptron behind a norm.

    Args:
        embed_dim, num_heads: as for `CausalSelfAttention`.
        hidden_dim: number of hidden units of the perceptron.
        attention: `CausalSelfAttention` or `FusedCausalSelfAttention`.
        norm: `RMSNormByHand` or `torch.nn.RMSNorm`.

    >>> DecoderBlock(embed_dim=8, num_heads=2, hidden_dim=12)(torch.randn(2, 3, 8)).shape
    torch.Size([2, 3, 8])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        attention: type[CausalSelfAttention] = CausalSelfAttention,
        norm: type[RMSNormByHand | nn.RMSNorm] = RMSNormByHand,
    ) -> None:
        super().__init__()
        want_sizes("DecoderBlock", embed_dim=embed_dim, num_heads=num_heads, hidden_dim=hidden_dim)
        want_callables("DecoderBlock", attention=attention, norm=norm)
        self.norm1 = norm(embed_dim, eps=EPS)
        self.attention = attention(embed_dim, num_heads, rotary=True)
        self.norm2 = norm(embed_dim, eps=EPS)
        self.mlp = GatedMLP(embed_dim, hidden_dim)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Map (batch, tokens, embed_dim), floating, to the same shape; arguments and errors as for the attention."""
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            want_tensors("DecoderBlock", x=x)
            if key_padding_mask is not None:
                want_tensors("DecoderBlock", key_padding_mask=key_padding_mask)
        x = x + self.attention(self.norm1(x), key_padding_mask)
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class DecoderOnlyTransformer(nn.Module):
    """Scores the next token behind every token of a sequence.

    Args:
        vocab_size: number of tokens in the vocabulary.
        embed_dim: number of features of a token; `num_heads` divides it.
        num_heads: number of heads of each block, with an even number of features each.
        num_layers: number of blocks.
        hidden_dim: number of hidden units of each block's perceptron.
        padding_idx: the token that no token attends to; None: there is none. It may stand behind or in front.
        attention, norm: as for `DecoderBlock`.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size is below 1, the heads do not fit, or `padding_idx` is no token of the vocabulary.

    >>> model = DecoderOnlyTransformer(vocab_size=10, embed_dim=8, num_heads=2, num_layers=2, hidden_dim=12)
    >>> model(torch.tensor([[3, 1, 4], [1, 5, 9]])).shape
    torch.Size([2, 3, 10])
    """

    def __init__(  # noqa: PLR0913 - the sizes of a transformer
        self,
        vocab_size: int,
        embed_dim: int,
        num_heads: int,
        num_layers: int,
        hidden_dim: int,
        padding_idx: int | None = None,
        attention: type[CausalSelfAttention] = CausalSelfAttention,
        norm: type[RMSNormByHand | nn.RMSNorm] = RMSNormByHand,
    ) -> None:
        super().__init__()
        want_sizes("DecoderOnlyTransformer", vocab_size=vocab_size, embed_dim=embed_dim, num_heads=num_heads)
        want_sizes("DecoderOnlyTransformer", num_layers=num_layers, hidden_dim=hidden_dim)
        want_callables("DecoderOnlyTransformer", attention=attention, norm=norm)
        want_padding("DecoderOnlyTransformer", padding_idx, vocab_size)
        self.padding_idx = padding_idx
        self.embedding = TokenEmbedding(vocab_size, embed_dim, padding_idx)
        self.blocks = nn.ModuleList(
            DecoderBlock(embed_dim, num_heads, hidden_dim, attention, norm) for _ in range(num_layers)
        )
        self.norm = norm(embed_dim, eps=EPS)

    def forward(self, ids: Tensor) -> Tensor:
        """Map tokens (batch, tokens), int64, to logits (batch, tokens, vocab_size), float32 or the autocast dtype.

        Raises:
            ValueError: `ids` has another number of axes.
            TypeError: `ids` is not a tensor of dtype int64.
            IndexError: a token is not in the vocabulary; see `TokenEmbedding`.
        """
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            want_tensors("DecoderOnlyTransformer", ids=ids)
        if ids.dim() != 2:  # noqa: PLR2004
            raise ValueError(f"DecoderOnlyTransformer: ids must have shape (batch, tokens), got {list(ids.shape)}")
        x = self.embedding(ids)
        padding = None if self.padding_idx is None else ids == self.padding_idx
        for block in self.blocks:
            x = block(x, padding)
        logits: Tensor = self.embedding.logits(self.norm(x))
        return logits


def _normed(norm: RMSNormByHand | nn.RMSNorm, x: Tensor) -> Tensor:
    """Divide a row by its length: |x| / √n is the root mean square."""
    assert norm.eps is not None
    normed: Tensor = x * x.numel() ** 0.5 / (x @ x + x.numel() * norm.eps).sqrt() * norm.weight
    return normed


def _rotation(position: int, d: int) -> Tensor:
    """The matrix that turns the pairs of d features at a position."""
    angles = position * 10000.0 ** (torch.arange(0, d, 2, dtype=torch.float64) * (-1 / d))
    turns = [torch.tensor([[a.cos(), -a.sin()], [a.sin(), a.cos()]], dtype=torch.float64) for a in angles]
    rotation: Tensor = torch.block_diag(*turns)
    return rotation


def _attended(model: CausalSelfAttention, rows: list[Tensor], seen: list[int]) -> Tensor:
    """What the last of the rows gets from those that it sees, head by head."""
    last, d = len(rows) - 1, model.embed_dim // model.num_heads
    heads = []
    for h in range(model.num_heads):
        part = torch.arange(h * d, (h + 1) * d)
        q, k, v = (part + i * model.embed_dim for i in range(3))
        weight, bias = model.qkv.weight, model.qkv.bias
        query = _rotation(last, d) @ (weight[q] @ rows[last] + bias[q])
        scores = [query @ _rotation(j, d) @ (weight[k] @ rows[j] + bias[k]) / d**0.5 for j in seen]
        shares = [s.exp() / sum(other.exp() for other in scores) for s in scores]
        mixed = rows[last].new_zeros(d)
        for share, j in zip(shares, seen, strict=True):
            mixed = mixed + share * (weight[v] @ rows[j] + bias[v])
        heads.append(mixed)
    result: Tensor = model.out.weight @ torch.cat(heads) + model.out.bias
    return result


def _sequence(model: DecoderOnlyTransformer, ids: list[int]) -> Tensor:
    table = model.embedding.weight
    rows = [table[i] for i in ids]
    seen = [[j for j in range(t + 1) if ids[j] != model.padding_idx] for t in range(len(ids))]
    for block in model.blocks:
        assert isinstance(block, DecoderBlock)
        normed = [_normed(block.norm1, row) for row in rows]
        rows = [row + _attended(block.attention, normed[: t + 1], seen[t]) for t, row in enumerate(rows)]
        for t, row in enumerate(rows):
            normed_row = _normed(block.norm2, row)
            gate = block.mlp.gate.weight @ normed_row
            rows[t] = row + block.mlp.down.weight @ (gate / (1 + (-gate).exp()) * (block.mlp.up.weight @ normed_row))
    return torch.stack([table @ _normed(model.norm, row) for row in rows])


def _reference(model: DecoderOnlyTransformer, ids: Tensor) -> Tensor:
    """Go through sequences, blocks, tokens and heads one by one, with products of matrices and vectors."""
    return torch.stack([_sequence(model, sequence) for sequence in ids.tolist()])


def _ids(batch: int, tokens: int, generator: torch.Generator) -> tuple[Tensor]:
    return (torch.randint(1, 13, (batch, tokens), generator=generator),)


def _padded(generator: torch.Generator) -> tuple[Tensor]:
    """Draw a sequence with padding behind, one with padding in front, and one of padding alone."""
    (ids,) = _ids(3, 6, generator)
    ids[0, 4:] = ids[1, :2] = ids[2, :] = PADDING
    return (ids,)


def _scale(attention: type[CausalSelfAttention], norm: type[RMSNormByHand | nn.RMSNorm]) -> Scale:
    return Scale(
        size_name="tokens",
        sizes=(16, 64, 256),
        working=32,
        working_on_cuda=2**11,
        build=lambda _: DecoderOnlyTransformer(256, 64, 4, 2, 128, PADDING, attention, norm),
        inputs=lambda n, g: (torch.randint(1, 256, (2, n), generator=g),),
    )


SIZES: dict[str, Any] = {
    "vocab_size": 13,
    "embed_dim": 16,
    "num_heads": 2,
    "num_layers": 1,
    "hidden_dim": 24,
    "padding_idx": PADDING,
}

# one block and few cases: to compile a case cold takes ten seconds or more of a core
SPEC = Spec(
    name="transformer",
    summary="a decoder-only transformer of one block, attention and norms written out",
    source="Touvron et al. 2023, LLaMA: Open and Efficient Foundation Language Models, arXiv:2302.13971",
    formula="x = E[ids]; x += attention(norm(x)); x += mlp(norm(x)); logits = norm(x) Eᵀ",
    shapes="(batch, tokens) int64 → (batch, tokens, vocabulary)",
    build=partial(DecoderOnlyTransformer, **SIZES),
    cases=(
        Case(name="typical", inputs=partial(_ids, 2, 6)),
        Case(name="padded", inputs=_padded),
        Case(name="one-token", inputs=partial(_ids, 3, 1)),
        Case(name="one-longer-sequence", inputs=lambda g: (_ids(12, 2, g)[0].t()[:1],)),  # and not contiguous
    ),
    error_inputs=(
        ErrorInput(
            name="no-batch",
            inputs=lambda _: (torch.ones(6, dtype=torch.int64),),
            error=ValueError,
            match="ids must have shape",
        ),
        ErrorInput(
            name="numbers", inputs=lambda _: (torch.ones(2, 6),), error=TypeError, match="ids must have dtype int64"
        ),
    ),
    dtypes="follows",
    one_graph=True,
    reference=_reference,
    expectations=(NAN_IN_BOUNDS, LOOPS_MERGED, replace(REPEATED_TOKENS_LOST, torch=">=2.6,<2.7")),
    conventions=(
        Convention(
            tensor="embedding.weight",
            rows=(PADDING,),
            why="the lookup gives the row of padding_idx no gradient; its logit does",
        ),
    ),
    family=Family(sizes={"batch": (1, 4), "tokens": (1, 7)}, inputs=_ids),
    scale=_scale(CausalSelfAttention, RMSNormByHand),
)
FUSED = replace(
    SPEC,
    name="transformer_fused",
    summary="a decoder-only transformer of one block on scaled_dot_product_attention and torch.nn.RMSNorm",
    build=partial(DecoderOnlyTransformer, **SIZES, attention=FusedCausalSelfAttention, norm=nn.RMSNorm),
    twin="transformer",
    expectations=(NAN_IN_BOUNDS, REPEATED_TOKENS_LOST),
    scale=_scale(FusedCausalSelfAttention, nn.RMSNorm),
)
