"""A network that learns a chess board from pixel coordinates; every pixel is one sample.

1x1 convolutions map 2 coordinates to `channels` features and then to one logit. Every convolution except the first
comes after a batch normalisation and a ReLU. Source: "Effective PyTorch", on TorchScript. `Checkerboard` is the
plain module for eager and compiled runs; `scripted_checkerboard` builds the `torch.jit.ScriptModule` with the same
state dict.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from zoo.arguments import want_sizes, want_tensors
from zoo.case import Case
from zoo.error_input import ErrorInput
from zoo.family import Family
from zoo.scale import Scale
from zoo.shared_expectations import PACKAGE_HIDES_BUFFERS, SCRIPT_NOT_CAPTURED
from zoo.spec import Spec

EPS = 1e-5  # of nn.BatchNorm2d
JITTER = 1 / 64  # a regular grid has ties at the kinks of the ReLUs; random offsets break them


def _net(channels: int) -> nn.Sequential:
    want_sizes("Checkerboard", channels=channels)

    def normed(outputs: int) -> list[nn.Module]:
        return [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, outputs, 1)]

    return nn.Sequential(nn.Conv2d(2, channels, 1), *normed(channels), *normed(channels), *normed(1))


def _check(coordinates: Tensor) -> None:
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        want_tensors("Checkerboard", coordinates=coordinates)
    if coordinates.dim() != 4 or coordinates.size(1) != 2:  # noqa: PLR2004
        raise ValueError(f"Checkerboard: coordinates must have shape (batch, 2, h, w), got {list(coordinates.shape)}")
    if not coordinates.is_floating_point():
        raise TypeError(f"Checkerboard: coordinates must have a floating dtype, got {coordinates.dtype}")


class Checkerboard(nn.Module):
    """Maps coordinates (batch, 2, h, w), any floating dtype, to logits (batch, 1, h, w).

    Args:
        channels: number of features per pixel.

    Raises:
        ValueError: `channels` is below 1; on call, the input has another shape, or it is a single pixel in training.
        TypeError: `channels` is no integer; on call, the input is no tensor of floating-point numbers.

    >>> Checkerboard(channels=8)(grid(6, 4).unsqueeze(0)).shape
    torch.Size([1, 1, 4, 6])
    """

    def __init__(self, channels: int = 256) -> None:
        super().__init__()
        self.net = _net(channels)

    def forward(self, coordinates: Tensor) -> Tensor:
        """Return the logit of "this pixel is white" for every pixel."""
        _check(coordinates)
        logits: Tensor = self.net(coordinates)
        return logits


def scripted_checkerboard(channels: int = 256) -> torch.jit.ScriptModule:
    """Build `Checkerboard` as a ScriptModule whose forward is a script method; the state dict is the same.

    The class is defined inside the function, not at import, because torch.jit warns when a class is defined.

    Raises:
        TypeError, ValueError: `channels` is no integer of at least 1.

    >>> scripted_checkerboard(channels=8)(grid(6, 4).unsqueeze(0)).shape
    torch.Size([1, 1, 4, 6])
    """
    want_sizes("scripted_checkerboard", channels=channels)
    script_method = torch.jit.script_method  # type: ignore[attr-defined]

    class ScriptedCheckerboard(torch.jit.ScriptModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = _net(channels)

        @script_method  # type: ignore[untyped-decorator]
        def forward(self, coordinates: Tensor) -> Tensor:
            _check(coordinates)
            logits: Tensor = self.net(coordinates)
            return logits

    return ScriptedCheckerboard()


def grid(width: int, height: int) -> Tensor:
    """Return pixel coordinates (2, height, width) in [0, 1), float32: x = column / width, then y = row / height.

    Raises:
        ValueError: `width` or `height` is not positive.
        TypeError: one of them is no integer.

    >>> grid(2, 1).tolist()
    [[[0.0, 0.5]], [[0.0, 0.0]]]
    """
    want_sizes("grid", width=width, height=height)
    y, x = torch.meshgrid(torch.arange(height) / height, torch.arange(width) / width, indexing="ij")
    return torch.stack((x, y))


def checker(width: int, height: int, freq: int) -> Tensor:
    """Return a chess board (1, height, width) of 0 and 1, float32, with `freq` squares along each side; 0 first.

    The squares are equal if `freq` divides both sizes. The source asks whether a coordinate is `.gt(0.5)` within its
    pair of squares, so every second square begins one pixel late, and the board is blank if a square is one pixel.

    Raises:
        ValueError: `width`, `height` or `freq` is not positive.
        TypeError: one of them is no integer.

    >>> checker(4, 2, 2).tolist()
    [[[0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]]]
    """
    want_sizes("checker", width=width, height=height, freq=freq)
    columns = torch.arange(width) * freq // width  # with integers: float32 misplaces some edges of squares
    rows = torch.arange(height) * freq // height
    return ((rows.unsqueeze(1) + columns) % 2).float().unsqueeze(0)


def _boards(batch: int, side: int, generator: torch.Generator) -> tuple[Tensor]:
    jitter = torch.rand(batch, 2, side, side, generator=generator) * JITTER
    return (grid(side, side) + jitter,)


def _channels_last(generator: torch.Generator) -> tuple[Tensor]:
    (board,) = _boards(1, 6, generator)
    return (board.to(memory_format=torch.channels_last),)


def _reference(model: nn.Module, coordinates: Tensor) -> Tensor:
    """Use pixels as the rows of a matrix, and matrix products instead of convolutions."""
    values = {**dict(model.named_parameters()), **dict(model.named_buffers())}

    def convolved(layer: int, x: Tensor) -> Tensor:
        return x @ values[f"net.{layer}.weight"].flatten(1).t() + values[f"net.{layer}.bias"]

    def normed(layer: int, x: Tensor) -> Tensor:
        mean, variance = values[f"net.{layer}.running_mean"], values[f"net.{layer}.running_var"]
        if model.training:
            mean = x.mean(0)
            variance = (x - mean).square().mean(0)
        x = (x - mean) / (variance + EPS).sqrt() * values[f"net.{layer}.weight"] + values[f"net.{layer}.bias"]
        return x * (x > 0)

    x = convolved(0, coordinates.movedim(1, -1).reshape(-1, 2))
    for layer in (1, 4, 7):  # a batch norm, its ReLU, and the convolution behind them
        x = convolved(layer + 2, normed(layer, x))
    batch, _, height, width = coordinates.shape
    return x.reshape(batch, height, width, 1).movedim(-1, 1)


def _freeze(model: nn.Module) -> None:
    """Move the running statistics away from the initial 0 and 1, and switch to eval mode."""
    for _ in range(40):
        model(grid(8, 8).unsqueeze(0))
    model.eval()


CASES = (
    Case(name="typical", inputs=partial(_boards, 2, 5)),
    Case(name="one-board", inputs=partial(_boards, 1, 8)),
    Case(name="channels-last", inputs=_channels_last),
)
ERROR_INPUTS = (
    ErrorInput(
        name="one-coordinate", inputs=lambda _: (torch.ones(2, 1, 6, 4),), error=ValueError, match="must have shape"
    ),
    ErrorInput(name="no-batch", inputs=lambda _: (torch.ones(2, 6, 4),), error=ValueError, match="must have shape"),
    ErrorInput(
        name="integers",
        inputs=lambda _: (torch.ones(2, 2, 6, 4, dtype=torch.int64),),
        error=TypeError,
        match="must have a floating dtype",
    ),
)
SCALE = Scale(
    size_name="side",
    sizes=(8, 16, 32),
    working=16,
    working_on_cuda=512,
    build=lambda _: Checkerboard(),
    inputs=lambda n, g: _boards(1, n, g),
)

TRAIN = Spec(
    name="checkerboard",
    summary="1x1 convolutions and batch norm, on batch statistics",
    source="Effective PyTorch, TorchScript",
    formula="z = (c4 ∘ n3 ∘ c3 ∘ n2 ∘ c2 ∘ n1 ∘ c1)(x, y), c a 1x1 convolution, n = relu ∘ batch norm",
    shapes="(batch, 2, h, w) → (batch, 1, h, w)",
    build=partial(Checkerboard, channels=32),
    cases=CASES,
    error_inputs=ERROR_INPUTS,
    dtypes="follows",
    one_graph=True,
    reference=_reference,
    scripted=partial(scripted_checkerboard, channels=32),
    expectations=(PACKAGE_HIDES_BUFFERS,),
    family=Family(sizes={"batch": (1, 3), "side": (2, 8)}, inputs=_boards),
    scale=replace(SCALE, scripted=lambda _: scripted_checkerboard()),
)

SCRIPTED = replace(
    TRAIN,
    name="checkerboard_scripted",
    summary="`checkerboard` as its source has it: a ScriptModule of 256 channels",
    build=scripted_checkerboard,
    scripted=None,
    scale=replace(SCALE, build=lambda _: scripted_checkerboard()),
    expectations=(SCRIPT_NOT_CAPTURED,),
)

EVAL = replace(
    TRAIN,
    name="checkerboard_eval",
    summary="1x1 convolutions and batch norm, on running statistics",
    initialise=_freeze,
    scripted=None,
    expectations=(),
    scale=SCALE,
)
