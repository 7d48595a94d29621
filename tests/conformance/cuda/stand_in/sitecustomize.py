"""A GPU that is none: what is asked of CUDA happens on the CPU. Python imports this wherever the folder is on its path.

It lets the code for CUDA run where there is no GPU: what is planned, switched, judged, timed and counted. What CUDA
would compute it does not show, and it compiles nothing.
"""

import os
import time
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode

from conformance.cell import policy, session

NAME = "Stand-in GPU"
SHARES = []  # of the memory, that this process was told to keep to
MEMORY = {"requested_bytes.all.current": 0, "requested_bytes.all.peak": 0}


def on_cpu(value):
    """The CPU for CUDA, anything else as it is."""
    if isinstance(value, str) and value.startswith("cuda"):
        return "cpu"
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value


def moved(function):
    """The function with every mention of CUDA among its arguments turned into the CPU."""

    def call(*args, **kwargs):
        return function(*map(on_cpu, args), **{name: on_cpu(value) for name, value in kwargs.items()})

    return call


class OnCpu(TorchFunctionMode):
    """Makes tensors on the CPU that were asked for on CUDA."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return moved(func)(*args, **(kwargs or {}))


class Event:
    """A moment on the host's clock."""

    def __init__(self, **_):
        self.ns = 0

    def record(self):
        self.ns = time.perf_counter_ns()

    def synchronize(self):
        """Whatever was asked for is done already."""

    def elapsed_time(self, end):
        return max(end.ns - self.ns, 1) / 1e6


def sleep(cycles):
    """Keep the device busy, at two cycles a nanosecond."""
    end = time.perf_counter_ns() + cycles // 2
    while time.perf_counter_ns() < end:
        pass


def fault(self, name, y, known, found):
    """What a cell finds wrong with a tensor, but for its device."""
    return original_fault(SimpleNamespace(cell=SimpleNamespace(device="cpu"), mode=self.mode), name, y, known, found)


original_fault = session.CellSession._fault
session.CellSession._fault = fault
policy._product_rounds = lambda _: torch.backends.cuda.matmul.allow_tf32
policy._convolution_rounds = lambda _: torch.backends.cudnn.allow_tf32
torch.nn.Module.to = moved(torch.nn.Module.to)
torch.is_autocast_enabled = moved(torch.is_autocast_enabled)
torch.autocast.__init__ = moved(torch.autocast.__init__)
torch.amp.GradScaler.__init__ = moved(torch.amp.GradScaler.__init__)
for name, function in {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "device_count": lambda: len(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")),
    "current_device": lambda: 0,
    "get_device_name": lambda *_: NAME,
    "get_device_capability": lambda *_: (9, 0),
    "get_device_properties": lambda *_: SimpleNamespace(L2_cache_size=2**20),
    "set_per_process_memory_fraction": SHARES.append,
    "memory_stats": lambda *_: MEMORY,
    "memory_snapshot": list,
    "reset_peak_memory_stats": lambda *_: None,
    "synchronize": lambda *_: None,
    "get_rng_state": lambda *_: torch.get_rng_state(),
    "_sleep": sleep,
    "Event": Event,
}.items():
    setattr(torch.cuda, name, function)
OnCpu().__enter__()
