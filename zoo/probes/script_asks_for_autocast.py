"""`torch.is_autocast_cpu_enabled()` in a scripted function kills the process if autocast is on.

The first call under CPU autocast is a segmentation fault, without an exception or a message. Without autocast the
same function returns False. On CUDA the function to call is `torch.is_autocast_enabled()`.

Instead: call it outside the script, and pass the result as an argument.
"""

import torch
from torch import Tensor

from zoo.probe import EVERY_MINOR, Probe, Seen

SYMPTOM = "killed by SIGSEGV"


def marked_on_cpu(x: Tensor) -> Tensor:
    """Return x + 1 under autocast for the CPU, else x."""
    return x + 1 if torch.is_autocast_cpu_enabled() else x


def marked_on_cuda(x: Tensor) -> Tensor:
    """Return x + 1 under autocast for CUDA, else x."""
    return x + 1 if torch.is_autocast_enabled() else x


MARKED = {"cpu": marked_on_cpu, "cuda": marked_on_cuda}


def observe(device: str) -> str:
    """Call the scripted function under autocast; a torch with the fault kills the process."""
    scripted, x = torch.jit.script(MARKED[device]), torch.zeros(3, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        marks = scripted(x)
    return "" if torch.equal(marks, torch.ones_like(x)) else "autocast is reported to be off"


PROBE = Probe(
    name="script_asks_for_autocast",
    summary="a query of the autocast state inside a scripted function",
    source="no report found; pytorch#82394 added such queries to TorchScript",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.4", checked=EVERY_MINOR)},
    observe=observe,
)
