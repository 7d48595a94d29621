"""y = x - m with a running mean m in an object of its own: every call gives another result.

A tensor in an object that the module holds is no parameter, no buffer and no attribute of the module. The state dict
does not contain it, `.to()` does not move it, and nothing that restores the module resets it. The remedy is
`register_buffer`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec

MOMENTUM = 0.1


class _RunningMean:
    """The mean of all batches so far, the last ones weighted most."""

    def __init__(self, width: int) -> None:
        self.value = torch.zeros(width)

    def update(self, x: Tensor) -> Tensor:
        """Return the mean after one more batch `x` (batch, width)."""
        self.value = (1 - MOMENTUM) * self.value + MOMENTUM * x.detach().mean(0)
        return self.value


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
        self.mean = _RunningMean(width)

    def forward(self, x: Tensor) -> Tensor:
        """Subtract the running mean of all batches so far from `x` (batch, width); same shape and dtype."""
        return x - self.mean.update(x)


SPEC = Spec(
    name="hidden_state",
    summary="a running mean in an object: calls differ",
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
            reason="the running mean is no buffer, so nothing resets it between two identical calls",
        ),
    ),
)
