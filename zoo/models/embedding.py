"""An embedding of tokens whose table is also the output layer: vectors h = E[ids], logits = h Eᵀ.

Source: Press and Wolf 2017, "Using the Output Embedding to Improve Language Models", arXiv:1608.05859. The gradient of
a tied table is the sum of the gradients of both uses. With a `padding_idx`, torch's lookup gives the padding row no
gradient, by convention and not by calculus. The output layer knows no padding: there the row has the gradient of its
logit. So the padding row of a tied table does move, unless the loss leaves its logit out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from zoo import internals
from zoo.arguments import want_integers, want_sizes, want_tensors
from zoo.case import Case
from zoo.convention import Convention
from zoo.error_input import ErrorInput
from zoo.family import Family
from zoo.scale import Scale
from zoo.shared_expectations import CHECK_ABORTS, SECOND_LOST_EARLY
from zoo.spec import Spec

PADDING = 0


def want_padding(function: str, padding_idx: int | None, num_embeddings: int) -> None:
    """Check that the padding token is one of the vocabulary, or None.

    Raises:
        TypeError: it is not an integer.
        ValueError: it is not in [0, num_embeddings).

    >>> want_padding("TokenEmbedding", 10, 10)
    Traceback (most recent call last):
    ValueError: TokenEmbedding: padding_idx must lie in [0, 10), got 10
    """
    if padding_idx is None:
        return
    want_integers(function, padding_idx=padding_idx)
    if not 0 <= padding_idx < num_embeddings:
        raise ValueError(f"{function}: padding_idx must lie in [0, {num_embeddings}), got {padding_idx}")


class TokenEmbedding(nn.Module):
    """A table of token vectors, for lookups and for logits.

    Args:
        num_embeddings: number of tokens in the vocabulary.
        embedding_dim: number of features of a token.
        padding_idx: the token whose row begins as zeros and gets no gradient from lookups; None: there is none.

    The other rows are drawn with deviation 1 / √embedding_dim. So the logits of vectors of norm √embedding_dim, such
    as those behind a norm, have deviation 1.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size is below 1, or `padding_idx` is no index of the table.

    >>> table = TokenEmbedding(num_embeddings=10, embedding_dim=4, padding_idx=0)
    >>> vectors = table(torch.tensor([[3, 1, 0]]))
    >>> vectors.shape, table.logits(vectors).shape
    (torch.Size([1, 3, 4]), torch.Size([1, 3, 10]))
    >>> vectors[0, 2].tolist()
    [0.0, 0.0, 0.0, 0.0]
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None) -> None:
        super().__init__()
        want_sizes("TokenEmbedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        want_padding("TokenEmbedding", padding_idx, num_embeddings)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx
        weight = torch.randn(num_embeddings, embedding_dim) * embedding_dim**-0.5
        if padding_idx is not None:
            weight[padding_idx] = 0
        self.weight = nn.Parameter(weight)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up tokens: (*), int64, to (*, embedding_dim), in the dtype of the table.

        Raises:
            TypeError: `ids` is not a tensor of dtype int64.
            IndexError: a token is not in [0, num_embeddings). On CUDA, and in compiled code, the error is a failed
                device assertion (RuntimeError) with the same message.
        """
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            want_tensors("TokenEmbedding", ids=ids)
        if ids.dtype != torch.int64:
            raise TypeError(f"TokenEmbedding: ids must have dtype int64, got {ids.dtype}")
        self._check_range(ids)
        return F.embedding(ids, self.weight, self.padding_idx)

    def logits(self, h: Tensor) -> Tensor:
        """Multiply vectors (*, embedding_dim), any floating dtype, with every row: logits (*, num_embeddings).

        Raises:
            ValueError: the trailing size of `h` is not `embedding_dim`.
            TypeError: `h` is not a tensor of floating-point numbers.

        >>> TokenEmbedding(10, 4).logits(torch.ones(2, 4)).shape
        torch.Size([2, 10])
        """
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            want_tensors("TokenEmbedding.logits", h=h)
        if h.dim() == 0 or h.size(-1) != self.embedding_dim:
            raise ValueError(
                f"TokenEmbedding.logits: h must have trailing size {self.embedding_dim}, got shape {list(h.shape)}"
            )
        if not h.is_floating_point():
            raise TypeError(f"TokenEmbedding.logits: h must have a floating dtype, got {h.dtype}")
        return F.linear(h, self.weight)

    def _check_range(self, ids: Tensor) -> None:
        inside = ((ids >= 0) & (ids < self.num_embeddings)).all()
        message = f"TokenEmbedding: ids must lie in [0, {self.num_embeddings}), the rows of the table"
        asynchronous = ids.is_cuda
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            asynchronous = asynchronous or torch.compiler.is_compiling()
        if asynchronous:
            internals.assert_async(inside, message)
        elif not bool(inside):
            raise IndexError(message)


class TiedBigram(nn.Module):
    """Scores the next token by the last one alone: lookup, a linear layer, and the logits of the same table.

    Args:
        num_embeddings, embedding_dim, padding_idx: as for `TokenEmbedding`.

    >>> TiedBigram(10, 4)(torch.tensor([[3, 1]])).shape
    torch.Size([1, 2, 10])
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None) -> None:
        super().__init__()
        want_sizes("TiedBigram", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        want_padding("TiedBigram", padding_idx, num_embeddings)
        self.embedding = TokenEmbedding(num_embeddings, embedding_dim, padding_idx)
        self.linear = nn.Linear(embedding_dim, embedding_dim)

    def forward(self, ids: Tensor) -> Tensor:
        """Map tokens (*), int64, to logits (*, num_embeddings); errors as in `TokenEmbedding`."""
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            want_tensors("TiedBigram", ids=ids)
        logits: Tensor = self.embedding.logits(self.linear(self.embedding(ids)))
        return logits


def _one_hot(ids: Tensor, table: Tensor) -> Tensor:
    return (ids.unsqueeze(-1) == torch.arange(table.size(0))).to(table.dtype)


def _lookup_reference(model: TokenEmbedding, ids: Tensor) -> Tensor:
    return _one_hot(ids, model.weight) @ model.weight


def _tied_reference(model: TiedBigram, ids: Tensor) -> Tensor:
    """Multiply all matrices first, which scores every pair of tokens, and pick rows."""
    table, linear = model.embedding.weight, model.linear
    pairs = (table @ linear.weight.t() + linear.bias) @ table.t()
    return _one_hot(ids, table) @ pairs


def _ids(shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor]:
    return (torch.randint(11, shape, generator=generator),)


def _padded(generator: torch.Generator) -> tuple[Tensor]:
    (ids,) = _ids((3, 6), generator)
    ids[0, 4:] = PADDING
    ids[1, :] = PADDING
    return (ids,)


CASES = (
    Case(name="typical", inputs=lambda g: _ids((4, 6), g)),
    Case(name="padded", inputs=_padded),
    Case(name="one-token", inputs=lambda g: _ids((1, 1), g)),
    Case(name="repeated-tokens", inputs=lambda _: (torch.tensor([3, 3, 3, 7, 7, 3]),)),
    Case(name="empty", inputs=lambda g: _ids((0, 6), g)),
    Case(name="non-contiguous", inputs=lambda g: (_ids((6, 8), g)[0].t()[::2],)),
)
ERROR_INPUTS = (
    ErrorInput(
        name="numbers", inputs=lambda _: (torch.ones(4, 6),), error=TypeError, match="ids must have dtype int64"
    ),
    ErrorInput(
        name="no-such-token",
        inputs=lambda _: (torch.full((4, 6), 11),),
        error=IndexError,
        match=r"ids must lie in \[0, 11\)",
        devices=("cpu",),  # CUDA checks it later, and a failed check ends its process
    ),
)

SPEC = Spec(
    name="embedding",
    summary="lookup of token vectors, with a padding row",
    source="Press and Wolf 2017, Using the Output Embedding to Improve Language Models, arXiv:1608.05859",
    formula="h = E[ids]; the padding row gets no gradient",
    shapes="(...) int64 → (..., n)",
    build=partial(TokenEmbedding, num_embeddings=11, embedding_dim=6, padding_idx=PADDING),
    cases=CASES,
    error_inputs=ERROR_INPUTS,
    dtypes="float32",
    one_graph=True,
    float32_accurate=("output", "gradient of weight"),
    reference=_lookup_reference,
    expectations=(CHECK_ABORTS,),
    conventions=(Convention(tensor="weight", rows=(PADDING,), zero=True, why="the row of padding_idx is not trained"),),
    family=Family(sizes={"batch": (1, 5), "tokens": (1, 9)}, inputs=lambda batch, tokens, g: _ids((batch, tokens), g)),
    scale=Scale(
        size_name="tokens",
        sizes=(16, 64, 256, 1024),
        working=2**12,
        working_on_cuda=2**20,
        build=lambda _: TokenEmbedding(1024, 64, padding_idx=PADDING),
        inputs=lambda n, g: (torch.randint(1024, (4, n), generator=g),),
    ),
)
TIED = Spec(
    name="tied_embedding",
    summary="a bigram model whose table of tokens is also its output layer",
    source="Press and Wolf 2017, Using the Output Embedding to Improve Language Models, arXiv:1608.05859",
    formula="logits = (W E[ids] + b) Eᵀ; the gradient of E is the sum over both uses",
    shapes="(...) int64 → (..., vocabulary)",
    build=partial(TiedBigram, num_embeddings=11, embedding_dim=6, padding_idx=PADDING),
    cases=tuple(case for case in CASES if case.name != "empty"),  # torch has no second derivative of an empty lookup
    error_inputs=ERROR_INPUTS,
    dtypes="follows",
    twice_differentiable=True,
    one_graph=True,
    reference=_tied_reference,
    expectations=(CHECK_ABORTS, replace(SECOND_LOST_EARLY, torch=">=2.5,<2.6")),
    conventions=(
        Convention(
            tensor="embedding.weight",
            rows=(PADDING,),
            why="the lookup gives the row of padding_idx no gradient; its logit does",
        ),
    ),
    family=Family(  # without padding, whose gradient is no derivative, so that it has no second one
        sizes={"batch": (1, 5), "tokens": (1, 9)},
        inputs=lambda batch, tokens, g: (torch.randint(PADDING + 1, 11, (batch, tokens), generator=g),),
    ),
    scale=Scale(
        size_name="tokens",
        sizes=(16, 64, 256, 1024),
        working=64,
        working_on_cuda=2**14,
        build=lambda _: TiedBigram(1024, 64, padding_idx=PADDING),
        inputs=lambda n, g: (torch.randint(1024, (4, n), generator=g),),
    ),
)
