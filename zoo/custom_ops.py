"""Helpers for operators of torch.library: a rule for `vmap` and a kernel for autocast."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NAMESPACE = "torch_conformance"
AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")
LIBRARY = torch.library.Library(NAMESPACE, "IMPL")  # its kernels are removed when it is freed


def map_elementwise(operator: Any) -> None:
    """Make `vmap` call an elementwise operator of one tensor once, on the whole batch.

    Args:
        operator: an operator from `torch.library.custom_op`.

    Raises:
        TypeError: it is none.

    >>> from zoo.functions.square import square_op
    >>> torch.vmap(square_op)(torch.tensor([[1.0], [3.0]])).tolist()
    [[1.0], [9.0]]
    """

    def rule(_info: Any, in_dims: tuple[int, ...], x: Tensor) -> tuple[Any, Any]:
        out = operator(x)
        return out, in_dims[0] if isinstance(out, Tensor) else tuple(in_dims[0] for _ in out)

    _register("map_elementwise", operator, rule)


def map_by_sample(operator: Any) -> None:
    """Make `vmap` call an operator once for each sample.

    Args:
        operator: an operator from `torch.library.custom_op` that returns one tensor.

    Raises:
        TypeError: it is none.

    >>> from zoo.functions.matmul_amp import matmul_amp_op
    >>> torch.vmap(matmul_amp_op, in_dims=(0, None))(torch.ones(4, 1, 3), torch.ones(3, 2)).shape
    torch.Size([4, 1, 2])
    """

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        def sample(i: int) -> list[Any]:
            return [arg if dim is None else arg.select(dim, i) for arg, dim in zip(args, in_dims, strict=True)]

        return torch.stack([operator(*sample(i)) for i in range(info.batch_size)]), 0

    _register("map_by_sample", operator, rule)


def _register(caller: str, operator: Any, rule: Any) -> None:
    if not hasattr(operator, "register_autograd"):
        raise TypeError(f"{caller}: operator must come from torch.library.custom_op, got {type(operator).__name__}")
    if hasattr(torch.library, "register_vmap"):  # torch 2.4 has a loop over samples built in and warns about it
        operator.register_vmap(rule)


def run_in_autocast(name: str, dtype: torch.dtype | None = None) -> None:
    """Make an operator cast its inputs under autocast; float64 tensors are not cast, as in autocast itself.

    `torch.library.register_autocast` is no replacement: it takes one dtype for all calls, and torch 2.6 does not
    have it.

    Args:
        name: name of the operator in the namespace of this module.
        dtype: the dtype to cast to under any autocast; None means the autocast dtype of the call.

    Raises:
        TypeError: `name` is not a str, or `dtype` is no dtype.

    >>> from zoo.functions.matmul_amp import matmul_amp_op
    >>> with torch.autocast("cpu", dtype=torch.float16):
    ...     matmul_amp_op(torch.ones(1, 3), torch.ones(3, 2)).dtype
    torch.float16
    """
    if not isinstance(name, str):
        raise TypeError(f"run_in_autocast: name must be a str, got {type(name).__name__}")
    if not (dtype is None or isinstance(dtype, torch.dtype)):
        raise TypeError(f"run_in_autocast: dtype must be a torch.dtype or None, got {type(dtype).__name__}")
    operator = getattr(getattr(torch.ops, NAMESPACE), name)

    def kernel(*args: Any) -> Any:
        device_type = next(arg.device.type for arg in args if isinstance(arg, Tensor))
        wanted = dtype or torch.get_autocast_dtype(device_type)
        with torch.autocast(device_type, enabled=False):
            return operator(*(arg.to(wanted) if _is_cast(arg) else arg for arg in args))

    for device in AUTOCAST_DEVICES:
        if torch.amp.is_autocast_available(device):  # torch 2.4 has none for MPS
            LIBRARY.impl(name, kernel, f"Autocast{device.upper()}")


def _is_cast(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64
