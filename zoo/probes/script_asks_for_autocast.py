"""`torch.is_autocast_cpu_enabled()` in a scripted function kills the process when autocast is on.

No exception, no message: a segmentation fault at the first call under CPU autocast. Without autocast the
same function answers False.

Instead: ask outside, and pass the answer as an argument.
"""

import torch
from torch import Tensor

from zoo.probe import Probe

SYMPTOM = "killed by SIGSEGV"


def marked(x: Tensor) -> Tensor:
    return x + 1 if torch.is_autocast_cpu_enabled() else x


def observe() -> str:
    scripted = torch.jit.script(marked)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        marks = scripted(torch.zeros(3))
    return "" if torch.equal(marks, torch.ones(3)) else "autocast is said to be off"


PROBE = Probe(
    name="script_asks_for_autocast",
    summary="asking for the state of autocast inside a scripted function",
    source="no report found; pytorch#82394 brought such questions into scripts",
    symptom=SYMPTOM,
    torch=">=2.4",
    checked=("2.4.1", "2.6.0", "2.8.0", "2.11.0", "2.13.0", "2.15.0"),
    observe=observe,
)
