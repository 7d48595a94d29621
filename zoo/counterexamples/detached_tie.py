"""An embedding whose table is also the output layer, but one use is detached: its gradient misses a term.

logits = (W E[ids] + b) Eᵀ. The tie holds in the values: both uses read one table. The gradient of the table should be
the sum of the gradients of both uses. Here the output layer reads `weight.detach()`, or a copy that was made without
gradients, so the term of the logits is lost. The values are right and training still learns something. Only finite
differences show the fault.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec


class DetachedTie(nn.Module):
    """Lookup, a linear layer, and logits of the same table, detached.

    Args:
        num_embeddings: number of tokens in the vocabulary.
        embedding_dim: number of features of a token.

    >>> model = DetachedTie(4, 3)
    >>> model(torch.tensor([1])).sum().backward()
    >>> model.weight.grad[[0, 2, 3]].count_nonzero().item()  # every row has a logit, so none should be zero
    0
    """

    def __init__(self, num_embeddings: int = 7, embedding_dim: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_embeddings, embedding_dim))
        self.linear = nn.Linear(embedding_dim, embedding_dim)

    def forward(self, ids: Tensor) -> Tensor:
        """Map tokens (*), int64, to logits (*, num_embeddings)."""
        return F.linear(self.linear(F.embedding(ids, self.weight)), self.weight.detach())


def _reference(model: DetachedTie, ids: Tensor) -> Tensor:
    return ((model.weight @ model.linear.weight.t() + model.linear.bias) @ model.weight.t())[ids]


SPEC = Spec(
    name="detached_tie",
    summary="a tied embedding whose output layer is detached",
    source="an output layer that copies the table instead of sharing it",
    formula="logits = (W E[ids] + b) Eᵀ; dE without the term of the last product",
    shapes="(...) int64 → (..., vocabulary)",
    build=DetachedTie,
    cases=(Case(name="typical", inputs=lambda g: (torch.randint(7, (2, 3), generator=g),)),),
    dtypes="follows",
    reference=_reference,
    expectations=(
        Expect(
            outcome="INVALID",
            match="^gradcheck in float64: Jacobian mismatch: gradient of weight at",
            reason="the gradient of the table leaves out its use as the output layer",
        ),
    ),
)
