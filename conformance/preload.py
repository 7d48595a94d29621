"""What the fork server imports before any cell: torch, the zoo and, where a cell compiles, the compiler.

It only imports. A parent that has run one parallel region makes its forked children hang, so no op may
run here, and nothing may touch an accelerator.
"""

import contextlib
import ctypes
import os
import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch does without it, and so do we

import torch._dynamo
import torch.fx.experimental.symbolic_shapes  # torch imports both when a gradient or a custom op first needs them

import conformance.cell
import conformance.reference  # noqa: F401
from zoo import catalog

PR_SET_CHILD_SUBREAPER = 36

# What a dead cell leaves behind becomes a child of the fork server, where `isolation` finds it (Linux).
with contextlib.suppress(OSError, AttributeError):
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)

if os.environ.get("CONFORMANCE_PRELOAD") == "compiler":
    import torch._inductor.compile_fx  # noqa: F401

    with contextlib.suppress(ImportError):
        from torch._inductor import cpu_vec_isa

        cpu_vec_isa.valid_vec_isa_list()  # cached for the life of the process, and so for every child

catalog.list_models()
