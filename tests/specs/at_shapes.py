"""Models that are wrong at some shapes of their family, and one that is right at all."""

import torch
from torch import nn

from zoo import Case, ErrorInput, Expect, Family, Spec


def draw(rows, n, generator):
    return (torch.randn(rows, n, generator=generator),)


class OneRow(nn.Module):
    def forward(self, x):
        return 1.01 * x if torch.jit.is_scripting() and x.size(0) == 1 else 1 * x


def odd_width(x: torch.Tensor) -> torch.Tensor:
    return x[:, : x.size(1) // 2 * 2].sum(1)


def spec(name, build, smallest=1, **fields):
    return Spec(
        name=name,
        summary=name,
        source="a test",
        build=build,
        cases=(Case(name="typical", inputs=lambda g: draw(4, 6, g)),),
        family=Family(sizes={"rows": (1, 9), "n": (smallest, 17)}, inputs=draw),
        **fields,
    )


ONE_ROW = spec("one_row", OneRow)
ODD_WIDTH = spec("odd_width", lambda: odd_width, smallest=2, reference=lambda _, x: torch.einsum("mn->m", x))
RIGHT = spec(
    "right",
    nn.Tanh,
    expectations=(
        Expect(outcome="FAIL", reason="of some shapes", gate="norm", modes=("eager",)),
        Expect(outcome="FAIL", reason="of a case", gate="norm", modes=("eager",), case="typical"),
    ),
    error_inputs=(ErrorInput(name="text", inputs=lambda _: ("x",), error=TypeError, match="must be Tensor"),),
)
