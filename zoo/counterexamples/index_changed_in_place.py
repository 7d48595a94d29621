"""out[i] = tensor[i, index[i]], the offsets of the flattened batch added to the caller's own index.

`index += offset` saves one allocation and leaves the caller with other numbers than he had. The first call is
right; the second, with the same tensors, looks past the end, or on a larger batch reads another sample's rows.
The remedy is `index + offset`; a change that is meant is declared in `Spec.mutates`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec


def index_changed_in_place(tensor: Tensor, index: Tensor) -> Tensor:
    """Rows picked per sample, once.

    Args:
        tensor: (batch, n, width), any dtype.
        index: (batch, picks), int64, values in [0, n); afterwards in [0, batch n).

    Returns:
        (batch, picks, width), dtype of `tensor`.

    Raises:
        IndexError: `index` is out of range, which it may be because of an earlier call.

    >>> tensor, index = torch.tensor([[[1], [2]], [[3], [4]]]), torch.tensor([[1], [1]])
    >>> index_changed_in_place(tensor, index).flatten()
    tensor([2, 4])
    >>> index.flatten()  # rightly still 1 and 1
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
    summary="gather that leaves its offsets in the caller's index",
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
            reason="the caller's index holds the offsets after the call, so the next call reads other rows",
        ),
    ),
)
