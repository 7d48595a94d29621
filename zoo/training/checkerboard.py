"""Train the network that learns a chess board; `python -m zoo.training --png board.png` does it.

Adam with learning rate 1e-3 on the mean squared error of every pixel, 500 steps, 512 by 512 pixels, in float32 and then
under autocast with a scaler. Source: "Effective PyTorch", on TorchScript. The binary cross entropy of the pixels is
another loss, which the source does not have: it takes the outputs for logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from zoo.amp import want_precision
from zoo.arguments import (
    want_callables,
    want_floating,
    want_instances,
    want_paths,
    want_sizes,
    want_string,
    want_tensors,
)
from zoo.case import Case
from zoo.claim import Claim
from zoo.models.checkerboard import Checkerboard, checker, grid, scripted_checkerboard
from zoo.spec import Spec
from zoo.training.epochs import train
from zoo.training.step import Fit, Step, loss_curve, squared_error

SQUARES = 8
MODES = ("eager", "scripted", "compiled")


def board(size: int, squares: int = SQUARES) -> tuple[Tensor, Tensor]:
    """Return coordinates (1, 2, size, size) and the target board (1, 1, size, size) of 0 and 1, both float32.

    Raises:
        TypeError, ValueError: a number is no integer of at least 1.

    >>> [tuple(x.shape) for x in board(16)]
    [(1, 2, 16, 16), (1, 1, 16, 16)]
    """
    want_sizes("board", size=size, squares=squares)
    return grid(size, size).unsqueeze(0), checker(size, size, squares).unsqueeze(0)


def fit_checkerboard(  # noqa: PLR0913 -- what the study varies
    model: nn.Module,
    *,
    size: int = 512,
    steps: int = 500,
    precision: str = "fp32",
    loss_fn: Callable[[Tensor, Tensor], Tensor] = squared_error,
    checkpoint: Path | None = None,
    progress: Callable[[int, Step], None] | None = None,
) -> Fit:
    """Train a network on the chess board of 8 by 8 squares, on the device of its parameters.

    Args:
        model: a `Checkerboard`, plain, scripted or compiled; it is trained in place.
        size: number of pixels along each side.
        steps: number of steps of Adam, with learning rate 1e-3.
        precision: "fp32", "amp_fp16" or "amp_bf16".
        loss_fn: the source has `squared_error`; `cross_entropy_of_pixels` learns the board faster.
        checkpoint: a file that is written after every step. If it exists, the training goes on from it.
        progress: called after every step with its number, counted from 1, and its result.

    Raises:
        TypeError: `model` is no module, or an argument is of another type.
        ValueError: `size` is not a positive multiple of 8, or `zoo.training.epochs.train` raises it.
        FloatingPointError: the loss is NaN, or too many steps were skipped.

    >>> import torch
    >>> from zoo.models.checkerboard import Checkerboard
    >>> fit_checkerboard(Checkerboard(channels=4), size=8, steps=2).losses.shape
    torch.Size([2])
    """
    want_instances("fit_checkerboard", nn.Module, model=model)
    want_sizes("fit_checkerboard", size=size, steps=steps)
    want_precision("fit_checkerboard", precision)
    want_callables("fit_checkerboard", loss_fn=loss_fn, **({} if progress is None else {"progress": progress}))
    if size % SQUARES:
        raise ValueError(f"fit_checkerboard: size must be a multiple of {SQUARES}, got {size}")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    device = next(model.parameters()).device
    return train(
        model,
        loss_fn,
        [tuple(t.to(device) for t in board(size))],  # once, not in each step
        optimizer,
        epochs=steps,
        precision=precision,
        checkpoint=checkpoint,
        progress=progress,
    )


def cross_entropy_of_pixels(logits: Tensor, target: Tensor) -> Tensor:
    """Compute the mean binary cross entropy of all pixels, in the dtype of the target.

    Raises:
        TypeError: an argument is not a tensor, or does not hold floating-point numbers.

    >>> cross_entropy_of_pixels(torch.zeros(2, dtype=torch.bfloat16), torch.tensor([0.0, 1.0]))
    tensor(0.6931)
    """
    want_floating("cross_entropy_of_pixels", "logits", logits)
    want_floating("cross_entropy_of_pixels", "target", target)
    return nn.functional.binary_cross_entropy_with_logits(logits.to(target.dtype), target)


def drawn_by(model: nn.Module, size: int) -> Tensor:
    """Return the board (size, size) that a network draws, float32 on the CPU, clamped to [0, 1].

    A network in training mode uses the statistics of this board. Its running statistics stay as they were.

    Raises:
        TypeError, ValueError: `model` is no module, or `size` no integer of at least 1.

    >>> drawn_by(Checkerboard(channels=4), 16).shape
    torch.Size([16, 16])
    """
    want_instances("drawn_by", nn.Module, model=model)
    want_sizes("drawn_by", size=size)
    coordinates, _ = board(size)
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.no_grad():
        drawn: Tensor = model(coordinates.to(next(model.parameters()).device))
        for buffer, value in kept:
            buffer.copy_(value)
    return drawn[0, 0].float().cpu().clamp(0, 1)


def save_picture(path: Path, *boards: Tensor) -> None:
    """Write boards of equal height beside each other into a PNG.

    Args:
        path: the file.
        boards: (height, width) each, values from 0, black, to 1, white.

    Raises:
        TypeError: `path` is no path, or a board no tensor.
        ImportError: Pillow is missing; the message names the extra to install.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     picture = Path(folder, "board.png")
    ...     save_picture(picture, drawn_by(Checkerboard(channels=4), 16), checker(16, 16, 8)[0])
    ...     picture.read_bytes()[1:4]
    b'PNG'
    """
    want_paths("save_picture", path=path)
    want_tensors("save_picture", **{f"board {number}": one for number, one in enumerate(boards, 1)})
    try:
        from PIL import Image  # noqa: PLC0415 -- an optional dependency
    except ImportError as problem:
        raise ImportError("save_picture: needs Pillow: pip install pillow") from problem
    side_by_side = torch.cat(boards, dim=1)
    height, width = side_by_side.shape
    pixels = (side_by_side * 255).round().to(torch.uint8).contiguous()
    Image.frombytes("L", (width, height), bytes(pixels.flatten().tolist())).save(path)


def network(mode: str = "eager", channels: int = 256) -> nn.Module:
    """Build the network in a mode: "eager", "scripted" or "compiled".

    Raises:
        TypeError, ValueError: the mode is another, or `channels` is no integer of at least 1.

    >>> type(network("scripted", channels=4)).__name__
    'ScriptedCheckerboard'
    """
    want_string("network", mode=mode)
    want_sizes("network", channels=channels)
    if mode not in MODES:
        raise ValueError(f"network: mode must be one of {', '.join(MODES)}, got {mode!r}")
    model = scripted_checkerboard(channels) if mode == "scripted" else Checkerboard(channels)
    if mode == "compiled":
        model.compile()
    return model


def _curve(  # noqa: PLR0913 -- the arguments of a fit, and the loss
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    call: Callable[..., Tensor],
    model: nn.Module,
    precision: str,
    x: Tensor,
    target: Tensor,
) -> Tensor:
    """Return the loss before each of 8 steps, at a rate at which it falls by half on a small board."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return loss_curve(call, loss_fn, (x, target), optimizer, precision, steps=8)


def _small_board(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    coordinates, target = board(16, 4)
    return coordinates + torch.rand(coordinates.shape, generator=generator) / 64, target


SPEC = Spec(
    name="fit_checkerboard",
    summary="8 steps of Adam on `checkerboard` with its source's squared error; the loss before each",
    formula="L = mean over pixels of (z − t)²",
    shapes="(1, 2, h, w), (1, 1, h, w) → (8,)",
    source="Effective PyTorch, TorchScript",
    build=partial(Checkerboard, channels=32),
    cases=(Case(name="typical", inputs=_small_board),),
    dtypes="float32",
    differentiable=False,
    fit=partial(_curve, squared_error),
    scripted=partial(scripted_checkerboard, channels=32),
    claims=(
        Claim(
            text="the training of a ScriptModule, 500 steps on 512×512 pixels, takes half the time under autocast",
            source="Effective PyTorch, faster training with mixed precision; the GPU is not named",
            factor=2.0,
            quantity="fit",
            mode="scripted",
            precision="amp_fp16",
            baseline_mode="scripted",
            device="cuda",
            sizes=(512,),
        ),
    ),
)

CROSS_ENTROPY = replace(
    SPEC,
    name="fit_checkerboard_cross_entropy",
    summary="8 steps of Adam on `checkerboard` with a cross entropy, unlike its source; the loss before each",
    formula="L = mean over pixels of −t log σ(z) − (1 − t) log(1 − σ(z))",
    fit=partial(_curve, cross_entropy_of_pixels),
    claims=(),
)
