"""y = x - m with a running mean m in a plain attribute: every call gives another result.

A tensor assigned to `self.mean` is neither a parameter nor a buffer. The state dict does not contain it, `.to()` does
not move it, restoring the state does not reset it, and `buffers()` does not list it. The remedy is `register_buffer`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec

MOMENTUM = 0.1


class HiddenState(nn.Module):
    """A module that subtracts a running mean, which is not in its state dict.

    Args:
        width: number of features of a sample.

    >>> model = HiddenState(1)
    >>> x = torch.ones(2, 1)
    >>> model(x)[0].item() == model(x)[0].item()
    False
    >>> model.state_dict()
    OrderedDict()
    """

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.mean = torch.zeros(width)

    def forward(self, x: Tensor) -> Tensor:
        """Subtract the running mean of all batches so far from `x` (batch, width); same shape and dtype."""
        self.mean = (1 - MOMENTUM) * self.mean + MOMENTUM * x.detach().mean(0)
        return x - self.mean


SPEC = Spec(
    name="hidden_state",
    summary="a running mean in a plain attribute: calls differ",
    source="a buffer that is not registered",
    formula="m = 0.9 m + 0.1 mean x; y = x - m",
    shapes="(batch, width) → (batch, width)",
    build=HiddenState,
    cases=(Case(name="typical", inputs=lambda g: (1 + torch.randn(4, 5, generator=g),)),),
    dtypes="input",
    expectations=(
        Expect(
            outcome="UNSTABLE",
            match="^output: two identical float64 runs differ",
            reason="the running mean is not a buffer, so nothing resets it between two identical calls",
        ),
    ),
)
