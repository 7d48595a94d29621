"""Sets what a whole process of a cell is bound to: its global switches, and its share of a GPU's memory."""

from __future__ import annotations

import os
import warnings

import torch
from packaging.version import Version

from conformance.axes import PRECISIONS, Precision
from conformance.cell import tf32
from zoo import internals

FOR_TENSORS = 0.9  # share of a GPU's memory; every process keeps kernels and handles there too


def set_policy(precision: Precision = PRECISIONS["fp32"]) -> None:
    """Set every global switch that a verdict may depend on, so that none is inherited."""
    warnings.simplefilter("ignore")  # models and compilers warn; the verdict is the report
    torch.set_num_threads(1)
    tf32.switch(precision)
    sound = Version(torch.__version__).release >= (2, 13)  # pytorch#181564: the cache key lacked the autocast dtype
    for switch in ("enable_autograd_cache", "autograd_cache_allow_custom_autograd_functions"):
        if hasattr(internals.functorch_config, switch):
            setattr(internals.functorch_config, switch, sound)


def leave_room(device: str) -> None:
    """Limit this process to its share of the GPU's memory, so that one cell cannot starve the others."""
    if device == "cuda":
        at_once = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        torch.cuda.set_per_process_memory_fraction(FOR_TENSORS / at_once)
