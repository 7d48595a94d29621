"""Imports torch, the zoo and, if a cell compiles, the compiler into the fork server, before any cell starts.

It only imports. No op may run here: if the server has run one parallel region, its forked children hang. No call may
reach the CUDA runtime: if the server has made a single one, CUDA does not work in its children.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import warnings
from collections.abc import Iterator

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch does not need it, and nothing here does

import torch

LATE = """
    torch._dynamo.backends.cudagraphs torch._dynamo.backends.distributed torch._dynamo.backends.inductor
    torch._dynamo.backends.onnxrt torch._dynamo.backends.tensorrt torch._dynamo.backends.torchxla
    torch._dynamo.backends.tvm torch._dynamo.repro.after_dynamo torch._functorch._aot_autograd.subclass_codegen
    torch._inductor.codegen.cpp_wrapper_cpu_array_ref torch._inductor.codegen.halide
    torch._inductor.codegen.memory_planning torch._inductor.codegen.mps torch._inductor.codegen.pallas
    torch._inductor.codegen.wrapper_fxir torch._subclasses.schema_check_mode
    torch.distributed.tensor.experimental torch.export._trace torch.utils._cpp_embed_headers
""".split()  # torch imports these at the first compile of a process, which would be in every cell
PR_SET_CHILD_SUBREAPER = 36
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


# Processes that a dead cell leaves behind become children of the fork server, where `run.child` finds them (Linux).
with contextlib.suppress(OSError, AttributeError):
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)

with cuda_runtime_untouched():
    import torch._dynamo
    import torch.fx.experimental.symbolic_shapes  # torch imports both when a gradient or a custom op first needs them

    import conformance.cell.observe
    import conformance.cell.reference
    import conformance.measure.side_by_side  # noqa: F401
    from conformance.run import environment
    from zoo import catalog

    if environment.loads_compiler():
        import torch._inductor.compile_fx

        for module in LATE:
            with contextlib.suppress(ImportError):  # the modules differ between versions of torch
                importlib.import_module(module)
        with contextlib.suppress(ImportError):
            from torch._inductor import cpu_vec_isa

            cpu_vec_isa.valid_vec_isa_list()  # cached for the life of the process, and so for every child

    catalog.list_models()
gc.collect()
gc.freeze()  # these objects live as long as the process, so no child's collector needs to scan them
