"""Beyond the recompile limit a compiled function runs eagerly, and only a line in the log reports it.

Every new shape, dtype, grad mode or autocast state may cause a recompilation. After eight of them torch.compile
stops compiling the function. The results are right, but the speed is lost, and tests of the compiled mode test eager.

Instead: `fullgraph=True` makes the limit an error, and so does
`torch._dynamo.config.fail_on_recompile_limit_hit` from 2.8; `torch._dynamo.reset()` starts the count again.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zoo.probe import EVERY_MINOR, Probe, Seen

SYMPTOM = "eager runs instead of the compiled function"
CALLS = 20


def observe(device: str) -> str:
    """Call a compiled function with many shapes; return SYMPTOM if the compiled graphs do not run in every call."""
    ran = []

    def backend(graph: torch.fx.GraphModule, _example: list[Tensor]) -> Callable[..., Any]:
        def call(*inputs: Any) -> Any:
            ran.append(graph)
            return graph.forward(*inputs)

        return call

    def doubled(x: Tensor) -> Tensor:
        return x * 2

    compiled = torch.compile(doubled, backend=backend, dynamic=False)
    for size in range(2, 2 + CALLS):
        compiled(torch.ones(size, device=device))
    return SYMPTOM if len(ran) < CALLS else ""


PROBE = Probe(
    name="recompile_limit",
    summary="a compiled function called with more shapes than the recompile limit",
    source="https://docs.pytorch.org/docs/main/user_guide/torch_compiler/compile/programming_model.recompilation.html",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.4", checked=EVERY_MINOR)},
    observe=observe,
)
