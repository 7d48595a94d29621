"""Defines the axes of the matrix: modes, precisions and devices, one small table each.

A precision is one row here. A mode is one row here and one builder in `cell.modes`, or one call of `register_mode`
from outside. This module does not import torch, so planning and reporting start quickly.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from conformance.errors import UsageError, suggestion

Prepare = Callable[..., Any]

NOT_PROVEN = "mode not proven"  # the fact that stands for an empty proof
BROKEN_GRAPH = "undeclared graph breaks"  # the fact that says why, unless the spec says `one_graph=False`
SYMBOLIC = "graphs with symbolic sizes"  # a fact of compiled_dynamic


@dataclass(frozen=True)
class Prepared:
    """A callable in some mode, and the proof that the mode took effect.

    Attributes:
        call: the callable; it takes the model's arguments.
        proof: a function that is called after all runs; it returns facts for the record, or raises `NotProvenError`.
            No facts are no proof: a cell of a registered mode that passes is then marked "not proven".
        parameters_of: the object whose `named_parameters` and `named_buffers` the callable uses;
            None: the model that `prepare` was given.
        unchecked_call: the callable to time, without the checks that `call` does for the proof; None: `call` is timed.
        around: puts a function that calls the model, such as its vmap, into the mode; None: the function calls `call`.
        reuses_outputs: the next call may overwrite what the call returned, as replayed CUDA graphs do.
    """

    call: Callable[..., Any]
    proof: Callable[[], dict[str, Any]]
    parameters_of: Any = None
    unchecked_call: Callable[..., Any] | None = None
    around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    reuses_outputs: bool = False

    @property
    def timed_call(self) -> Callable[..., Any]:
        """The callable to time."""
        return self.call if self.unchecked_call is None else self.unchecked_call


@dataclass(frozen=True)
class Mode:
    """How a callable is made from a model.

    Attributes:
        name: the axis value.
        warm_calls: number of calls before the measured one; TorchScript specialises until its third call.
        prepare: the builder of a mode registered from outside; None: `cell.modes.BUILDERS` has it.
        devices: device types that have this mode; empty: all.
        default: whether a run that names no modes includes this one.
        compiles: whether torch.compile or Inductor works for it, so that the compiler is loaded and what it makes kept.
        needs_cpp: whether it needs a C++ compiler on the CPU, as all code of Inductor does.
        forward_only: whether it gives outputs without gradients, as a program for deployment does. It may hold its
            weights and check no shapes, so it is neither judged over draws nor given error inputs. Trainings lack it.
        specialised: whether the numbers, flags and mode of training that the model has at the first call are constants
            of its programs, as `torch.export` makes them.
    """

    name: str
    warm_calls: int = 0
    prepare: Prepare | None = None
    devices: tuple[str, ...] = ()
    default: bool = True
    compiles: bool = False
    needs_cpp: bool = False
    forward_only: bool = False
    specialised: bool = False


@dataclass(frozen=True)
class Precision:
    """A number format that a model runs in.

    Attributes:
        name: the axis value.
        autocast: dtype name for torch.autocast, or "" for none.
        cast: dtype name that the model and its inputs are cast to, without autocast; "" for none.
        unit: unit roundoff u of the arithmetic.
        quantum: smallest positive number, a subnormal.
        dropped_bits: number of low mantissa bits of a float32 that a round trip through this format sets to zero.
        product_unit: unit roundoff of the operands of matrix products and convolutions; 0: `unit` applies to them too.
        devices: device types that have this precision; empty: all.
        default: whether a run that names no precisions includes this one.
    """

    name: str
    autocast: str
    unit: float
    quantum: float
    dropped_bits: int
    product_unit: float = 0.0
    devices: tuple[str, ...] = ()
    cast: str = ""
    default: bool = True

    @property
    def low_dtype(self) -> str:
        """The name of the dtype that tensors are rounded to; "" for float32."""
        return self.autocast or self.cast

    @property
    def is_scaled(self) -> bool:
        """Whether cotangents are scaled, as a GradScaler does; it refuses models that are cast to float16."""
        return self.autocast == "float16"

    @property
    def is_low(self) -> bool:
        """Whether anything is rounded more coarsely than to float32."""
        return bool(self.low_dtype or self.product_unit)

    @property
    def for_training(self) -> str:
        """The precision name that is passed to a spec's training.

        It is "fp32" for tf32, because TF32 is a switch of the process, which a training does not set.
        """
        return self.name if self.autocast else "fp32"


MODES = {
    mode.name: mode
    for mode in (
        Mode("eager"),
        Mode("scripted", warm_calls=3),
        Mode("compiled", compiles=True, needs_cpp=True),
        Mode("compiled_dynamic", default=False, compiles=True, needs_cpp=True),
        Mode("exported", warm_calls=1, default=False, specialised=True),  # the first call makes the program
        Mode(
            "packaged",
            warm_calls=1,
            default=False,
            compiles=True,
            needs_cpp=True,
            forward_only=True,
            specialised=True,
        ),
        # the first call warms up, the second records the graphs
        Mode("graphed", warm_calls=3, devices=("cuda",), default=False, compiles=True, needs_cpp=True),
    )
}

PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("fp32", "", 2.0**-24, 2.0**-149, 0),
        Precision("tf32", "", 2.0**-24, 2.0**-149, 0, product_unit=2.0**-11, devices=("cuda",)),
        Precision("amp_fp16", "float16", 2.0**-11, 2.0**-24, 13),
        Precision("amp_bf16", "bfloat16", 2.0**-8, 2.0**-133, 16),
        Precision("fp16", "", 2.0**-11, 2.0**-24, 0, cast="float16", default=False),
        Precision("bf16", "", 2.0**-8, 2.0**-133, 0, cast="bfloat16", default=False),
    )
}

DEVICES = ("cpu", "cuda")
ONE_GPU = re.compile(r"cuda:([0-9]{1,4})", re.ASCII)  # as torch names one


def register_mode(
    name: str, prepare: Prepare, *, warm_calls: int = 0, compiles: bool = True, needs_cpp: bool = False
) -> Mode:
    """Add a mode: a way to make the callable, with its proof.

    Args:
        name: lower-case identifier, not taken yet.
        prepare: called as prepare(model) in the cell's own process; returns a `Prepared`, or a callable that uses the
            model's own parameters, whose cells are marked "not proven".
        warm_calls: calls to make before the measured one.
        compiles: the mode calls torch.compile, so the fork server loads the compiler once for all cells.
        needs_cpp: it compiles by Inductor. On the CPU its cells then say so if no C++ compiler works.

    Returns:
        The new row of `MODES`.

    Raises:
        UsageError: the name is malformed, a built-in mode or another function has it, or prepare is not callable. A
            function of the same name, as from a notebook's cell that runs again, takes the place of the first.

    >>> register_mode("plain", lambda model: Prepared(model, proof=dict), compiles=False).name
    'plain'
    >>> del MODES["plain"]
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UsageError(f"mode name {name!r}: want lower-case letters, digits and '_'")
    if not callable(prepare):
        raise UsageError(f"mode {name!r}: prepare must be callable, got {prepare!r}")
    if name in MODES and _origin(MODES[name].prepare) != _origin(prepare):
        raise UsageError(f"mode {name!r} is already registered")
    MODES[name] = Mode(name, warm_calls, prepare, compiles=compiles, needs_cpp=needs_cpp)
    return MODES[name]


def _origin(prepare: Any) -> Any:
    """Where a function is defined, and for `register_backend` the backend too."""
    if isinstance(prepare, partial):
        return [_origin(part) for part in (prepare.func, *prepare.args)]
    return getattr(prepare, "__module__", ""), getattr(prepare, "__qualname__", prepare)


def exists(value: Mode | Precision, device: str) -> bool:
    """Whether a device has a mode or a precision."""
    return not value.devices or device in value.devices


def usual(table: Mapping[str, Mode | Precision]) -> tuple[str, ...]:
    """The values of an axis that a run includes if it names none."""
    return tuple(name for name, value in table.items() if value.default)


def choose(axis: str, known: tuple[str, ...], asked: tuple[str, ...], default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The values of an axis to use, in table order.

    Args:
        axis: name of the axis, for the message.
        known: all values, in table order.
        asked: the values that the user named; empty: those of `default`, or all if that is empty too.
        default: the values of a run that names none.

    Raises:
        UsageError: a value is not in the table; the message suggests similar names.

    >>> choose("mode", ("eager", "scripted", "compiled"), ("compiled", "eager"))
    ('eager', 'compiled')
    """
    for value in asked:
        if value not in known:
            raise UsageError(f"unknown {axis} {value!r}{suggestion(value, known)}")
    return tuple(value for value in known if value in asked) if asked else default or known
