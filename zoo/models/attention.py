"""Causal multi-head self-attention: softmax(Q Kᵀ / √d + mask) V for each head, then a linear layer.

Source: Vaswani et al. 2017, "Attention Is All You Need", arXiv:1706.03762, sections 3.2.1 to 3.2.3.
`CausalSelfAttention` writes the formula out, `FusedCausalSelfAttention` calls `scaled_dot_product_attention`. Both
have the same parameters. Two choices that the formula leaves open:

- The softmax is computed in float32 whatever the autocast dtype, as the fused kernels do inside.
- A token whose every key is masked attends to nothing: its heads give zero, and so do their gradients. A softmax over
  nothing but -inf would give NaN, and NaN would reach every gradient.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from zoo.arguments import want_sizes, want_tensors
from zoo.case import Case
from zoo.claim import Claim
from zoo.error_input import ErrorInput
from zoo.family import Family
from zoo.models.rotary import rotary_embedding
from zoo.scale import Scale
from zoo.shared_expectations import SECOND_LOST, SECOND_LOST_EARLY
from zoo.spec import Spec


class CausalSelfAttention(nn.Module):
    """Every token attends to itself and to the tokens before it.

    Args:
        embed_dim: number of features of a token; `num_heads` divides it.
        num_heads: number of heads, with embed_dim / num_heads features each.
        rotary: turn queries and keys by their positions (`rotary_embedding`); the features of a head must be even.

    Raises:
        TypeError: `embed_dim` or `num_heads` is not an integer.
        ValueError: one of them is below 1, `num_heads` does not divide `embed_dim`, or `rotary` has an odd head.

    >>> model = CausalSelfAttention(embed_dim=16, num_heads=2)
    >>> x, changed = torch.randn(2, 3, 5, 16)
    >>> changed[:, :4] = x[:, :4]
    >>> torch.equal(model(x)[:, :4], model(changed)[:, :4])  # no token sees the last one but itself
    True
    """

    def __init__(self, embed_dim: int, num_heads: int, *, rotary: bool = False) -> None:
        super().__init__()
        want_sizes(type(self).__name__, embed_dim=embed_dim, num_heads=num_heads)
        if embed_dim % num_heads:
            raise ValueError(f"{type(self).__name__}: num_heads must divide embed_dim, got {num_heads} and {embed_dim}")
        if rotary and embed_dim // num_heads % 2:
            raise ValueError(
                f"{type(self).__name__}: rotary needs an even number of features per head, got {embed_dim // num_heads}"
            )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.rotary = rotary
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.out = nn.Linear(embed_dim, embed_dim)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Let the tokens of each sequence attend to each other.

        Args:
            x: (batch, tokens, embed_dim), any floating dtype.
            key_padding_mask: (batch, tokens), bool; no token attends to a token that is True here, as in
                `torch.nn.MultiheadAttention`.

        Returns:
            The shape of `x`, in its dtype or in the autocast dtype. Where every key is masked, the bias of `out`.

        Raises:
            TypeError: `x` is not a tensor of floating-point numbers, or the mask not one of booleans.
            ValueError: `x` or the mask has another shape.
            RuntimeError: `x` and the parameters differ in dtype without autocast (torch names both).
        """
        self._check(x, key_padding_mask)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = self._heads(q), self._heads(k), self._heads(v)
        if self.rotary:
            q, k = rotary_embedding(q), rotary_embedding(k)
        if key_padding_mask is None:
            mixed = self._attend(q, k, v, None)
        else:
            seen = _causal(x.size(1), x.device) & ~key_padding_mask[:, None, None, :]
            blind = ~seen.any(-1, keepdim=True)
            mixed = self._attend(q, k, v, seen | blind).masked_fill(blind, 0.0)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
        """Mix v (batch, heads, tokens, d); `seen` is True where a query sees a key, None for the causal mask."""
        visible = _causal(q.size(2), q.device) if seen is None else seen
        scores = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        mixed: Tensor = weights.to(v.dtype) @ v
        return mixed

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, [self.num_heads, self.embed_dim // self.num_heads])
        return heads.transpose(1, 2)

    def _check(self, x: Tensor, mask: Tensor | None) -> None:
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            want_tensors(type(self).__name__, x=x)
            if mask is not None:
                want_tensors(type(self).__name__, key_padding_mask=mask)
        if x.dim() != 3 or x.size(-1) != self.embed_dim:  # noqa: PLR2004
            raise ValueError(
                f"CausalSelfAttention: x must have shape (batch, tokens, {self.embed_dim}), got {list(x.shape)}"
            )
        if not x.is_floating_point():
            raise TypeError(f"CausalSelfAttention: x must have a floating dtype, got {x.dtype}")
        if mask is not None:
            if mask.dtype != torch.bool:
                raise TypeError(f"CausalSelfAttention: key_padding_mask must have dtype bool, got {mask.dtype}")
            if mask.shape != x.shape[:2]:
                raise ValueError(
                    f"CausalSelfAttention: key_padding_mask must have shape {list(x.shape[:2])}, got {list(mask.shape)}"
                )


class FusedCausalSelfAttention(CausalSelfAttention):
    """`CausalSelfAttention` on torch's fused kernels; arguments, parameters and results are the same.

    The fused kernels do not store the scores, so memory grows linearly with the number of tokens, not with its square.

    >>> model, fused = CausalSelfAttention(16, 2), FusedCausalSelfAttention(16, 2)
    >>> fused.load_state_dict(model.state_dict())
    <All keys matched successfully>
    >>> x = torch.randn(3, 5, 16)
    >>> torch.testing.assert_close(fused(x), model(x))
    """

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
        if v.numel() == 0:
            return v  # of an empty batch, cuDNN's kernel makes None: zoo/probes/attention_of_nothing.py
        if seen is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def _causal(tokens: int, device: torch.device) -> Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()


def _reference(model: CausalSelfAttention, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """Go through samples, tokens and heads one by one, and take only the keys that are seen."""
    d = model.embed_dim // model.num_heads
    q, k, v = (x @ w.t() + b for w, b in zip(model.qkv.weight.chunk(3), model.qkv.bias.chunk(3), strict=True))
    samples = []
    for i in range(x.size(0)):
        rows = []
        for t in range(x.size(1)):
            keys = [j for j in range(t + 1) if key_padding_mask is None or not key_padding_mask[i, j]]
            heads = []
            for h in range(model.num_heads):
                part = slice(h * d, (h + 1) * d)
                scores = k[i, keys, part] @ q[i, t, part] / d**0.5
                heads.append((scores - scores.logsumexp(0)).exp() @ v[i, keys, part])
            rows.append(torch.cat(heads) @ model.out.weight.t() + model.out.bias)
        samples.append(torch.stack(rows))
    return torch.stack(samples) if samples else x


def _tokens(batch: int, tokens: int, generator: torch.Generator) -> tuple[Tensor]:
    return (torch.randn(batch, tokens, 16, generator=generator),)


def _padded(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw four sequences: without padding, with padding behind, in front, and of padding alone."""
    padding = torch.zeros(4, 6, dtype=torch.bool)
    padding[1, 4:] = padding[2, :2] = padding[3] = True
    return *_tokens(4, 6, generator), padding


CASES = (
    Case(name="typical", inputs=partial(_tokens, 2, 7)),
    Case(name="one-token", inputs=partial(_tokens, 3, 1)),
    Case(name="empty", inputs=partial(_tokens, 0, 5)),
    Case(name="padded", inputs=_padded),
    Case(name="large-logits", inputs=lambda g: (6 * torch.randn(16, 12, 8, generator=g).permute(2, 1, 0)[::2],)),
)

ERROR_INPUTS = (
    ErrorInput(name="vectors", inputs=lambda _: (torch.ones(4, 16),), error=ValueError, match="x must have shape"),
    ErrorInput(
        name="integers",
        inputs=lambda _: (torch.ones(2, 3, 16, dtype=torch.int64),),
        error=TypeError,
        match="x must have a floating dtype",
    ),
    ErrorInput(
        name="mask-of-numbers",
        inputs=lambda g: (*_tokens(2, 3, g), torch.ones(2, 3)),
        error=TypeError,
        match="key_padding_mask must have dtype bool",
    ),
    ErrorInput(
        name="mask-of-one-sequence",
        inputs=lambda g: (*_tokens(2, 3, g), torch.zeros(3, dtype=torch.bool)),
        error=ValueError,
        match="key_padding_mask must have shape",
    ),
)


def _scale(build: type[CausalSelfAttention]) -> Scale:
    return Scale(
        size_name="tokens",
        sizes=(16, 128, 512, 2048),
        working=256,
        working_on_cuda=2**12,
        build=lambda _: build(64, 4),
        inputs=lambda n, g: (torch.randn(2, n, 64, generator=g),),
    )


SPEC = Spec(
    name="attention",
    summary="causal multi-head self-attention, written out",
    source="Vaswani et al. 2017, Attention Is All You Need, arXiv:1706.03762",
    formula="y = concat over heads of softmax(Q Kᵀ / √d + mask) V, then a linear layer; Q, K, V linear in x",
    shapes="(batch, tokens, n), (batch, tokens) bool → (batch, tokens, n)",
    build=partial(CausalSelfAttention, embed_dim=16, num_heads=2),
    cases=CASES,
    error_inputs=ERROR_INPUTS,
    dtypes="follows",
    twice_differentiable=True,
    one_graph=True,
    reference=_reference,
    expectations=(replace(SECOND_LOST, torch="<2.5"), SECOND_LOST_EARLY),
    family=Family(sizes={"batch": (1, 4), "tokens": (1, 9)}, inputs=_tokens),
    scale=_scale(CausalSelfAttention),
)
FUSED = replace(
    SPEC,
    name="attention_fused",
    summary="causal multi-head self-attention on scaled_dot_product_attention",
    build=partial(FusedCausalSelfAttention, embed_dim=16, num_heads=2),
    twin="attention",
    twice_differentiable=False,
    expectations=(),
    scale=_scale(FusedCausalSelfAttention),
    claims=(
        Claim(
            text="attention of 2000 tokens needs 10 times less memory where the scores are not stored",
            source="README of FlashAttention, on an NVIDIA A100; head dimension 64 or 128",
            factor=10.0,
            quantity="peak",
            baseline="attention",
            sizes=(2048,),
        ),
    ),
)
