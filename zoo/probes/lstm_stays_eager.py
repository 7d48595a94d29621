"""`torch.compile(nn.LSTM(...))` compiles nothing and runs eagerly, without an error or warning.

Dynamo does not trace nn.RNN, nn.GRU and nn.LSTM. If such a module is the whole model, there is no other code to
compile, so every call is an eager call.

Instead: `fullgraph=True` makes it an error; `torch._dynamo.config.allow_rnn = True` compiles it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from zoo.probe import EVERY_MINOR, Probe, Seen

SYMPTOM = "no graph is compiled"


def observe(device: str) -> str:
    """Call a compiled nn.LSTM; return SYMPTOM if the backend gets no graph."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, _example: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch.compile(nn.LSTM(3, 4, device=device), backend=backend)(torch.ones(5, 2, 3, device=device))
    return "" if graphs else SYMPTOM


PROBE = Probe(
    name="lstm_stays_eager",
    summary="torch.compile of an nn.LSTM",
    issue="https://github.com/pytorch/pytorch/issues/141184",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.4", checked=EVERY_MINOR)},
    observe=observe,
)
