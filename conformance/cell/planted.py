"""Holds the model of the planted cells: one candidate computes a wrong value, and one kills its process."""

from __future__ import annotations

import os
import signal

import torch

from conformance.records.sentinels import DYING, MODEL, WRONG
from zoo.candidate import Candidate
from zoo.case import Case
from zoo.spec import Spec


def _double(x: torch.Tensor) -> torch.Tensor:
    return 2.0 * x


def _wrong(x: torch.Tensor) -> torch.Tensor:
    return 2.5 * x


def _dying(x: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGSEGV)  # on Windows, which has no signals, it ends the process with that exit code
    return x


SPEC = Spec(
    name=MODEL,
    summary="Twice its input, to see whether a run notices a wrong value and a dead process.",
    source="arithmetic",
    build=lambda: _double,
    differentiable=False,
    cases=(Case(name="typical", inputs=lambda generator: (torch.randn(3, generator=generator),)),),
    candidates=(
        Candidate(name=WRONG.mode, build=lambda: _wrong),
        Candidate(name=DYING.mode, build=lambda: _dying),
    ),
)
