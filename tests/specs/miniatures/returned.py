"""Modes that return other containers than the model, or tensors that share memory or are written again."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import torch
from damaging_modes import Bent, same
from miniature_parts import LINEAR, VALUES, around, fails, gets, register, second_time, spec_of
from torch import Tensor

from conformance import Prepared


class Pair(NamedTuple):
    """Two tensors."""

    first: Tensor
    second: Tensor


class Couple(NamedTuple):
    """The same under another name."""

    first: Tensor
    second: Tensor


@dataclass
class Result:
    """A tensor with its gain."""

    mean: Tensor
    gain: float


def _static(model):
    """Make a callable that returns the same memory at every call."""
    memory = []

    def into_memory(y):
        if not memory:
            memory.append(torch.empty_like(y))
        memory[0].data.copy_(y)
        return memory[0].detach()

    return Prepared(lambda x: Bent.apply(model(x), into_memory, same), dict)


def _late(model):
    """Make a callable whose thread writes into an output after the model was called again."""
    called = threading.Event()
    threads = []

    def write(y):
        called.wait()
        y.data.add_(1.0)

    def call(x):
        y = model(x)
        if threads:
            called.set()
            threads[0].join()
        else:
            threads.append(threading.Thread(target=write, args=(y.detach(),)))
            threads[0].start()
        return y

    return Prepared(call, dict)


def _changed(change):
    """Make a mode that returns change(what the model returns, x)."""
    return around(lambda model, x: change(model(x), x))


register(
    listed=_changed(lambda y, _: list(y)),
    turned_round=_changed(lambda y, _: dict(reversed(y.items()))),
    unordered=_changed(lambda y, _: dict(y)),
    renamed=_changed(lambda y, _: Couple(*y)),
    opened=_changed(lambda y, _: tuple(y)),
    in_a_dict=_changed(lambda y, _: vars(y)),
    gain_off=_changed(lambda y, _: Result(y.mean, 2.5 + 2.0**-20)),
    gain_of_int=_changed(lambda y, _: Result(y.mean, 2)),
    reworded=_changed(lambda y, _: (y[0], "median")),
    echoing=_changed(lambda _, x: x.view_as(x)),
    one_for_two=_changed(lambda y, _: (y[0], y[0])),
    copying=_changed(lambda y, _: y.clone()),
    static=_static,
    late=_late,
    second_none=second_time(lambda y, _: (y[0], None)),
    second_listed=second_time(lambda y, _: list(y)),
    second_detached=second_time(lambda y, _: y.detach()),
    second_echoing=second_time(lambda _, x: x.view_as(x)),
)

PAIR = spec_of("pair", lambda: lambda x: (x.exp(), x.exp()))
NAMED = spec_of("named", lambda: lambda x: Pair(x * 2, x.exp()))
KEYED = spec_of("keyed", lambda: lambda x: {"b": x * 2, "a": x.exp()})
ORDERED = spec_of("ordered", lambda: lambda x: OrderedDict(b=x * 2, a=x.exp()))
RESULT = spec_of("result", lambda: lambda x: Result(x * 2, 2.5))
WORDED = spec_of("worded", lambda: lambda x: (x * 2, "mean"))
COPY = spec_of("copy", lambda: lambda x: x.clone())
VIEW = spec_of("view", lambda: lambda x: x.t(), aliases=(("output", "x"),))
NO_VIEW = spec_of("no_view", lambda: lambda x: x * 2, aliases=(("output", "x"),))

MINIATURES = (
    # Containers
    fails(PAIR, "listed", "fp32", "structure", text=r"list\[Tensor, Tensor\], the oracle's is tuple"),
    fails(KEYED, "turned_round", "fp32", "structure", text=r"dict\[a: Tensor, b: Tensor\], the oracle's is dict\[b"),
    fails(ORDERED, "unordered", "fp32", "structure", text="the oracle's is OrderedDict"),
    fails(NAMED, "renamed", "fp32", "structure", text="named tuple Couple.*the oracle's is named tuple Pair"),
    fails(NAMED, "opened", "fp32", "structure", *VALUES, text=r"tuple\[Tensor, Tensor\], the oracle's is named"),
    fails(RESULT, "in_a_dict", "fp32", "structure", *VALUES),
    fails(RESULT, "gain_off", "fp32", "exact", text="output.gain"),
    fails(RESULT, "gain_of_int", "fp32", "structure", text="gain: int.*the oracle's is.*gain: float"),
    fails(WORDED, "reworded", "fp32", "structure", text="'median'.*'mean'"),
    # Memory
    fails(
        COPY, "echoing", "fp32", "structure", text="output, case typical: it shares memory with x, the oracle's does"
    ),
    fails(PAIR, "one_for_two", "fp32", "structure", text=r"output\[0\].*shares memory with output\[1\]"),
    fails(VIEW, "copying", "fp32", "structure", text="shares no memory with x, the spec declares"),
    fails(NO_VIEW, "eager", "fp32", "structure", text="shares no memory with x, the spec declares"),
    fails(LINEAR, "static", "fp32", "structure", text="output.*it changed after it was returned"),
    fails(LINEAR, "late", "fp32", "structure", text="output.*it changed after it was returned"),
    # A second call
    gets(PAIR, "second_none", "fp32", "UNSTABLE", text=r"output\[1\].*differs: None, the first time a tensor"),
    gets(PAIR, "second_listed", "fp32", "UNSTABLE", text="differs: list.*the first time tuple"),
    gets(LINEAR, "second_detached", "fp32", "UNSTABLE", text="differs: (requires_grad is False|None)"),
    gets(COPY, "second_echoing", "fp32", "UNSTABLE", text="shares memory with x only then"),
)
