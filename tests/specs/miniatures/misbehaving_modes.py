"""Modes that change state, run otherwise than asked, raise or die; imported by the sources beside this file."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from damaging_modes import Bent, first_element, same
from miniature_parts import around, register
from torch import Tensor

from conformance import NotProvenError, Prepared, ResultDtypes, Runs

# State


def _parameter_changed(model: Any, x: Tensor) -> Tensor:
    y = model(x)
    model.bias.data.add_(1.0)  # which backward does not read, so that nothing else goes wrong
    return y


def _input_changed(model: Any, x: Tensor) -> Tensor:
    y = model(x)
    x.data.mul_(2.0)
    return y


def _buffer_ignored(model: Any, x: Tensor) -> Tensor:
    before = [b.clone() for b in model.buffers()]
    y = model(x)
    with torch.no_grad():
        for buffer, old in zip(model.buffers(), before, strict=True):
            buffer.data.copy_(old)
    return y


def _buffer_narrowed(model: Any, x: Tensor) -> Tensor:
    y = model(x)
    model.calls = model.calls.to(torch.int16)
    return y


# Calls that differ, and autocast


def _with_noise(model: Any, x: Tensor) -> Tensor:
    y = model(x)
    return y + 1e-6 * torch.rand_like(y)


def _every_second_call(damage: Callable[[Tensor], Tensor]) -> Callable[[Any], Prepared]:
    def prepare(model: Any) -> Prepared:
        calls = []

        def call(*args: Any) -> Any:
            calls.append(1)
            return model(*args) if len(calls) % 2 else Bent.apply(model(*args), damage, same)

        return Prepared(call, dict)

    return prepare


def _autocast_off(model: Any, x: Tensor) -> Tensor:
    torch.set_autocast_enabled("cpu", False)
    return model(x)


def _autocast_on(model: Any, x: Tensor) -> Tensor:
    torch.set_autocast_enabled("cpu", True)
    return model(x)


def _autocast_ignored(model: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return model(x)


# Errors and deaths


def _unproven(model: Any) -> Prepared:
    def proof() -> dict[str, Any]:
        raise NotProvenError("the backend was never called")

    return Prepared(model, proof)


def _on_a_kernel(*, falls_back: bool) -> Callable[[Any], Prepared]:
    """A Linear on a kernel of its own, which the second call does not take if it falls back."""

    def prepare(model: Any) -> Prepared:
        runs, calls = Runs("the kernel"), []
        kernel = runs.counted(torch.nn.functional.linear)

        def call(x: Tensor) -> Tensor:
            calls.append(1)
            return model(x) if falls_back and len(calls) > 1 else kernel(x, model.weight, model.bias)

        return runs.prepared(call)

    return prepare


def _in_float16(model: Any) -> Prepared:
    """It says that its product is in float16, and it is in the precision of the cell."""
    return ResultDtypes(torch.float16, ("addmm",)).prepared(model)


def _refusing(model: Any) -> Prepared:
    raise NotImplementedError("this backend takes no Linear")


def _raising(model: Any, *args: Any) -> Any:
    raise LookupError("no kernel")


def _segfault(model: Any, *args: Any) -> Any:
    return ctypes.string_at(0)


def _leave(model: Any, *args: Any) -> Any:
    os._exit(0)


def _leave_politely(model: Any, *args: Any) -> Any:
    sys.exit(0)


def _hang_natively(model: Any, *args: Any) -> None:
    ctypes.PyDLL(None).sleep(3600)  # PyDLL keeps the interpreter's lock: no Python code runs beside it


def _memory_refused(model: Any, *args: Any) -> Any:
    return torch.empty(1 << 50, dtype=torch.uint8)


def _memory_error(model: Any, *args: Any) -> Any:
    raise MemoryError


register(
    {
        "parameter_changed": around(_parameter_changed),
        "input_changed": around(_input_changed),
        "buffer_ignored": around(_buffer_ignored),
        "buffer_narrowed": around(_buffer_narrowed),
        "noise": around(_with_noise),
        "second_call_off": _every_second_call(lambda y: y * (1 + 2.0**-20)),
        "second_call_nan": _every_second_call(first_element(torch.nan)),
        "autocast_off": around(_autocast_off),
        "autocast_on": around(_autocast_on),
        "autocast_ignored": around(_autocast_ignored),
        "unproven": _unproven,
        "on_a_kernel": _on_a_kernel(falls_back=False),
        "falling_back": _on_a_kernel(falls_back=True),
        "in_float16": _in_float16,
        "refusing": _refusing,
        "raising": around(_raising),
        "nothing_prepared": lambda _: 5,
        "segfault": around(_segfault),
        "leaving": around(_leave),
        "leaving_politely": around(_leave_politely),
        "hanging": around(_hang_natively),
        "memory_refused": around(_memory_refused),
        "memory_error": around(_memory_error),
    }
)
