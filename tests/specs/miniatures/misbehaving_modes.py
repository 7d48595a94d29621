"""Modes that change state, run otherwise than asked, raise or die; imported by the sources beside this file."""

import ctypes
import os
import sys

import torch
from damaging_modes import Bent, first_element, same
from miniature_parts import around, register, second_time

from conformance import NotProvenError, Prepared, ResultDtypes, Runs

# State


def _parameter_changed(model, x):
    y = model(x)
    model.bias.data.add_(1.0)  # which backward does not read, so that nothing else goes wrong
    return y


def _input_changed(model, x):
    y = model(x)
    x.data.mul_(2.0)
    return y


def _buffer_ignored(model, x):
    before = [b.clone() for b in model.buffers()]
    y = model(x)
    with torch.no_grad():
        for buffer, old in zip(model.buffers(), before, strict=True):
            buffer.data.copy_(old)
    return y


def _buffer_narrowed(model, x):
    y = model(x)
    model.calls = model.calls.to(torch.int16)
    return y


def _mean_in_bfloat16(model, x):
    y = model(x)
    model.mean.data.copy_(model.mean.bfloat16())
    return y


# Calls that differ, and autocast


def _with_noise(model, x):
    y = model(x)
    return y + 1e-6 * torch.rand_like(y)


def _now_and_then(damage):
    return second_time(lambda y, _: Bent.apply(y, damage, same))


def _with_autocast(enabled):
    def call(model, x):
        torch.set_autocast_enabled("cpu", enabled)
        return model(x)

    return around(call)


def _autocast_ignored(model, x):
    with torch.autocast("cpu", enabled=False):
        return model(x)


# Errors and deaths


def _unproven(model):
    def proof():
        raise NotProvenError("the backend was never called")

    return Prepared(model, proof)


def _on_a_kernel(*, falls_back):
    """A Linear on a kernel of its own, which the second call does not take if it falls back."""

    def prepare(model):
        runs, calls = Runs("the kernel"), []
        kernel = runs.counted(torch.nn.functional.linear)

        def call(x):
            calls.append(1)
            return model(x) if falls_back and len(calls) > 1 else kernel(x, model.weight, model.bias)

        return runs.prepared(call)

    return prepare


def _in_float16(model):
    """It says that its product is in float16, and it is in the precision of the cell."""
    return ResultDtypes(torch.float16, ("addmm",)).prepared(model)


def _refusing(model):
    raise NotImplementedError("this backend takes no Linear")


def _raising(model, *args):
    raise LookupError("no kernel")


def _hang_natively(model, *args):
    ctypes.PyDLL(None).sleep(3600)  # PyDLL keeps the interpreter's lock: no Python code runs beside it


def _memory_error(model, *args):
    raise MemoryError


register(
    parameter_changed=around(_parameter_changed),
    input_changed=around(_input_changed),
    buffer_ignored=around(_buffer_ignored),
    buffer_narrowed=around(_buffer_narrowed),
    mean_in_bfloat16=around(_mean_in_bfloat16),
    noise=around(_with_noise),
    second_call_off=_now_and_then(lambda y: y * (1 + 2.0**-20)),
    second_call_nan=_now_and_then(first_element(torch.nan)),
    autocast_off=_with_autocast(False),
    autocast_on=_with_autocast(True),
    autocast_ignored=around(_autocast_ignored),
    unproven=_unproven,
    on_a_kernel=_on_a_kernel(falls_back=False),
    falling_back=_on_a_kernel(falls_back=True),
    in_float16=_in_float16,
    refusing=_refusing,
    raising=around(_raising),
    nothing_prepared=lambda _: 5,
    segfault=around(lambda *_: ctypes.string_at(0)),
    leaving=around(lambda *_: os._exit(0)),
    leaving_politely=around(lambda *_: sys.exit(0)),
    hanging=around(_hang_natively),
    memory_refused=around(lambda *_: torch.empty(1 << 50, dtype=torch.uint8)),
    memory_error=around(_memory_error),
)
