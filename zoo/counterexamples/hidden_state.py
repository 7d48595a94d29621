"""y = x - m with a running mean m that lives in a plain attribute: every call answers differently.

A tensor assigned to `self.mean` is neither parameter nor buffer: it is not saved in the state dict, not moved by
`.to()`, not put back by whoever restores the state, and not seen by anything that asks for buffers. The remedy is
`register_buffer`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec

MOMENTUM = 0.1


class HiddenState(nn.Module):
    """Subtracts a running mean that the state dict knows nothing of.

    Args:
        width: of a sample.

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
        """`x` (batch, width) less the mean of all batches so far; same shape and dtype."""
        self.mean = (1 - MOMENTUM) * self.mean + MOMENTUM * x.detach().mean(0)
        return x - self.mean


SPEC = Spec(
    name="hidden_state",
    summary="a running mean in a plain attribute: calls differ",
    source="a buffer that nobody registered",
    formula="m = 0.9 m + 0.1 mean x; y = x - m",
    shapes="(batch, width) → (batch, width)",
    build=HiddenState,
    cases=(Case(name="typical", inputs=lambda g: (1 + torch.randn(4, 5, generator=g),)),),
    dtypes="input",
    expectations=(
        Expect(
            outcome="UNSTABLE",
            match="^output: two identical float64 runs differ",
            reason="the running mean is no buffer: nothing puts it back between two identical calls",
        ),
    ),
)
