"""Models and modes that are wrong on purpose, each with the verdict it must get.

The judge is tested by what it rejects. Most miniatures are a right model in a mode that damages it, so that
the float64 oracle stays whole: `outputs_through` and `gradients_through` make such modes. `MINIATURES` at
the end states, for each (model, mode, precision), the status, and for a FAIL every gate that says no.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from conformance import NotProvenError, Prepared, register_mode
from zoo import Case, Expect, Spec

U = 2.0**-24  # float32's unit roundoff
VALUES = frozenset({"norm", "slice", "gain", "pointwise"})
REASON = "on purpose"


# Damage


class _Bent(torch.autograd.Function):
    """The identity, but for what `forward_by` does to the value and `backward_by` to the gradient."""

    @staticmethod
    def forward(ctx, value, forward_by, backward_by):
        ctx.backward_by = backward_by
        return forward_by(value)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.backward_by(gradient), None, None


def _same(value: Tensor) -> Tensor:
    return value.view_as(value)


def _on_floats(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    return pytree.tree_map(lambda t: change(t) if isinstance(t, Tensor) and t.is_floating_point() else t, tree)


def outputs_through(damage: Callable[[Tensor], Tensor]) -> Callable[[Any], Prepared]:
    """Make a mode that damages every floating output and leaves gradients alone."""

    def prepare(model: Any) -> Prepared:
        def call(*args: Any, **kwargs: Any) -> Any:
            return _on_floats(lambda y: _Bent.apply(y, damage, _same), model(*args, **kwargs))

        return Prepared(call, dict)

    return prepare


def gradients_through(damage: Callable[[Tensor], Tensor]) -> Callable[[Any], Prepared]:
    """Make a mode that damages the gradient of every floating input and leaves outputs alone."""

    def prepare(model: Any) -> Prepared:
        def call(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = _on_floats(lambda x: _Bent.apply(x, _same, damage), (args, kwargs))
            return model(*args, **kwargs)

        return Prepared(call, dict)

    return prepare


def around(wrap: Callable[..., Any]) -> Callable[[Any], Prepared]:
    """Make a mode whose call is wrap(model, *args)."""

    def prepare(model: Any) -> Prepared:
        return Prepared(lambda *args, **kwargs: wrap(model, *args, **kwargs), dict)

    return prepare


def _first_element(value: float) -> Callable[[Tensor], Tensor]:
    def damage(y: Tensor) -> Tensor:
        y = y.clone()
        y.view(-1)[0] = value
        return y

    return damage


def _without_sample(y: Tensor) -> Tensor:
    y = y.clone()
    y[-1] = 0
    return y


def _next_ulp(y: Tensor) -> Tensor:
    y = y.clone()
    y.view(-1)[0] = torch.nextafter(y.view(-1)[0], torch.tensor(torch.inf))
    return y


def _through(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda y: y.to(dtype).to(y.dtype)


# Damage to a float32 tensor that one value gate alone sees. The probes of one product stray by about 4 U.


def _spread_evenly(y: Tensor) -> Tensor:
    """Every element off by 7 U of itself, signs balanced so that no factor comes out."""
    signs = torch.ones(y.numel(), dtype=torch.float64)
    signs[y.flatten().abs().argsort()[::2]] = -1
    return (y.double() * (1 + 7 * U * signs.view_as(y))).float()


def _factor_of_five_roundings(y: Tensor) -> Tensor:
    return (y.double() * (1 + 5.0 * U)).float()


def _one_element(y: Tensor) -> Tensor:
    y = y.clone()
    y[3, 5] += 40 * U * (y[3, 5].abs() + y.square().mean().sqrt())
    return y


def _off_by_one(model: Any, x: Tensor) -> Tensor:
    return model(x) + 1


# Conduct


def _detached(model: Any, *args: Tensor) -> Any:
    return model(*(a.detach() for a in args))


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


def _with_noise(model: Any, x: Tensor) -> Tensor:
    y = model(x)
    return y + 1e-6 * torch.rand_like(y)


def _every_second_call(damage: Callable[[Tensor], Tensor]) -> Callable[[Any], Prepared]:
    def prepare(model: Any) -> Prepared:
        calls = []

        def call(*args: Any) -> Any:
            calls.append(1)
            return model(*args) if len(calls) % 2 else _Bent.apply(model(*args), damage, _same)

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


def _unproven(model: Any) -> Prepared:
    def proof() -> dict[str, Any]:
        raise NotProvenError("the backend was never called")

    return Prepared(model, proof)


def _refusing(model: Any) -> Prepared:
    raise NotImplementedError("this backend takes no Linear")


def _raising(model: Any, *args: Any) -> Any:
    raise LookupError("no kernel")


GRANDCHILD = "import time; time.sleep(3600)  # grandchild of a conformance miniature"


def _grandchild(**options: Any) -> None:
    """Start a process that names the fork server of this cell, so that a test can tell its own."""
    subprocess.Popen([sys.executable, "-c", GRANDCHILD, str(os.getppid())], **options)


def _segfault(model: Any, *args: Any) -> Any:
    return ctypes.string_at(0)


def _leave(model: Any, *args: Any) -> Any:
    os._exit(0)


def _leave_politely(model: Any, *args: Any) -> Any:
    sys.exit(0)


def _leave_a_runaway(model: Any, *args: Any) -> Any:
    _grandchild(start_new_session=True)
    os._exit(0)


def _hang_natively(model: Any, *args: Any) -> None:
    ctypes.PyDLL(None).sleep(3600)  # PyDLL keeps the interpreter's lock: no Python code runs beside it


def _hang_with_grandchild(model: Any, *args: Any) -> Any:
    _grandchild()
    time.sleep(3600)


def _hang_with_runaway(model: Any, *args: Any) -> Any:
    _grandchild(start_new_session=True)
    time.sleep(3600)


def _memory_refused(model: Any, *args: Any) -> Any:
    return torch.empty(1 << 50, dtype=torch.uint8)


def _memory_error(model: Any, *args: Any) -> Any:
    raise MemoryError


MODES = {
    "one_percent": gradients_through(lambda g: g * 1.01),
    "sample_dropped": gradients_through(_without_sample),
    "zeros": gradients_through(torch.zeros_like),
    "sign": gradients_through(torch.neg),
    "rolled": gradients_through(lambda g: g.roll(1, 0)),
    "extra_axis": outputs_through(lambda y: y.unsqueeze(0)),
    "wrong_dtype": outputs_through(torch.Tensor.double),
    "nan": outputs_through(_first_element(torch.nan)),
    "inf": outputs_through(_first_element(torch.inf)),
    "gradient_nan": gradients_through(_first_element(torch.nan)),
    "one_ulp": outputs_through(_next_ulp),
    "spread_evenly": outputs_through(_spread_evenly),
    "row_dropped": outputs_through(_without_sample),
    "five_roundings": outputs_through(_factor_of_five_roundings),
    "one_element": outputs_through(_one_element),
    "bfloat16_inside": outputs_through(_through(torch.bfloat16)),
    "float16_inside": outputs_through(_through(torch.float16)),
    "plus_one": around(_off_by_one),
    "no_gradient": around(_detached),
    "tupled": around(lambda model, x: (model(x),)),
    "detached": around(lambda model, x: model(x).detach()),
    "parameter_changed": around(_parameter_changed),
    "input_changed": around(_input_changed),
    "buffer_ignored": around(_buffer_ignored),
    "buffer_narrowed": around(_buffer_narrowed),
    "noise": around(_with_noise),
    "second_call_off": _every_second_call(lambda y: y * (1 + 2.0**-20)),
    "second_call_nan": _every_second_call(_first_element(torch.nan)),
    "autocast_off": around(_autocast_off),
    "autocast_on": around(_autocast_on),
    "autocast_ignored": around(_autocast_ignored),
    "unproven": _unproven,
    "refusing": _refusing,
    "raising": around(_raising),
    "nothing_prepared": lambda model: model,
    "segfault": around(_segfault),
    "leaving": around(_leave),
    "leaving_politely": around(_leave_politely),
    "leaving_runaway": around(_leave_a_runaway),
    "hanging": around(_hang_natively),
    "hanging_grandchild": around(_hang_with_grandchild),
    "hanging_runaway": around(_hang_with_runaway),
    "memory_refused": around(_memory_refused),
    "memory_error": around(_memory_error),
}
for _name, _prepare in MODES.items():
    register_mode(_name, _prepare)


# Right models, to be damaged by a mode


def _rows(*shape: int) -> Case:
    return Case(name="typical", inputs=lambda g: (torch.randn(*shape, generator=g),))


def _spec(name: str, build: Callable[..., Any], *cases: Case, **fields: Any) -> Spec:
    return Spec(name=name, summary=name, source="a miniature", build=build, cases=cases or (_rows(6, 5),), **fields)


def _expect(outcome: str, *modes: str, **fields: Any) -> Expect:
    return Expect(outcome=outcome, modes=modes, reason=REASON, **fields)


class Counted(nn.Module):
    """A Linear that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x)


def product(x: Tensor, w: Tensor) -> Tensor:
    """One rounding for each element."""
    return x * w


def _large_pair(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(64, 64, generator=generator), torch.randn(64, 64, generator=generator)


def _faint_row_pair(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x, w = _large_pair(generator)
    x[-1] *= 2.0**-22
    return x, w


class Lifted(nn.Module):
    """A Linear whose low-precision result is handed out as float32."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).float() * 1.5


LINEAR = _spec("linear", lambda: nn.Linear(5, 4), dtypes="follows")
WIDE = _spec("wide", lambda: nn.Linear(64, 64), _rows(64, 64), dtypes="follows")
COUNTED = _spec("counted", Counted, dtypes="follows")
BATCH_NORM = _spec("batch_norm", lambda: nn.BatchNorm1d(5), dtypes="float32")
PRODUCT = _spec("product", lambda: product, Case(name="typical", inputs=_large_pair), dtypes="float32")
FAINT = _spec("faint_row", lambda: product, Case(name="typical", inputs=_faint_row_pair), dtypes="float32")
REVERSED = _spec("reversed", lambda: lambda x: x.flip(0), dtypes="input")
LIFTED = _spec("lifted", Lifted, _rows(64, 64), dtypes="float32")
BIG_INTEGERS = _spec(
    "big_integers",
    lambda: lambda x: x + 1,
    Case(name="typical", inputs=lambda g: (torch.randint(2**60, 2**61, (6, 5), generator=g),)),
    dtypes="int64",
    differentiable=False,
)
UNDIFFERENTIABLE = _spec("undifferentiable", lambda: lambda x: x.exp(), differentiable=False)
UNDECLARED_DTYPE = _spec("undeclared_dtype", lambda: nn.Linear(5, 4))


# Models wrong in themselves


class _WrongSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2.02 * ctx.saved_tensors[0] * g


class _WrongTwice(torch.autograd.Function):
    """x² with the right gradient, which hides from autograd how it depends on x."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x.detach()
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.x * g


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.round()

    @staticmethod
    def backward(_, g):
        return g


def _in_two_graphs(x: Tensor) -> Tensor:
    y = x * 2
    torch._dynamo.graph_break()
    return y + 1


def _only_float32(x: Tensor) -> Tensor:
    if x.dtype == torch.float64:
        raise RuntimeError("this kernel knows no float64")
    return x * 2


def _dies_in_float64(x: Tensor) -> Tensor:
    if x.dtype == torch.float64:
        os.kill(os.getpid(), 11)
    return x * 2


def _hangs_in_float64(x: Tensor) -> Tensor:
    if x.dtype == torch.float64:
        ctypes.PyDLL(None).sleep(3600)
    return x * 2


def _mutating(x: Tensor) -> Tensor:
    return x.mul_(2.0) + 1


def _mutating_nothing(x: Tensor) -> Tensor:
    return x * 2.0 + 1


def _deferring_to(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def outer(x: Tensor) -> Tensor:
        return function(x)

    return outer


def _cancelling(x: Tensor) -> Tensor:
    return (x + 1e7) - 1e7


def _nearly_cancelling(x: Tensor) -> Tensor:
    return (x + 4e6) - 4e6


def _scalar(generator: torch.Generator) -> tuple[Tensor]:
    return (torch.rand((), generator=generator) + 1,)


RANDOM = _spec("global_random", lambda: lambda x: x + torch.rand_like(x))
WRONG_REFERENCE = _spec("wrong_reference", lambda: nn.Linear(5, 4), reference=lambda m, x: x @ m.weight.t())
WRONG_SHAPE_REFERENCE = _spec("wrong_shape_reference", lambda: lambda x: x * 2, reference=lambda _, x: (2 * x)[None])
WRONG_BACKWARD = _spec("wrong_backward", lambda: _WrongSquare.apply)
WRONG_SECOND = _spec("wrong_second", lambda: _WrongTwice.apply, twice_differentiable=True)
STRAIGHT_UNDECLARED = _spec("straight_undeclared", lambda: _Straight.apply)
STRAIGHT_MISDECLARED = _spec("straight_misdeclared", lambda: _Straight.apply, surrogate_gradient=lambda _, x: 2 * x)
WRONG_TWIN = _spec("wrong_twin", lambda: lambda x: 3 * x, twin="square")
NO_TENSOR = _spec("no_tensor", lambda: lambda x: (x, "text"))
ALWAYS_RAISES = _spec("always_raises", lambda: lambda x: x @ x)
NO_TUPLE = _spec("no_tuple", lambda: lambda x: x, Case(name="typical", inputs=lambda g: torch.randn(3, generator=g)))
TIE = _spec("tie", lambda: lambda x: torch.relu(x * 3 - x - x * 2))
NO_FLOAT64 = _spec("no_float64", lambda: _only_float32)
DIES = _spec("dies_in_reference", lambda: _dies_in_float64)
HANGS = _spec("hangs_in_reference", lambda: _hangs_in_float64)
CANCELLING = _spec("cancelling", lambda: _cancelling)
NEARLY = _spec("nearly_cancelling", lambda: _nearly_cancelling, Case(name="typical", inputs=_scalar))
DISABLED = _spec("disabled", lambda: _deferring_to(torch.compiler.disable(_mutating_nothing)))
TWO_GRAPHS = _spec("two_graphs", lambda: _in_two_graphs, one_graph=True, differentiable=False)
UNSCRIPTED = _spec("unscripted", lambda: nn.Linear(5, 4), scripted=lambda: nn.Linear(5, 4))
MUTATES = _spec("mutates_in_secret", lambda: _mutating, differentiable=False)
SECOND = _spec("loses_second", lambda: lambda x: x**3, twice_differentiable=True, dtypes="input")


def _graph_lost(model: Any, x: Tensor) -> Tensor:
    """Right values and gradients; second derivatives lost in silence."""

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x.detach()
            return x**3

        @staticmethod
        def backward(ctx, g):
            return 3 * ctx.x**2 * g

    return Cube.apply(x)


def _second_wrong(model: Any, x: Tensor) -> Tensor:
    """Right values and gradients; the second derivative is 3 x for 6 x."""

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x * x.detach() * g

    return Cube.apply(x)


register_mode("graph_lost", around(_graph_lost))
register_mode("second_wrong", around(_second_wrong))

# Expectations

DECLARED = _spec(
    "declared",
    lambda: nn.Linear(5, 4),
    dtypes="follows",
    expectations=(
        _expect("dtype", "wrong_dtype", tensor="output", dtype="float64"),
        _expect("refuses", "refusing", error="NotImplementedError", match="takes no Linear"),
        _expect("ERROR", "raising", error="LookupError", match="no kernel"),
        _expect("FAIL", "sign", tensor="gradient of input"),
        _expect("UNSTABLE", "noise"),
        _expect("VOID", "unproven"),
        _expect("CRASH", "segfault"),
        _expect("OOM", "memory_refused"),
    ),
)
STALE = _spec(
    "stale",
    lambda: nn.Linear(5, 4),
    dtypes="follows",
    expectations=(
        _expect("dtype", "eager", precisions=("fp32",), tensor="output", dtype="float64"),
        _expect("refuses", "eager", precisions=("amp_fp16",), error="TypeError", match="."),
        _expect("FAIL", "eager", precisions=("amp_bf16",), tensor="output"),
    ),
)
MISDECLARED = _spec(
    "misdeclared",
    lambda: nn.Linear(5, 4),
    dtypes="follows",
    expectations=(
        _expect("FAIL", "segfault", "leaving", "hanging", "raising", "memory_refused"),
        _expect("FAIL", "sign", tensor="output"),
        _expect("FAIL", "nan", gate="norm"),
        _expect("FAIL", "input_changed", tensor="output"),
        _expect("refuses", "refusing", error="NotImplementedError", match="takes no Conv"),
        _expect("dtype", "wrong_dtype", tensor="output", dtype="float16"),
    ),
)


@dataclass(frozen=True)
class Miniature:
    """A cell and the verdict it must get; of a FAIL also all gates that say no to any of its tensors."""

    model: str
    mode: str
    precision: str
    status: str
    gates: frozenset[str] = frozenset()
    text: str = ""

    @property
    def id(self) -> str:
        return f"{self.model}-{self.mode}-{self.precision}"


def _fails(model: str, mode: str, precision: str, *gates: str, text: str = "") -> Miniature:
    return Miniature(model, mode, precision, "FAIL", frozenset(gates), text)


MINIATURES = (
    # Each gate, alone
    _fails("linear", "extra_axis", "fp32", "structure", text=r"shape \(1, 6, 4\), the oracle's is \(6, 4\)"),
    _fails("linear", "wrong_dtype", "fp32", "dtype", text="float64, should be float32"),
    _fails("linear", "nan", "amp_bf16", "class", text=r"element \(0, 0\) is nan"),
    _fails("linear", "inf", "fp32", "class", text=r"element \(0, 0\) is inf"),
    _fails("reversed", "one_ulp", "fp32", "exact", text="1 of 30 elements differ"),
    _fails("product", "spread_evenly", "fp32", "norm"),
    _fails("faint_row", "row_dropped", "fp32", "slice", text="slice 63 of axis 0"),
    _fails("product", "five_roundings", "fp32", "gain"),
    _fails("product", "one_element", "fp32", "pointwise", text=r"element \(3, 5\)"),
    _fails("lifted", "bfloat16_inside", "amp_fp16", "precision", text="went through bfloat16"),
    Miniature("nearly_cancelling", "eager", "fp32", "INCONCLUSIVE", text="power .* the gates accept .*1.25 times"),
    # Gradients
    _fails("linear", "one_percent", "fp32", *VALUES, text="gradient of input"),
    _fails("wide", "one_percent", "amp_bf16", "gain", text="gradient of input"),
    _fails("linear", "sample_dropped", "fp32", *VALUES),
    _fails("linear", "sample_dropped", "amp_bf16", *VALUES),
    _fails("linear", "zeros", "amp_bf16", *VALUES),
    _fails("linear", "sign", "amp_fp16", *VALUES),
    _fails("linear", "rolled", "amp_bf16", *VALUES),
    _fails("linear", "gradient_nan", "fp32", "class"),
    _fails("linear", "no_gradient", "fp32", "structure", text="gradient of input.*None, where the oracle has"),
    _fails("loses_second", "graph_lost", "fp32", "structure", text="second gradient of x"),
    _fails("loses_second", "second_wrong", "fp32", *VALUES, text="second gradient of x"),
    # Outputs
    _fails("linear", "bfloat16_inside", "fp32", *VALUES, "precision"),
    _fails("linear", "float16_inside", "fp32", *VALUES, "precision"),
    _fails("undeclared_dtype", "wrong_dtype", "amp_fp16", "dtype", text="float64, should be float16"),
    _fails("linear", "autocast_ignored", "amp_bf16", "dtype"),
    _fails("undifferentiable", "tupled", "fp32", "structure", text="output"),
    _fails("linear", "detached", "fp32", "structure", text="requires_grad is False, the oracle's is True"),
    _fails("big_integers", "plus_one", "fp32", "exact"),
    Miniature("big_integers", "eager", "fp32", "PASS"),
    # State
    _fails("linear", "parameter_changed", "fp32", text="bias changed in forward, undeclared"),
    _fails("reversed", "input_changed", "fp32", text="x changed in forward, undeclared"),
    _fails("mutates_in_secret", "eager", "fp32", text="x changed in forward, undeclared"),
    _fails("counted", "buffer_ignored", "amp_bf16", "exact", text="buffer calls"),
    _fails("counted", "buffer_narrowed", "fp32", "dtype", text="buffer calls.*int16"),
    _fails("batch_norm", "buffer_ignored", "fp32", "exact", "norm", "gain", "pointwise", "precision"),
    # Anything but a verdict on numbers
    Miniature("linear", "raising", "fp32", "ERROR", text="phase call: LookupError: no kernel"),
    Miniature("linear", "refusing", "fp32", "ERROR", text="phase prepare: NotImplementedError"),
    Miniature("linear", "nothing_prepared", "fp32", "ERROR", text="must return a Prepared, got Linear"),
    Miniature("linear", "segfault", "fp32", "CRASH", text="phase call: killed by SIGSEGV"),
    Miniature("linear", "leaving", "fp32", "CRASH", text="left with exit code 0 and no answer"),
    Miniature("linear", "leaving_politely", "fp32", "CRASH", text="left with exit code 0 and no answer"),
    Miniature("dies_in_reference", "eager", "fp32", "CRASH", text="phase reference: killed by SIGSEGV"),
    Miniature("linear", "memory_refused", "fp32", "OOM", text="phase call"),
    Miniature("linear", "memory_error", "fp32", "OOM", text="phase call"),
    Miniature("linear", "autocast_off", "amp_bf16", "VOID", text="autocast was off"),
    Miniature("linear", "autocast_on", "fp32", "VOID", text="autocast was on"),
    Miniature("linear", "unproven", "fp32", "VOID", text="the backend was never called"),
    Miniature("unscripted", "scripted", "fp32", "VOID", text="scripting gave a Linear"),
    Miniature("disabled", "compiled", "fp32", "VOID", text="ran no compiled graph, it fell back to eager"),
    Miniature("two_graphs", "compiled", "fp32", "VOID", text="claims one graph, found 1 graph breaks"),
    Miniature("global_random", "eager", "fp32", "UNSTABLE", text="two identical float64 runs differ"),
    Miniature("linear", "noise", "fp32", "UNSTABLE", text="a second identical call differs"),
    Miniature("linear", "second_call_off", "fp32", "UNSTABLE", text="a second identical call differs"),
    Miniature("linear", "second_call_nan", "fp32", "UNSTABLE", text="a second identical call differs"),
    Miniature("cancelling", "eager", "fp32", "INCONCLUSIVE", text="power  output"),
    Miniature("no_float64", "eager", "fp32", "INCONCLUSIVE", text="runs in float32 but not in float64"),
    # Specs that lie
    Miniature("wrong_reference", "eager", "fp32", "INVALID", text="differs from the spec's reference"),
    Miniature("wrong_shape_reference", "eager", "fp32", "INVALID", text=r"gives shape \(1, 6, 5\)"),
    Miniature("wrong_backward", "eager", "fp32", "INVALID", text="gradcheck in float64: Jacobian mismatch"),
    Miniature("wrong_second", "eager", "fp32", "INVALID", text="gradgradcheck in float64"),
    Miniature("straight_undeclared", "eager", "fp32", "INVALID", text="declare surrogate_gradient"),
    Miniature("straight_misdeclared", "eager", "fp32", "INVALID", text="differs from the declared surrogate_gradient"),
    Miniature("wrong_twin", "eager", "fp32", "INVALID", text="differs from its twin square"),
    Miniature("no_tensor", "eager", "fp32", "INVALID", text=r"output\[1\] is of type str"),
    Miniature("always_raises", "eager", "fp32", "INVALID", text="case typical: RuntimeError: mat1 and mat2"),
    Miniature("no_tuple", "eager", "fp32", "INVALID", text="must return a tuple of arguments or a Call, got Tensor"),
    Miniature("tie", "eager", "fp32", "INVALID", text="sit exactly on a kink"),
    # Expectations that come true
    Miniature("declared", "wrong_dtype", "fp32", "EXPECTED", text="output is float64"),
    Miniature("declared", "refusing", "fp32", "UNSUPPORTED"),
    Miniature("declared", "raising", "fp32", "EXPECTED"),
    Miniature("declared", "sign", "fp32", "EXPECTED", VALUES),
    Miniature("declared", "noise", "fp32", "EXPECTED"),
    Miniature("declared", "unproven", "fp32", "EXPECTED"),
    Miniature("declared", "segfault", "fp32", "EXPECTED"),
    Miniature("declared", "memory_refused", "fp32", "EXPECTED"),
    # Expectations that no longer do, and others that something worse must not hide behind
    Miniature("stale", "eager", "fp32", "STALE", text="has the contract's dtype again"),
    Miniature("stale", "eager", "amp_fp16", "STALE", text="declared refuses did not happen"),
    Miniature("stale", "eager", "amp_bf16", "STALE", text="declared FAIL did not happen"),
    Miniature("misdeclared", "segfault", "fp32", "CRASH"),
    Miniature("misdeclared", "leaving", "fp32", "CRASH"),
    Miniature("misdeclared", "raising", "fp32", "ERROR"),
    Miniature("misdeclared", "memory_refused", "fp32", "OOM"),
    _fails("misdeclared", "sign", "fp32", *VALUES),
    _fails("misdeclared", "nan", "fp32", "class"),
    _fails("misdeclared", "input_changed", "fp32", *VALUES, text="input changed in forward, undeclared"),
    Miniature("misdeclared", "refusing", "fp32", "ERROR"),
    _fails("misdeclared", "wrong_dtype", "fp32", "dtype"),
)

# Those that end only at the deadline, or leave processes behind
HANGING = (
    Miniature("linear", "hanging", "fp32", "TIMEOUT", text="phase call: no answer within"),
    Miniature("linear", "hanging_grandchild", "fp32", "TIMEOUT", text="phase call: no answer within"),
    Miniature("linear", "hanging_runaway", "fp32", "TIMEOUT", text="phase call: no answer within"),
    Miniature("linear", "leaving_runaway", "fp32", "CRASH", text="left with exit code 0 and no answer"),
    Miniature("misdeclared", "hanging", "fp32", "TIMEOUT"),
    Miniature("hangs_in_reference", "eager", "fp32", "TIMEOUT", text="phase reference: no answer within"),
)
