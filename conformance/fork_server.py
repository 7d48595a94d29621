"""Imports torch, the zoo and, if a cell compiles, the compiler into the fork server, before any cell starts.

It only imports. What fails is left to the children, so a broken part ends no cell that does not need it. No op may run
here: if the server has run one parallel region, its forked children hang. No call may reach the CUDA runtime: if the
server has made a single one, CUDA does not work in its children.
"""

import contextlib
import importlib
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch does not need it, and nothing here does

import torch

from conformance.run import environment

NEEDED = """
    torch.fx.experimental.symbolic_shapes numpy.random
    conformance.cell.observe conformance.cell.reference conformance.measure.side_by_side
""".split()  # torch imports the first when a gradient or a custom op first needs it, NumPy the second at the first draw
LATE = """
    torch._dynamo.backends.cudagraphs torch._dynamo.backends.distributed torch._dynamo.backends.inductor
    torch._dynamo.backends.onnxrt torch._dynamo.backends.tensorrt torch._dynamo.backends.torchxla
    torch._dynamo.backends.tvm torch._dynamo.repro.after_dynamo torch._functorch._aot_autograd.subclass_codegen
    torch._inductor.codegen.cpp_wrapper_cpu_array_ref torch._inductor.codegen.halide
    torch._inductor.codegen.memory_planning torch._inductor.codegen.mps torch._inductor.codegen.pallas
    torch._inductor.codegen.wrapper_fxir torch._subclasses.schema_check_mode
    torch.distributed.tensor.experimental torch.export._trace torch.utils._cpp_embed_headers
""".split()  # torch imports these at the first compile of a process, which would be in every cell
PROBE_SECONDS = 120.0  # for the compiler to compile what torch asks of it
_kept: list[Any] = []  # ops
RUNTIME, NVML_CHECK = "_cuda_getDeviceCount", "PYTORCH_NVML_BASED_CUDA_CHECK"


@contextlib.contextmanager
def cuda_runtime_untouched() -> Iterator[None]:
    """Count GPUs through NVML and not through the CUDA runtime, because some modules count them during their import.

    If NVML does not work, the count is 0. Afterwards, and so in the children, torch calls the runtime again.
    """
    library, check = torch._C, os.environ.get(NVML_CHECK)  # noqa: SLF001 -- all calls from Python go through it
    runtime = getattr(library, RUNTIME, None)
    if runtime is None:  # torch was built without CUDA
        yield
        return
    os.environ[NVML_CHECK] = "1"
    setattr(library, RUNTIME, lambda: 0)  # torch calls it if NVML does not work
    try:
        yield
    finally:
        setattr(library, RUNTIME, runtime)
        del os.environ[NVML_CHECK]
        if check is not None:
            os.environ[NVML_CHECK] = check


@contextlib.contextmanager
def ops_kept() -> Iterator[None]:
    """While active, keep every op alive that TorchScript gets to know by its address.

    Torch replaces some ops while it imports its compiler, and TorchScript forgets no address: if an attribute of a
    module gets one, it is taken for the op. `zoo.probes.script_takes_tuple_for_op` shows that.
    """
    builtins = getattr(torch.jit, "_builtins", None)  # nothing public knows them
    register = getattr(builtins, "_register_builtin", None)
    if builtins is None or register is None:
        yield
        return

    def registered(fn: Any, op: Any) -> None:
        _kept.append(fn)
        register(fn, op)

    builtins._register_builtin = registered  # noqa: SLF001
    try:
        yield
    finally:
        builtins._register_builtin = register  # noqa: SLF001


def harmless(step: Callable[[], object], seconds: float = 0.0) -> None:
    """Take a step of the preparation. One that fails, or does not end in time, is left to the children.

    Args:
        step: the step.
        seconds: time limit; 0 for none. It ends waiting, and no loop in native code.
    """

    def stop(*_: object) -> None:
        raise TimeoutError

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
    from conformance.cell import compiler, precompiled_header, vector_instructions  # noqa: PLC0415

    if not compiler.complaint():
        vector_instructions.find()
        if precompiled_header.is_needed():
            precompiled_header.make(PROBE_SECONDS)


def prepare() -> None:
    """Import what the children need, as far as it imports."""
    for name in NEEDED:
        harmless(partial(importlib.import_module, name))
    if environment.compiles_for():
        for name in ("torch._inductor.compile_fx", *LATE):
            harmless(partial(importlib.import_module, name))
    if "cpu" in environment.compiles_for():
        harmless(_probe_processor, PROBE_SECONDS)
    harmless(lambda: importlib.import_module("zoo.catalog").list_models())


def import_compiler() -> None:
    """Import the compiler where no cell compiles, once a child has needed it.

    Torch imports its compiler when it first calls an operator of `torch.library`, or checkpoints activations. That
    takes 0.8 s, which a model without any should not pay, and not each process of a model that has some.
    """
    with cuda_runtime_untouched(), ops_kept():
        importlib.import_module("torch._dynamo")


with cuda_runtime_untouched(), ops_kept():
    prepare()
