"""What the fork server imports before any cell: torch, the zoo and, if a cell compiles, the compiler.

It only imports. If the parent has run one parallel region, its forked children hang, so no op may run here. If it has
asked the CUDA runtime a single question, CUDA refuses the children, so no question may reach it.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import warnings
from collections.abc import Iterator

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch does without it, and so do we

import torch

LATE = """
    torch._dynamo.backends.cudagraphs torch._dynamo.backends.distributed torch._dynamo.backends.inductor
    torch._dynamo.backends.onnxrt torch._dynamo.backends.tensorrt torch._dynamo.backends.torchxla
    torch._dynamo.backends.tvm torch._dynamo.repro.after_dynamo torch._functorch._aot_autograd.subclass_codegen
    torch._inductor.codegen.cpp_wrapper_cpu_array_ref torch._inductor.codegen.halide
    torch._inductor.codegen.memory_planning torch._inductor.codegen.mps torch._inductor.codegen.pallas
    torch._inductor.codegen.wrapper_fxir torch._subclasses.schema_check_mode
    torch.distributed.tensor.experimental torch.export._trace torch.utils._cpp_embed_headers
""".split()  # what torch imports at the first compile of a process, so every cell would
PR_SET_CHILD_SUBREAPER = 36
RUNTIME, NVML_CHECK = "_cuda_getDeviceCount", "PYTORCH_NVML_BASED_CUDA_CHECK"


@contextlib.contextmanager
def cuda_runtime_untouched() -> Iterator[None]:
    """Let NVML say whether there are GPUs, since modules ask while they are imported; without NVML there are none.

    Afterwards, and so in the children, the runtime itself is asked again.
    """
    library, check = torch._C, os.environ.get(NVML_CHECK)  # noqa: SLF001 -- through here go all questions of Python
    runtime = getattr(library, RUNTIME, None)
    if runtime is None:  # torch knows no CUDA
        yield
        return
    os.environ[NVML_CHECK] = "1"
    setattr(library, RUNTIME, lambda: 0)  # asked where NVML does not answer
    try:
        yield
    finally:
        setattr(library, RUNTIME, runtime)
        del os.environ[NVML_CHECK]
        if check is not None:
            os.environ[NVML_CHECK] = check


# What a dead cell leaves behind becomes a child of the fork server, where `run.child` finds it (Linux).
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
            with contextlib.suppress(ImportError):  # they differ between versions
                importlib.import_module(module)
        with contextlib.suppress(ImportError):
            from torch._inductor import cpu_vec_isa

            cpu_vec_isa.valid_vec_isa_list()  # cached for the life of the process, and so for every child

    catalog.list_models()
gc.collect()
gc.freeze()  # what is imported here stays, so no child need look through it
