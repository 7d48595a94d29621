"""out[i] = tensor[i, index[i]], with the offsets of the flattened batch added to the caller's index in place.

`index += offset` saves one allocation, but it changes the caller's tensor. The first call is right. A second call
with the same tensors reads past the end, or rows of another sample if the batch is large enough. The remedy is
`index + offset`. A change on purpose must be declared in `Spec.mutates`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec


def index_changed_in_place(tensor: Tensor, index: Tensor) -> Tensor:
    """Pick rows per sample; right only in the first call with an index.

    Args:
        tensor: (batch, n, width), any dtype.
        index: (batch, picks), int64, values in [0, n); after the call, values in [0, batch n).

    Returns:
        (batch, picks, width), dtype of `tensor`.

    Raises:
        IndexError: `index` is out of range, for example after an earlier call.

    >>> tensor, index = torch.tensor([[[1], [2]], [[3], [4]]]), torch.tensor([[1], [1]])
    >>> index_changed_in_place(tensor, index).flatten()
    tensor([2, 4])
    >>> index.flatten()  # 1 and 1 is right
    tensor([1, 3])
    """
    batch, rows = tensor.size(0), tensor.size(1)
    index += (torch.arange(batch, device=index.device) * rows).unsqueeze(1)
    return tensor.flatten(0, 1)[index]


def _reference(_model: object, tensor: Tensor, index: Tensor) -> Tensor:
    """Multiply by one-hot rows."""
    hot = (index.unsqueeze(-1) == torch.arange(tensor.size(1))).to(tensor.dtype)
    return torch.einsum("bkn,bnw->bkw", hot, tensor)


SPEC = Spec(
    name="index_changed_in_place",
    summary="gather that adds its offsets to the caller's index",
    source="an in-place addition to save memory",
    formula="out[i] = tensor[i, index[i]]; index[i] = index[i] + i n",
    shapes="(batch, n, width), (batch, picks) → (batch, picks, width)",
    build=lambda: index_changed_in_place,
    cases=(
        Case(
            name="typical",
            inputs=lambda g: (torch.randn(3, 4, 2, generator=g), torch.randint(4, (3, 5), generator=g)),
        ),
    ),
    dtypes="input",
    differentiable=False,
    reference=_reference,
    expectations=(
        Expect(
            outcome="FAIL",
            tensor="index",
            gate="structure",
            reason="the caller's index contains the offsets after the call, so the next call reads other rows",
        ),
    ),
)
