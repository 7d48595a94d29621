"""Models and modes that change state, differ or are compiled anew at a second call, or run otherwise than asked."""

import misbehaving_modes  # noqa: F401 -- registers modes
import torch
from miniature_parts import LINEAR, REVERSED, Parts, fails, gets, register, spec_of
from torch import nn

from conformance import Prepared

NO_LSTM = (
    r"eager: ([^;]*does not support RNN, GRU, or LSTM[^;]*LSTM.5, 4.$"
    r"|Unsupported function call \(delayed\).*does not support RNN, GRU, or LSTM)"  # from torch 2.15
)


class Counted(Parts):
    """A Linear that counts its calls."""

    def forward(self, x):
        self.calls += 1
        return self.linear(x)


class Averaging(Parts):
    """A Linear that keeps a running mean of what it returns; `after` is done with the mean."""

    def forward(self, x):
        y = self.linear(x)
        self.mean.copy_(self.after(self.mean.lerp(y.detach().float().mean(0), 0.125)))
        return y


def _averaging(after):
    return lambda: Averaging(linear=nn.Linear(5, 8), mean=torch.rand(8), after=after)


def _in_bfloat16(mean):
    return mean.bfloat16().float()


def _as_it_is(mean):
    return mean


def _mutating(x):
    return x.mul_(2.0) + 1


def _deferring_to(function):
    def outer(x):
        return function(x)

    return outer


def _in_two_graphs(x):
    y = x * 2
    torch._dynamo.graph_break()
    return y + 1


COUNTED = spec_of(
    "counted", lambda: Counted(linear=nn.Linear(5, 4), calls=torch.zeros((), dtype=torch.int64)), dtypes="follows"
)
BATCH_NORM = spec_of("batch_norm", lambda: nn.BatchNorm1d(5), dtypes="float32")
AVERAGING = spec_of("averaging", _averaging(_as_it_is), dtypes="follows")
AVERAGING_NARROWLY = spec_of(
    "averaging_narrowly", _averaging(_in_bfloat16), dtypes="follows", reference=_averaging(_as_it_is)
)
MUTATES = spec_of("mutates_in_secret", lambda: _mutating, differentiable=False)
RANDOM = spec_of("global_random", lambda: lambda x: x + torch.rand_like(x))
DISABLED = spec_of("disabled", lambda: _deferring_to(torch.compiler.disable(lambda x: x * 2.0 + 1)))
SKIPPED = spec_of("skipped", lambda: nn.LSTM(5, 4))
TWO_GRAPHS = spec_of("two_graphs", lambda: _in_two_graphs, one_graph=True, differentiable=False)
UNSCRIPTED = spec_of("unscripted", lambda: nn.Linear(5, 4), scripted=lambda: nn.Linear(5, 4))

MINIATURES = (
    # State
    fails(LINEAR, "parameter_changed", "fp32", "structure", text="bias, case typical: changed in forward, undeclared"),
    fails(REVERSED, "input_changed", "fp32", "structure", text="x, case typical: changed in forward, undeclared"),
    fails(MUTATES, "eager", "fp32", "structure", text="x, case typical: changed in forward, undeclared"),
    fails(COUNTED, "buffer_ignored", "amp_bf16", "exact", text="buffer calls"),
    fails(COUNTED, "buffer_narrowed", "fp32", "dtype", text="buffer calls.*int16"),
    fails(BATCH_NORM, "buffer_ignored", "fp32", "exact", "norm", "gain", "pointwise", "precision"),
    gets(AVERAGING, "eager", "amp_bf16", "PASS"),
    gets(AVERAGING, "compiled", "amp_bf16", "PASS"),
    fails(AVERAGING, "mean_in_bfloat16", "amp_bf16", "precision", text="buffer mean.*went through bfloat16"),
    fails(AVERAGING_NARROWLY, "eager", "amp_bf16", "precision", text="buffer mean.*went through bfloat16"),
    # Two identical calls differ
    gets(RANDOM, "eager", "fp32", "UNSTABLE", text="two identical float64 runs differ"),
    gets(LINEAR, "noise", "fp32", "UNSTABLE", text="a second identical call differs"),
    gets(LINEAR, "second_call_off", "fp32", "UNSTABLE", text="a second identical call differs"),
    gets(LINEAR, "second_call_nan", "fp32", "UNSTABLE", text="a second identical call differs"),
    # Not in the mode or precision of the cell
    fails(LINEAR, "autocast_ignored", "amp_bf16", "dtype"),
    gets(LINEAR, "autocast_off", "amp_bf16", "VOID", text="autocast was off"),
    gets(LINEAR, "autocast_on", "fp32", "VOID", text="autocast was on"),
    gets(LINEAR, "unproven", "fp32", "VOID", text="the backend was never called"),
    gets(LINEAR, "on_a_kernel", "amp_bf16", "PASS"),
    gets(LINEAR, "falling_back", "fp32", "VOID", text="a call must run the kernel, and call 2 did not"),
    gets(LINEAR, "in_float16", "amp_fp16", "PASS"),
    gets(LINEAR, "in_float16", "amp_bf16", "VOID", text="addmm must give float16, and call 1 gave bfloat16"),
    gets(UNSCRIPTED, "scripted", "fp32", "VOID", text="scripting gave a Linear"),
    gets(DISABLED, "compiled", "fp32", "VOID", text="ran no compiled graph, it fell back to eager"),
    gets(SKIPPED, "compiled", "fp32", "VOID", text=NO_LSTM),
    gets(TWO_GRAPHS, "compiled", "fp32", "VOID", text="claims one graph, found 1 graph breaks: [^;]*User-inserted"),
)


# Compiled code that torch.compile makes anew at every call, although nothing about the call has changed


class CountsInPython(Parts):
    """Its counter is a number in Python, so the guard on its value fails at every call."""

    def forward(self, x):
        self.calls += 1
        return self.linear(x) if self.calls > 0 else x


class KeepsWhatItSaw(Parts):
    """It adds to a dictionary at every call, so the guard on its keys fails at the next."""

    def forward(self, x):
        self.seen[len(self.seen)] = x.shape[0]
        return self.linear(x)


def _compiled_at_every_call(model):
    """A fresh function with a fresh backend at every call: no earlier code fits."""

    def call(x):
        fresh = lambda y: model(y)  # noqa: E731, PLW0108 -- a function of this call alone
        return torch.compile(fresh, backend=lambda graph, _: graph.forward, dynamic=False)(x)

    return Prepared(call, lambda: {"compiler": "torch.compile"})


register(compiled_at_every_call=_compiled_at_every_call)

COUNTS_IN_PYTHON = spec_of(
    "counts_in_python", lambda: CountsInPython(linear=nn.Linear(5, 4), calls=0), dtypes="follows"
)
KEEPS_WHAT_IT_SAW = spec_of(
    "keeps_what_it_saw", lambda: KeepsWhatItSaw(linear=nn.Linear(5, 4), seen={}), dtypes="follows"
)

AGAIN = "identical calls compiled again 3 times, at calls 2, 3 and 4; failed guard of "
MINIATURES += (
    fails(COUNTS_IN_PYTHON, "compiled", "fp32", "recompile", text=f"case typical: {AGAIN}forward: .*calls == "),
    fails(KEEPS_WHAT_IT_SAW, "compiled", "fp32", "recompile", text=f"{AGAIN}forward: .*seen"),
    fails(LINEAR, "compiled_at_every_call", "fp32", "recompile", text=f"case typical: {AGAIN}"),
)
