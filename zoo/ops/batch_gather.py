"""Rows picked per sample: out[i] = tensor[i, index[i]], in four variants that agree bit for bit.

tensor (B, N, *rest) and index (B, *picks) give (B, *picks, *rest). Source: "Effective PyTorch", on
vectorising. Its flattened gather reads a row of another sample if an index is out of range. Here every
variant raises an error for such an index, on CUDA without waiting for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from zoo import internals
from zoo.arguments import want_tensors
from zoo.case import Case
from zoo.claim import Claim
from zoo.error_input import ErrorInput
from zoo.family import Family
from zoo.scale import Scale
from zoo.shared_expectations import CHECK_ABORTS, CHECK_LOST
from zoo.spec import Spec


def _check(caller: str, tensor: Tensor, index: Tensor) -> None:
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        want_tensors(caller, tensor=tensor, index=index)
    if tensor.dim() < 2:  # noqa: PLR2004
        raise ValueError(f"{caller}: tensor must have shape (B, N, ...), got {list(tensor.shape)}")
    if index.dim() < 1 or index.size(0) != tensor.size(0):
        raise ValueError(f"{caller}: index must have shape (B, ...) with B = {tensor.size(0)}, got {list(index.shape)}")
    if index.dtype != torch.int64:
        raise TypeError(f"{caller}: index must have dtype int64, got {index.dtype}")
    if index.device != tensor.device:
        raise ValueError(f"{caller}: index must be on the device of tensor, {tensor.device}, got {index.device}")
    inside = ((index >= 0) & (index < tensor.size(1))).all()
    message = f"{caller}: index must lie in [0, {tensor.size(1)}), the rows of tensor"
    asynchronous = index.is_cuda
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        asynchronous = asynchronous or torch.compiler.is_compiling()
    if asynchronous:
        internals.assert_async(inside, message)
    elif not bool(inside):
        raise IndexError(message)


def batch_gather_loop(tensor: Tensor, index: Tensor) -> Tensor:
    """Gather one sample at a time.

    Args:
        tensor: (B, N, *rest), any dtype.
        index: (B, *picks), int64, values in [0, N).

    Returns:
        (B, *picks, *rest), dtype of `tensor`. The gradients of a row that is picked twice are added.

    Raises:
        ValueError: a shape does not fit, or the two tensors are on different devices.
        TypeError: an argument is no tensor, or `index` is not int64.
        IndexError: `index` holds a negative value or a value of N or more. On CUDA, and in compiled code, the
            error is a failed device assertion (RuntimeError) with the same message.

    >>> batch_gather_loop(torch.tensor([[10, 11, 12], [20, 21, 22]]), torch.tensor([[2, 0], [1, 1]]))
    tensor([[12, 10],
            [21, 21]])
    """
    _check("batch_gather_loop", tensor, index)
    return _loop(tensor, index)


def _loop(tensor: Tensor, index: Tensor) -> Tensor:
    shape = list(index.shape) + list(tensor.shape[2:])
    if tensor.size(0) == 0:
        return tensor.reshape(shape)
    rows = []
    for i in range(tensor.size(0)):
        rows.append(tensor[i][index[i].flatten()])  # noqa: PERF401 - TorchScript infers the list's type from append
    return torch.stack(rows).reshape(shape)


def batch_gather_scripted(tensor: Tensor, index: Tensor) -> Tensor:
    """Gather one sample at a time in TorchScript, compiled at the first call; same contract as the loop.

    Python checks the arguments, so the errors are those of the loop. `torch.compile` and `torch.jit.script` take in
    the loop itself.

    >>> batch_gather_scripted(torch.tensor([[10, 11, 12], [20, 21, 22]]), torch.tensor([[2, 0], [1, 1]]))
    tensor([[12, 10],
            [21, 21]])
    """
    _check("batch_gather_scripted", tensor, index)
    if not torch.jit.is_scripting() and not torch.compiler.is_compiling():  # type: ignore[attr-defined]
        gathered: Tensor = _scripted_loop()(tensor, index)
        return gathered
    return _loop(tensor, index)


@cache
def _scripted_loop() -> Any:
    return torch.jit.script(_loop)


def batch_gather_vectorised(tensor: Tensor, index: Tensor) -> Tensor:
    """Gather from the flattened batch, with the indices of sample i offset by i·N; same contract as the loop.

    >>> batch_gather_vectorised(torch.tensor([[10, 11, 12], [20, 21, 22]]), torch.tensor([[2, 0], [1, 1]]))
    tensor([[12, 10],
            [21, 21]])
    """
    _check("batch_gather_vectorised", tensor, index)
    batch, count = tensor.size(0), tensor.size(1)
    offset = torch.arange(batch, device=index.device) * count
    flat = index + offset.reshape([batch] + [1] * (index.dim() - 1))
    return tensor.flatten(0, 1)[flat]


def batch_gather_native(tensor: Tensor, index: Tensor) -> Tensor:
    """Gather with one call of `torch.gather` on an expanded index; same contract as the loop.

    >>> batch_gather_native(torch.tensor([[10, 11, 12], [20, 21, 22]]), torch.tensor([[2, 0], [1, 1]]))
    tensor([[12, 10],
            [21, 21]])
    """
    _check("batch_gather_native", tensor, index)
    rest = list(tensor.shape[2:])
    picks = index.unsqueeze(1).flatten(1)
    wide = picks.reshape([picks.size(0), picks.size(1)] + [1] * len(rest))
    gathered = torch.gather(tensor, 1, wide.expand([picks.size(0), picks.size(1)] + rest))  # noqa: RUF005
    return gathered.reshape(list(index.shape) + rest)


def _reference(_model: object, tensor: Tensor, index: Tensor) -> Tensor:
    """Multiply by one-hot rows."""
    hot = (index.unsqueeze(1).flatten(1).unsqueeze(-1) == torch.arange(tensor.size(1))).to(tensor.dtype)
    product = torch.einsum("bkn,bn...->bk...", hot, tensor)
    return product.reshape(list(index.shape) + list(tensor.shape[2:]))


def _draw(shape: tuple[int, ...], picks: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    tensor = torch.randn(shape, generator=generator)
    return tensor, torch.randint(shape[1], (shape[0], *picks), generator=generator)


def _duplicates(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Every sample picks one row several times, so gradients must accumulate."""
    tensor = torch.randn(3, 5, 4, generator=generator)
    return tensor, torch.tensor([[2, 2, 2, 0], [4, 1, 4, 1], [3, 3, 3, 3]])


def _strided(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    tensor, index = _draw((4, 6, 3), (8,), generator)
    return tensor.transpose(0, 2), index[:3, ::2] % 6


CASES = (
    Case(name="typical", inputs=partial(_draw, (4, 6, 3), (5,))),
    Case(name="duplicates", inputs=_duplicates),
    Case(name="rank-1-index", inputs=partial(_draw, (4, 6, 3), ())),
    Case(name="matrix-of-picks", inputs=partial(_draw, (2, 7), (3, 2))),
    Case(name="empty", inputs=partial(_draw, (0, 6, 3), (5,))),
    Case(name="non-contiguous", inputs=_strided),
)

ERROR_INPUTS = (
    ErrorInput(
        name="vector",
        inputs=lambda g: (torch.randn(4, generator=g), torch.zeros(4, dtype=torch.int64)),
        error=ValueError,
        match=r"tensor must have shape \(B, N",
    ),
    ErrorInput(
        name="batches-differ",
        inputs=lambda g: (torch.randn(4, 6, 3, generator=g), torch.zeros(3, 5, dtype=torch.int64)),
        error=ValueError,
        match=r"index must have shape \(B, \.\.\.\) with B = 4",
    ),
    ErrorInput(
        name="int32",
        inputs=lambda g: (torch.randn(4, 6, 3, generator=g), torch.zeros(4, 5, dtype=torch.int32)),
        error=TypeError,
        match="index must have dtype int64",
    ),
    ErrorInput(
        name="devices-differ",
        inputs=lambda g: (torch.randn(4, 6, 3, generator=g), torch.zeros(4, 5, dtype=torch.int64, device="meta")),
        error=ValueError,
        match="index must be on the device of tensor",
    ),
    # The flattened gather would read a row of another sample. On CUDA, the check is an assertion of the device.
    ErrorInput(
        name="index-too-large",
        inputs=lambda g: (torch.randn(4, 6, 3, generator=g), torch.tensor([[0], [6], [0], [0]])),
        error=IndexError,
        match=r"index must lie in \[0, 6\)",
        devices=("cpu",),
    ),
    ErrorInput(
        name="index-negative",
        inputs=lambda g: (torch.randn(4, 6, 3, generator=g), torch.tensor([[0], [-1], [0], [0]])),
        error=IndexError,
        match=r"index must lie in \[0, 6\)",
        devices=("cpu",),
    ),
)


def _scale(model: Callable[[Tensor, Tensor], Tensor], working: int, working_on_cuda: int) -> Scale:
    return Scale(
        size_name="batch",
        sizes=(8, 32, 128),
        working=working,
        working_on_cuda=working_on_cuda,
        build=lambda _: model,
        inputs=lambda n, g: _draw((n, 8, 4), (4,), g),
    )


LOOP_SCALE = _scale(batch_gather_loop, 2**7, 2**7)  # its time grows by the sample
LOOP = Spec(
    name="batch_gather_loop",
    summary="gather, sample by sample",
    source="Effective PyTorch, optimizing runtime with TorchScript",
    formula="out[b, …] = tensor[b, index[b, …]]",
    shapes="(batch, N, *rest), (batch, *picks) → (batch, *picks, *rest)",
    build=lambda: batch_gather_loop,
    cases=CASES,
    error_inputs=ERROR_INPUTS,
    dtypes="input",
    one_graph=True,
    float32_accurate=("output", "gradient of tensor"),
    reference=_reference,
    expectations=(replace(CHECK_LOST, torch=">=2.5,<2.9"), CHECK_ABORTS),
    family=Family(
        sizes={"batch": (1, 5), "n": (1, 9), "width": (1, 5), "picks": (1, 6)},
        inputs=lambda batch, n, width, picks, g: _draw((batch, n, width), (picks,), g),
    ),
    scale=LOOP_SCALE,
)
SCRIPTED = replace(
    LOOP,
    name="batch_gather_scripted",
    summary="gather, the loop under torch.jit.script",
    build=lambda: batch_gather_scripted,
    twin="batch_gather_loop",
    scale=_scale(batch_gather_scripted, 2**7, 2**7),
    claims=(
        Claim(
            text="the loop is about 10 % faster under TorchScript",
            source="Effective PyTorch, optimizing runtime with TorchScript; the machine is not named",
            factor=1.1,
            quantity="forward",
            baseline="batch_gather_loop",
            mode="scripted",
        ),
    ),
)
VECTORISED = replace(
    LOOP,
    name="batch_gather_vectorised",
    expectations=(CHECK_LOST,),
    summary="gather from the flattened batch",
    build=lambda: batch_gather_vectorised,
    twin="batch_gather_loop",
    scale=_scale(batch_gather_vectorised, 2**14, 2**20),
    claims=(
        Claim(
            text="vectorised, it is 100 times faster than the loop",
            source="Effective PyTorch, optimizing runtime with TorchScript; on CUDA, GPU and sizes are not named",
            factor=100.0,
            quantity="forward",
            baseline="batch_gather_loop",
            sizes=(64, 256, 1024),
        ),
    ),
)
NATIVE = replace(
    LOOP,
    name="batch_gather_native",
    summary="gather in one torch call",
    build=lambda: batch_gather_native,
    twin="batch_gather_loop",
    scale=_scale(batch_gather_native, 2**14, 2**20),
)
