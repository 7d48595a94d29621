"""out[i] = tensor[i, index[i]] from the flattened batch, with an offset that is one row too short per sample.

Source: "Effective PyTorch", on vectorising. Row j of sample i is at i n + j, but this function reads i (n - 1) + j,
which can be a row of an earlier sample. Every index is in range, so nothing raises. `zoo.ops.batch_gather` is right.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec


def gather_off_by_one(tensor: Tensor, index: Tensor) -> Tensor:
    """Pick rows per sample; for all samples except the first, the rows come from the wrong place.

    Args:
        tensor: (batch, n, width), any dtype.
        index: (batch, picks), int64, values in [0, n).

    Returns:
        (batch, picks, width), dtype of `tensor`.

    >>> tensor = torch.tensor([[[1], [2]], [[3], [4]]])
    >>> gather_off_by_one(tensor, torch.tensor([[1], [1]])).flatten()  # 2 and 4 are right
    tensor([2, 3])
    """
    batch, rows = tensor.size(0), tensor.size(1)
    offset = torch.arange(batch, device=index.device) * (rows - 1)
    return tensor.flatten(0, 1)[index + offset.unsqueeze(1)]


def _reference(_model: object, tensor: Tensor, index: Tensor) -> Tensor:
    """Multiply by one-hot rows."""
    hot = (index.unsqueeze(-1) == torch.arange(tensor.size(1))).to(tensor.dtype)
    return torch.einsum("bkn,bnw->bkw", hot, tensor)


SPEC = Spec(
    name="gather_off_by_one",
    summary="gather with too short an offset: it reads rows of another sample",
    source="Effective PyTorch, optimizing runtime",
    formula="out[i] = tensor[i, index[i]]",
    shapes="(batch, n, width), (batch, picks) → (batch, picks, width)",
    build=lambda: gather_off_by_one,
    cases=(
        Case(
            name="typical",
            inputs=lambda g: (torch.randn(3, 4, 2, generator=g), torch.randint(4, (3, 5), generator=g)),
        ),
    ),
    dtypes="input",
    reference=_reference,
    expectations=(
        Expect(
            outcome="INVALID",
            match="^output: the float64 oracle differs from the spec's reference;",
            reason="sample i begins at row i n of the flattened batch, not at i (n - 1)",
        ),
    ),
)
