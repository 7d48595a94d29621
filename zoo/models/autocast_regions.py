"""Autocast inside a forward: a model that opens a float16 region, and a float32 island that switches autocast off.

Source: articles on automatic mixed precision. A region in forward decides for itself: the caller's autocast has no say
in it. `RegionMLP` therefore returns float16, with float16's accuracy, also to a caller in float32 or under bfloat16.
The region must name its dtype: without one it takes that of the caller's autocast, or the default of the device type.
`squared_distances` returns float32, with float32's accuracy, under every autocast dtype: a difference of large numbers
needs it, and the cast of the inputs must be inside the region, since a low-precision tensor stays what it is.

TorchScript keeps an autocast state of its own beside that of the dispatcher. A region in a script changes only the
first, so the caller's autocast wins: declare it, or open the region outside the script.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from zoo.arguments import want_sizes, want_tensors
from zoo.case import Case
from zoo.error_input import ErrorInput
from zoo.expect import Expect
from zoo.family import Family
from zoo.scale import Scale
from zoo.spec import Spec


class RegionMLP(nn.Module):
    """Linear, ReLU, Linear in a float16 autocast region that forward opens itself.

    The parameters are float32 and so are their gradients.

    Args:
        in_features: trailing size of the input.
        hidden_features: number of hidden units.
        out_features: trailing size of the result.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size is below 1.

    >>> model = RegionMLP(16, 32, 8)
    >>> model(torch.ones(3, 16)).dtype
    torch.float16
    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     model(torch.ones(3, 16)).dtype
    torch.float16
    """

    def __init__(self, in_features: int, hidden_features: int, out_features: int) -> None:
        super().__init__()
        want_sizes("RegionMLP", in_features=in_features, hidden_features=hidden_features, out_features=out_features)
        self.in_features = in_features
        self.hidden = nn.Linear(in_features, hidden_features)
        self.out = nn.Linear(hidden_features, out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Map (*, in_features), floating, to (*, out_features), float16.

        Raises:
            ValueError: the trailing size of `x` is not `in_features`.
            TypeError: `x` is not a tensor, or does not hold floating-point numbers.
        """
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            want_tensors("RegionMLP", x=x)
        if x.dim() == 0 or x.size(-1) != self.in_features:
            raise ValueError(f"RegionMLP: x must have trailing size {self.in_features}, got shape {list(x.shape)}")
        if not x.is_floating_point():
            raise TypeError(f"RegionMLP: x must have a floating dtype, got {x.dtype}")
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            with torch.autocast(x.device.type, dtype=torch.float16):
                y = self.out(torch.relu(self.hidden(x)))
        elif x.is_cuda:  # a script wants the device type as a constant
            with torch.autocast("cuda", dtype=torch.float16):
                y = self.out(torch.relu(self.hidden(x)))
        else:
            with torch.autocast("cpu", dtype=torch.float16):
                y = self.out(torch.relu(self.hidden(x)))
        result: Tensor = y
        return result


def _distances(x: Tensor, y: Tensor) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    x, y = x.to(wide), y.to(wide)
    return x.square().sum(1, keepdim=True) + y.square().sum(1) - 2 * (x @ y.t())


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Compute the squared distance of every row of `x` to every row of `y`, in float32 also under autocast.

    Args:
        x: (n, d), floating.
        y: (m, d), dtype of `x`.

    Returns:
        (n, m), float32 (float64 for float64). The gradients have the dtype of the inputs.

    Raises:
        ValueError: `x` and `y` are not matrices with rows of one length.
        TypeError: they are not tensors, their dtypes differ, or they do not hold floating-point numbers.

    >>> x, y = torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([[0.0, 4.0]])
    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     squared_distances(x, y).tolist()
    [[16.0], [25.0]]
    """
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        want_tensors("squared_distances", x=x, y=y)
    if x.dim() != 2 or y.dim() != 2 or x.size(1) != y.size(1):  # noqa: PLR2004
        raise ValueError(
            f"squared_distances: x and y must have shapes (n, d) and (m, d), got {list(x.shape)} and {list(y.shape)}"
        )
    if not x.is_floating_point() or x.dtype != y.dtype:
        raise TypeError(f"squared_distances: x and y must have one floating dtype, got {x.dtype} and {y.dtype}")
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        with torch.autocast(x.device.type, enabled=False):
            distances = _distances(x, y)
    elif x.is_cuda:  # a script wants the device type as a constant
        with torch.autocast("cuda", enabled=False):
            distances = _distances(x, y)
    else:
        with torch.autocast("cpu", enabled=False):
            distances = _distances(x, y)
    return distances


def _region_reference(model: RegionMLP, x: Tensor) -> Tensor:
    hidden = torch.einsum("...i,hi->...h", x, model.hidden.weight) + model.hidden.bias
    return torch.einsum("...h,oh->...o", hidden * (hidden > 0), model.out.weight) + model.out.bias


def _island_reference(_model: object, x: Tensor, y: Tensor) -> Tensor:
    """Subtract first, then square."""
    return (x.unsqueeze(1) - y).square().sum(2)


def _rows(count: int, generator: torch.Generator) -> tuple[Tensor]:
    return (torch.randn(count, 16, generator=generator),)


def _pair(n: int, m: int, d: int, generator: torch.Generator, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    return shift + torch.randn(n, d, generator=generator), shift + torch.randn(m, d, generator=generator)


_JIT_AUTOCAST = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/jit/JIT-AUTOCAST.md"

REGION = Spec(
    name="autocast_region",
    summary="a perceptron whose forward opens a float16 autocast region",
    source="articles on automatic mixed precision, a module that opens autocast itself",
    formula="y = W2 relu(W1 x + b1) + b2, in float16",
    shapes="(..., in_features) → (..., out_features)",
    build=partial(RegionMLP, in_features=16, hidden_features=32, out_features=8),
    cases=(
        Case(name="typical", inputs=partial(_rows, 24), independent_samples=True),
        Case(name="one-row", inputs=partial(_rows, 1), independent_samples=True),
        Case(name="empty", inputs=partial(_rows, 0)),
        Case(
            name="non-contiguous",
            inputs=lambda g: (torch.randn(16, 24, generator=g).t()[::2],),
            independent_samples=True,
        ),
    ),
    error_inputs=(
        ErrorInput(
            name="too-wide", inputs=lambda _: (torch.ones(4, 17),), error=ValueError, match="x must have trailing size"
        ),
        ErrorInput(
            name="integers",
            inputs=lambda _: (torch.ones(4, 16, dtype=torch.int64),),
            error=TypeError,
            match="x must have a floating dtype",
        ),
    ),
    dtypes="float16",
    one_graph=True,
    reference=_region_reference,
    expectations=(
        Expect(
            outcome="FAIL",
            precisions=("fp32",),
            gate="norm",
            reason="the region is float16 by its own choice, so a caller in float32 gets float16's accuracy",
        ),
        *(
            Expect(
                outcome="FAIL",
                precisions=("tf32",),
                gate=gate,
                reason="the region is float16 by its own choice, so gradients lack digits that sums in float32 have",
            )
            for gate in ("norm", "precision")
        ),
        Expect(
            outcome="FAIL",
            modes=("scripted",),
            precisions=("amp_bf16",),
            torch=">=2.4",
            gate="dtype",
            tensor="output",
            reason="a region in a script does not change the caller's autocast, which then casts to bfloat16",
            link=_JIT_AUTOCAST,
        ),
        Expect(
            outcome="FAIL",
            modes=("scripted",),
            precisions=("bf16",),
            gate="dtype",
            tensor="output",
            reason="a region in a script casts what is in float32, so bfloat16 stays",
            link=_JIT_AUTOCAST,
        ),
        Expect(
            outcome="ERROR",
            modes=("compiled", "graphed"),
            precisions=("amp_bf16",),
            torch="<2.5",
            error="RuntimeError",
            match="c10::BFloat16 != c10::Half",
            reason="compiled code does not keep the dtype of a region inside the caller's autocast",
        ),
    ),
    family=Family(sizes={"rows": (1, 9)}, inputs=_rows),
    scale=Scale(
        size_name="width",
        sizes=(16, 64, 256, 1024),
        working=128,
        working_on_cuda=2**13,
        build=lambda n: RegionMLP(n, n, n),
        inputs=lambda n, g: (torch.randn(64, n, generator=g),),
    ),
)

ISLAND = Spec(
    name="float32_island",
    summary="squared distances in a region without autocast",
    source="articles on automatic mixed precision, autocast(enabled=False)",
    formula="out[i, j] = |x_i|² + |y_j|² − 2 x_i · y_j",
    shapes="(n, d), (m, d) → (n, m)",
    build=lambda: squared_distances,
    cases=(
        Case(name="typical", inputs=partial(_pair, 6, 5, 8)),
        Case(name="far-from-zero", inputs=partial(_pair, 6, 5, 8, shift=16.0)),
        Case(name="one-row", inputs=partial(_pair, 1, 1, 8)),
        Case(name="empty", inputs=partial(_pair, 0, 5, 8)),
        Case(
            name="non-contiguous",
            inputs=lambda g: (torch.randn(8, 6, generator=g).t(), torch.randn(10, 8, generator=g)[::2]),
        ),
    ),
    error_inputs=(
        ErrorInput(
            name="rows-of-two-lengths",
            inputs=lambda _: (torch.ones(6, 8), torch.ones(5, 7)),
            error=ValueError,
            match="x and y must have shapes",
        ),
        ErrorInput(
            name="two-dtypes",
            inputs=lambda _: (torch.ones(6, 8), torch.ones(5, 8, dtype=torch.bfloat16)),
            error=TypeError,
            match="x and y must have one floating dtype",
        ),
    ),
    dtypes="float32",
    twice_differentiable=True,
    vmappable=True,
    one_graph=True,
    float32_accurate=("output", "gradient of x", "gradient of y"),
    reference=_island_reference,
    expectations=(
        Expect(
            outcome="FAIL",
            modes=("scripted",),
            precisions=("amp_fp16", "amp_bf16"),
            torch=">=2.4",
            gate="norm",
            reason="autocast(enabled=False) in a script does not stop the caller's autocast",
            link="https://github.com/pytorch/pytorch/pull/81747",
        ),
        Expect(
            outcome="FAIL",
            modes=("compiled", "compiled_dynamic", "graphed"),
            precisions=("amp_fp16", "amp_bf16"),
            torch=">=2.4",
            gate="norm",
            reason="the backward of compiled code runs under the caller's autocast, not under that of the region",
            link="https://github.com/pytorch/pytorch/issues/179804",
        ),
    ),
    family=Family(sizes={"n": (1, 9), "m": (1, 9), "d": (1, 17)}, inputs=_pair),
    scale=Scale(
        size_name="rows",
        sizes=(16, 64, 256),
        working=2**9,
        working_on_cuda=2**13,
        build=lambda _: squared_distances,
        inputs=lambda n, g: _pair(n, n, 64, g),
    ),
)
