"""Imports torch, the zoo and, if a cell compiles, the compiler into the fork server, before any cell starts.

It also does what torch does once in each process that compiles. What fails is left to the children, so a broken part
ends no cell that does not need it. No op may run here: if the server has run one parallel region, its forked children
hang. No call may reach the CUDA runtime: if the server has made a single one, CUDA does not work in its children.
"""

import contextlib
import importlib
import inspect
import os
import signal
import warnings
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch does not need it, and nothing here does

import torch

from conformance.process import environment
from zoo import internals

NEEDED = (
    internals.SYMBOLS,
    "numpy.random",  # NumPy imports it at the first draw
    "conformance.cell.observe",
)
PROBE_SECONDS = 120.0  # for the compiler to compile what torch asks of it
_kept: list[Any] = []  # ops
NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


@contextlib.contextmanager
def cuda_runtime_untouched() -> Iterator[None]:
    """Count GPUs through NVML and not through the CUDA runtime, because some modules count them during their import.

    If NVML does not work, the count is 0. Afterwards, and so in the children, torch calls the runtime again.
    """
    before = os.environ.get(NVML_CHECK)
    os.environ[NVML_CHECK] = "1"
    try:
        with internals.replaced("count_gpus", lambda: 0):  # torch calls it if NVML does not work
            yield
    finally:
        del os.environ[NVML_CHECK]
        if before is not None:
            os.environ[NVML_CHECK] = before


@contextlib.contextmanager
def ops_kept() -> Iterator[None]:
    """While active, keep every op alive that TorchScript gets to know by its address.

    Torch replaces some ops while it imports its compiler, and TorchScript forgets no address: if an attribute of a
    module gets one, it is taken for the op. `zoo.probes.script_takes_tuple_for_op` shows that.
    """
    register: Any = getattr(internals, "register_script_op", None)

    def registered(fn: Any, op: Any) -> None:
        _kept.append(fn)
        register(fn, op)

    with internals.replaced("register_script_op", registered):
        yield


class LateError(BaseException):
    """A step has not ended in time. It is no `Exception`, which torch would take for an answer of the compiler."""


def harmless(step: Callable[[], object], seconds: float = 0.0) -> None:
    """Take a step of the preparation. One that fails, or does not end in time, is left to the children.

    The limit of `seconds` ends waiting, and no loop in native code; 0 sets none.
    """

    def stop(*_: object) -> None:
        raise LateError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        step()
    except BaseException:  # noqa: BLE001, S110 -- a child takes the step again, and fails with its own words
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _probe_processor() -> None:
    """Find the vector instructions that the compiler can use, which torch keeps for the life of a process."""
    from conformance.cell import compiler  # noqa: PLC0415

    if not compiler.complaint():
        compiler.find_instructions()
        if compiler.lacks_header():
            compiler.precompile_header(PROBE_SECONDS)
        else:
            internals.KernelCache.load_pybinding_async([], "")  # compiles no kernel, but finds the header of all


def _prepare_graphs() -> None:
    """Hash torch's sources and trace Inductor's patterns, as the first compile of a process does. It takes 0.5 s.

    The patterns are traced on fake tensors, so no op runs. With a GPU, some torches make those on it.
    """
    internals.hash_of_torch()
    trace = internals.trace_patterns
    trace(*[torch.device("cpu") for _ in inspect.signature(trace).parameters])


def prepare() -> None:
    """Import what the children need, as far as it imports."""
    for name in NEEDED:
        harmless(partial(importlib.import_module, name))
    if environment.compiles_for():
        for name in internals.NEEDED_TO_COMPILE:
            harmless(partial(importlib.import_module, name))
        if not torch.cuda.is_available():
            harmless(_prepare_graphs)
    if "cpu" in environment.compiles_for():
        harmless(_probe_processor, PROBE_SECONDS)


LATE: dict[str, Callable[[], object]] = {  # what to do once a child had to import a module
    **{name: partial(importlib.import_module, name) for name in internals.IMPORTED_LATE},
    "conformance.measure.side_by_side": partial(importlib.import_module, "conformance.measure.side_by_side"),
    "zoo.models": lambda: importlib.import_module("zoo.catalog").list_models(),  # the whole zoo
}


def import_late(names: Collection[str]) -> None:
    """Import those of `LATE` that a child has needed.

    Torch imports its compiler when it first calls an operator of `torch.library`, or checkpoints activations, and what
    forward mode needs at the first tangent. A model without any should not pay for that, and of a model that has some
    not each process. So it is with the meter and the models of the zoo, which take a tenth of the server's start.
    """
    with cuda_runtime_untouched(), ops_kept():
        for name, step in LATE.items():
            if name in names:
                harmless(step)


with cuda_runtime_untouched(), ops_kept():
    prepare()
