"""`torch.is_autocast_cpu_enabled()` in a scripted function kills the process when autocast is on.

No exception, no message: a segmentation fault at the first call under CPU autocast. Without autocast the
same function answers False. On CUDA the question is `torch.is_autocast_enabled()`.

Instead: ask outside, and pass the answer as an argument.
"""

import torch
from torch import Tensor

from zoo.probe import Probe, Seen

SYMPTOM = "killed by SIGSEGV"


def marked_on_cpu(x: Tensor) -> Tensor:
    return x + 1 if torch.is_autocast_cpu_enabled() else x


def marked_on_cuda(x: Tensor) -> Tensor:
    return x + 1 if torch.is_autocast_enabled() else x


MARKED = {"cpu": marked_on_cpu, "cuda": marked_on_cuda}


def observe(device: str) -> str:
    scripted, x = torch.jit.script(MARKED[device]), torch.zeros(3, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        marks = scripted(x)
    return "" if torch.equal(marks, torch.ones_like(x)) else "autocast is said to be off"


PROBE = Probe(
    name="script_asks_for_autocast",
    summary="asking for the state of autocast inside a scripted function",
    source="no report found; pytorch#82394 brought such questions into scripts",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.4", checked=("2.4.1", "2.5.1", "2.6.0", "2.8.0", "2.11.0", "2.13.0", "2.15.0"))},
    observe=observe,
)
