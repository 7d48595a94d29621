"""Cells that end in an error, a crash, a refusal of memory or at the deadline, some with processes left behind."""

import ctypes
import os
import subprocess
import sys
import time

import misbehaving_modes  # noqa: F401 -- registers modes
import torch
from miniature_parts import LINEAR, around, gets, register, spec_of

GRANDCHILD = "import time; time.sleep(3600)  # grandchild of a conformance miniature"


def _grandchild(**options):
    """Start a process that names the fork server of this cell, so that a test can tell its own."""
    subprocess.Popen([sys.executable, "-c", GRANDCHILD, str(os.getppid())], **options)


def _leave_a_runaway(model, *args):
    _grandchild(start_new_session=True)
    os._exit(0)


def _hang_with_grandchild(**options):
    def call(model, *args):
        _grandchild(**options)
        time.sleep(3600)

    return around(call)


def _dies_in_float64(x):
    if x.dtype == torch.float64:
        os.kill(os.getpid(), 11)
    return x * 2


def _hangs_in_float64(x):
    if x.dtype == torch.float64:
        ctypes.PyDLL(None).sleep(3600)
    return x * 2


register(
    leaving_runaway=around(_leave_a_runaway),
    hanging_grandchild=_hang_with_grandchild(),
    hanging_runaway=_hang_with_grandchild(start_new_session=True),
)

DIES = spec_of("dies_in_reference", lambda: _dies_in_float64)
HANGS = spec_of("hangs_in_reference", lambda: _hangs_in_float64)

MINIATURES = (
    gets(LINEAR, "raising", "fp32", "ERROR", text="phase call: LookupError: no kernel"),
    gets(LINEAR, "refusing", "fp32", "ERROR", text="phase prepare: NotImplementedError"),
    gets(LINEAR, "nothing_prepared", "fp32", "ERROR", text="must return a Prepared or a callable, got int"),
    gets(LINEAR, "segfault", "fp32", "CRASH", text="phase call: killed by SIGSEGV"),
    gets(LINEAR, "leaving", "fp32", "CRASH", text="left with exit code 0 and no answer"),
    gets(LINEAR, "leaving_politely", "fp32", "ERROR", text="phase call: SystemExit: 0"),
    gets(DIES, "eager", "fp32", "CRASH", text="phase reference: killed by SIGSEGV"),
    gets(LINEAR, "memory_refused", "fp32", "OOM", text="phase call"),
    gets(LINEAR, "memory_error", "fp32", "OOM", text="phase call"),
)

# Those that end only at the deadline, or leave processes behind
HANGING = (
    gets(LINEAR, "hanging", "fp32", "TIMEOUT", text="phase call: no answer within"),
    gets(LINEAR, "hanging_grandchild", "fp32", "TIMEOUT", text="phase call: no answer within"),
    gets(LINEAR, "hanging_runaway", "fp32", "TIMEOUT", text="phase call: no answer within"),
    gets(LINEAR, "leaving_runaway", "fp32", "CRASH", text="left with exit code 0 and no answer"),
    gets(HANGS, "eager", "fp32", "TIMEOUT", text="phase reference: no answer within"),
)
