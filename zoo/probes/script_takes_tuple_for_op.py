"""TorchScript may take an attribute of a module for an op that is gone.

TorchScript has a table of ops by their addresses in memory. An op that gets one more overload is replaced, and the
address of the old one stays in the table. If an attribute of a module gets this address, such as a tuple of four
numbers, the module does not compile. Torch replaces four ops itself while it imports its compiler, so scripting may
fail at random in a process that has compiled before; `nn.ZeroPad2d` has such a tuple.

Only on the CPU: what a script compiles does not depend on the device.

Instead: script before torch's compiler is imported, or build the module once more.
"""

import torch
from torch import Tensor, nn

from zoo import internals
from zoo.probe import EVERY_MINOR, Probe, Seen, Unavailable

SYMPTOM = "a module with a tuple at the address of an op that is gone does not compile"
TRIES = 100_000


class Shifted(nn.Module):
    """Adds the first of four numbers."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        super().__init__()
        self.numbers = numbers

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus the first number."""
        return x + self.numbers[0]


def observe(device: str) -> str:
    """Replace an op, put a tuple in its place, and script a module that has it; return SYMPTOM if that fails.

    Raises:
        Unavailable: no tuple got the address of the op.
    """
    library = torch.library.Library("zoo_probe", "DEF")
    library.define("replaced.first(Tensor x) -> Tensor")
    address = id(internals.handle_of(torch.ops.zoo_probe.replaced))
    library.define("replaced.second(Tensor x, int n) -> Tensor")
    kept: list[tuple[int, ...]] = []
    while len(kept) < TRIES and (not kept or id(kept[-1]) != address):
        kept.append(tuple(range(len(kept), len(kept) + 4)))  # kept alive, so that each is elsewhere
    if id(kept[-1]) != address:
        raise Unavailable("no tuple got the address of the op")
    try:
        torch.jit.script(Shifted(kept[-1]))(torch.ones(2, device=device))
    except RuntimeError as problem:
        if "builtin cannot be used as a value" in str(problem):
            return SYMPTOM
        raise
    return ""


PROBE = Probe(
    name="script_takes_tuple_for_op",
    summary="a scripted module with a tuple where an op was in memory",
    source="no report found; pytorch#10927 brought the table of addresses",
    symptom=SYMPTOM,
    devices=("cpu",),
    seen={"cpu": Seen(torch=">=2.4", checked=EVERY_MINOR)},
    observe=observe,
)
