"""Casts a whole model and its inputs to the dtype of a precision, as `model.to(torch.bfloat16)` does."""

from __future__ import annotations

from typing import Any

import torch

from conformance.axes import Precision
from conformance.errors import NotProvenError
from conformance.evaluate import inputs
from zoo.case import Call
from zoo.spec import Spec


def dtype_of(spec: Spec, precision: Precision | None) -> torch.dtype | None:
    """The dtype to cast a model to; None if the precision casts nothing, or if the spec builds it in that dtype."""
    if precision is None or not precision.cast or spec.dtype == precision.cast:
        return None
    return getattr(torch, precision.cast)  # type: ignore[no-any-return]


def model_in(model: Any, dtype: torch.dtype | None, device: str) -> Any:
    """The module on a device, cast in place; a function as it is.

    Args:
        model: a module or a function.
        dtype: the dtype of its real parameters and buffers; None: as they are.
        device: device type.

    Raises:
        NotProvenError: the module did not take the dtype, or it has complex numbers, which have no narrow dtype.
    """
    if not isinstance(model, torch.nn.Module):
        return model
    if dtype is None:
        return model.to(device)
    floating = dict(model.named_parameters()) | dict(model.named_buffers())
    floating = {name: t for name, t in floating.items() if inputs.is_rounded(t)}
    for name, tensor in floating.items():
        if tensor.is_complex():
            raise NotProvenError(f"{name} is {str(tensor.dtype).removeprefix('torch.')}, which {dtype} cannot hold")
    model = model.to(device=device, dtype=dtype)
    parts = [*model.parameters(), *model.buffers()]
    if floating and not any(t.dtype == dtype for t in parts):
        raise NotProvenError(f"no parameter or buffer is in {dtype} after model.to({dtype})")
    return model


def call_in(call: Call, dtype: torch.dtype | None, device: str) -> Call:
    """A copy of the arguments on a device, their real floating tensors cast; None: as they are."""

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device, dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype)

    return inputs.place(call, convert=cast)
