"""out[i] = tensor[i, index[i]] from the flattened batch, with a check of the index that only eager makes.

Checks stand under `if not torch.jit.is_scripting()` because TorchScript compiles few of them, and under
`if not torch.compiler.is_compiling()` because they break the graph. The scripted and the compiled function then read
a row of another sample, without an error. `zoo.ops.batch_gather` checks in every mode.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.case import Case
from zoo.error_input import ErrorInput
from zoo.expect import Expect
from zoo.spec import Spec


def gather_check_lost(tensor: Tensor, index: Tensor) -> Tensor:
    """Pick rows per sample; right if every index is in range.

    Args:
        tensor: (batch, n, width), any dtype.
        index: (batch, picks), int64, values in [0, n).

    Returns:
        (batch, picks, width), dtype of `tensor`.

    Raises:
        IndexError: `index` is out of range, in eager; scripted or compiled, the result is wrong.

    >>> tensor = torch.tensor([[[1], [2]], [[3], [4]]])
    >>> torch.jit.script(gather_check_lost)(tensor, torch.tensor([[2], [1]])).flatten()  # sample 0 has no row 2
    tensor([3, 4])
    """
    batch, rows = tensor.size(0), tensor.size(1)
    outside = ((index < 0) | (index >= rows)).any()
    if not torch.jit.is_scripting() and not torch.compiler.is_compiling() and bool(outside):  # type: ignore[attr-defined]
        raise IndexError(f"gather_check_lost: index must lie in [0, {rows}), the rows of tensor")
    offset = torch.arange(batch, device=index.device) * rows
    return tensor.flatten(0, 1)[index + offset.unsqueeze(1)]


def _reference(_model: object, tensor: Tensor, index: Tensor) -> Tensor:
    """Multiply by one-hot rows."""
    hot = (index.unsqueeze(-1) == torch.arange(tensor.size(1))).to(tensor.dtype)
    return torch.einsum("bkn,bnw->bkw", hot, tensor)


SPEC = Spec(
    name="gather_check_lost",
    summary="gather that checks its index in eager only",
    source="a check under `if not torch.jit.is_scripting()`",
    formula="out[i] = tensor[i, index[i]]",
    shapes="(batch, n, width), (batch, picks) → (batch, picks, width)",
    build=lambda: gather_check_lost,
    cases=(
        Case(
            name="typical",
            inputs=lambda g: (torch.randn(3, 4, 2, generator=g), torch.randint(4, (3, 5), generator=g)),
        ),
    ),
    dtypes="input",
    reference=_reference,
    error_inputs=(
        ErrorInput(
            name="row-of-the-next-sample",
            inputs=lambda g: (torch.randn(3, 4, 2, generator=g), torch.tensor([[4], [0], [0]])),
            error=IndexError,
            match=r"index must lie in \[0, 4\)",
        ),
    ),
    expectations=(
        Expect(
            outcome="FAIL",
            modes=("scripted", "compiled", "compiled_dynamic", "exported", "graphed"),
            tensor="output",
            gate="raises",
            case="row-of-the-next-sample",
            reason="the check is left out where TorchScript, torch.compile or torch.export reads the function",
        ),
    ),
)
