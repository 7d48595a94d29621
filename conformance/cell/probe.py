"""Child process: runs one probe of a known torch fault."""

from __future__ import annotations

import importlib
import warnings

import torch

from conformance.evaluate.error_text import one_line
from conformance.one_line import name_of
from conformance.process import environment
from conformance.process.child_side import ChildProcess
from conformance.records.tasks import ProbeSighting, ProbeTask
from zoo.probe import Unavailable


def observe(task: ProbeTask, process: ChildProcess) -> ProbeSighting:
    """Run one probe with its own compile cache. An exception becomes part of the result."""
    environment.use_cache(task.cache)
    warnings.simplefilter("ignore")  # a deprecation is not a fault
    torch.set_num_threads(1)
    probe = importlib.import_module(task.module).PROBE
    process.enter("observe")
    try:
        seen = probe.observe(task.device)
    except Unavailable as reason:
        return ProbeSighting("unavailable", one_line(reason))
    except BaseException as problem:  # noqa: BLE001 -- a probe may raise anything
        return ProbeSighting("raised", f"{name_of(problem)}: {one_line(problem)}")
    if not isinstance(seen, str):
        return ProbeSighting("raised", f"TypeError: observe returned {seen!r}")
    return ProbeSighting("saw", seen)
