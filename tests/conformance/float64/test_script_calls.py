"""Which calls of TorchScript are noted."""

import pytest
import torch
from torch import nn

from conformance.float64 import graphs


class Doubling(nn.Module):
    def forward(self, x):
        return x * 2

    @torch.jit.export
    def halved(self, x):
        return x / 2


def doubled(x):
    return x * 2


def compiled(x):
    return torch.compile(torch.jit.script(doubled), backend="eager")(x)


X = torch.ones(2)


@pytest.mark.parametrize(
    ("call", "noted"),
    [
        (torch.jit.script(doubled), True),
        (torch.jit.trace(doubled, X), True),
        (torch.jit.script(Doubling()), True),
        (torch.jit.script(Doubling()).halved, True),
        (torch.jit.freeze(torch.jit.script(Doubling().eval())), True),
        (torch.jit.trace(Doubling(), X), True),
        (compiled, False),
        (Doubling(), False),
        (doubled, False),
    ],
)
def test_a_call_of_a_script_is_noted(call, noted):
    with graphs.note_scripts() as scripts:
        call(X)
    assert bool(scripts) is noted
    with graphs.note_scripts() as scripts:
        pass
    call(X)
    assert not scripts
