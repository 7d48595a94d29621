"""Counts cells in child processes; if need be, with the matrix kernels that the recorded counts were made with.

oneDNN takes memory for the form that its best kernels want, so the peaks of matrix products and convolutions differ
between processors: one with AMX needs three times as much for a bfloat16 convolution as one without.
"""

import os
from pathlib import Path

from benchmarks.counters import KERNELS
from conformance.measure import costs
from conformance.process import child
from conformance.records.measurements import Footprint
from conformance.records.tasks import FOOTPRINT, CellTask, Target

DEPEND_ON_THE_PROCESSOR = ("peak",)
SINGLE = tuple(name for name in costs.FIELDS if name not in ("flops", "least_bytes"))
ALL = (*SINGLE, "flops.forward", "flops.both", "least_bytes.forward", "least_bytes.both")


def observe(task: CellTask, process) -> Footprint:
    """Count a cell; oneDNN reads the variable when it is first used."""
    os.environ.update(KERNELS)
    return costs.count(task, process)


def has_the_kernels():
    """Whether this processor has the kernels of the recorded counts."""
    return "avx512_bf16" in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()


RECORDED_FOOTPRINT = Target("harness.counting:observe", CellTask, Footprint)


def counted(cell, location, sources=(), target=FOOTPRINT):
    """The footprint of a cell, counted in a fresh process. Every count is there, or its reason is."""
    ending = child.run(target, CellTask(cell, location, sources, seed=0), deadline=300.0)
    assert ending.kind == "answered", ending.message
    for name in ALL:
        is_explained = str(ending.result.why_not(name)) != "reason unknown"
        assert is_explained == (ending.result.count(name) is None), name
    return ending.result
