"""Train the network that learns a chess board: `python -m zoo.training.checkerboard --png board.png`.

Adam with learning rate 1e-3 on the mean squared error of every pixel, 500 steps, 512 by 512 pixels, in float32 and then
under autocast with a scaler. Source: "Effective PyTorch", on TorchScript. The binary cross entropy of the pixels is
another loss, which the source does not have: it takes the outputs for logits.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from zoo.amp import AUTOCAST
from zoo.arguments import want_sizes, want_tensors
from zoo.case import Case
from zoo.models.checkerboard import Checkerboard, checker, grid, scripted_checkerboard
from zoo.spec import Spec
from zoo.training.epochs import train
from zoo.training.step import Fit, Step, loss_curve, squared_error

SQUARES = 8
MODES = ("eager", "scripted", "compiled")


def board(size: int, squares: int = SQUARES) -> tuple[Tensor, Tensor]:
    """Return coordinates (1, 2, size, size) and the target board (1, 1, size, size) of 0 and 1, both float32.

    >>> [tuple(x.shape) for x in board(16)]
    [(1, 2, 16, 16), (1, 1, 16, 16)]
    """
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
    if not isinstance(model, nn.Module):
        raise TypeError(f"fit_checkerboard: model must be a module, got {type(model).__name__}")
    want_sizes("fit_checkerboard", size=size, steps=steps)
    if size % SQUARES:
        raise ValueError(f"fit_checkerboard: size must be a multiple of {SQUARES}, got {size}")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return train(
        model,
        loss_fn,
        [board(size)],
        optimizer,
        epochs=steps,
        precision=precision,
        checkpoint=checkpoint,
        progress=progress,
    )


def cross_entropy_of_pixels(logits: Tensor, target: Tensor) -> Tensor:
    """Compute the mean binary cross entropy of all pixels, in the dtype of the target.

    >>> cross_entropy_of_pixels(torch.zeros(2, dtype=torch.bfloat16), torch.tensor([0.0, 1.0]))
    tensor(0.6931)
    """
    return nn.functional.binary_cross_entropy_with_logits(logits.to(target.dtype), target)


def drawn_by(model: nn.Module, size: int) -> Tensor:
    """Return the board (size, size) that a network draws, float32 on the CPU, clamped to [0, 1].

    A network in training mode uses the statistics of this board. Its running statistics stay as they were.

    >>> drawn_by(Checkerboard(channels=4), 16).shape
    torch.Size([16, 16])
    """
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
        TypeError: a board is no tensor.
        ImportError: Pillow is missing; the message names the extra to install.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     picture = Path(folder, "board.png")
    ...     save_picture(picture, drawn_by(Checkerboard(channels=4), 16), checker(16, 16, 8)[0])
    ...     picture.read_bytes()[1:4]
    b'PNG'
    """
    want_tensors("save_picture", **{f"board {number}": one for number, one in enumerate(boards, 1)})
    try:
        from PIL import Image  # noqa: PLC0415 -- an optional dependency
    except ImportError as problem:
        raise ImportError("save_picture needs Pillow: pip install 'torch-conformance[images]'") from problem
    side_by_side = torch.cat(boards, dim=1)
    height, width = side_by_side.shape
    pixels = (side_by_side * 255).round().to(torch.uint8).contiguous()
    Image.frombytes("L", (width, height), bytes(pixels.flatten().tolist())).save(path)


def network(mode: str = "eager", channels: int = 256) -> nn.Module:
    """Build the network in a mode: "eager", "scripted" or "compiled".

    >>> type(network("scripted", channels=4)).__name__
    'ScriptedCheckerboard'
    """
    model = scripted_checkerboard(channels) if mode == "scripted" else Checkerboard(channels)
    if mode == "compiled":
        model.compile()
    return model


def main(arguments: list[str] | None = None) -> None:
    """Train from the command line in each precision; print the final losses, the skipped steps and the seconds.

    >>> main(["--size", "8", "--steps", "1", "--precision", "fp32"])  # doctest: +ELLIPSIS
    precision    loss    skipped    seconds
    -----------  ...
    fp32         ...
    """
    parser = argparse.ArgumentParser(prog="python -m zoo.training.checkerboard", description="Learn a chess board.")
    parser.add_argument("--size", type=int, default=512, help="pixels along each side (default: 512)")
    parser.add_argument("--steps", type=int, default=500, help="steps of Adam (default: 500)")
    parser.add_argument("--mode", choices=MODES, default="eager")
    parser.add_argument(
        "--precision",
        choices=AUTOCAST,
        action="append",
        help="may be repeated (default: fp32, then amp_fp16)",
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--checkpoints", type=Path, metavar="FOLDER", help="keep every step here, and go on from there")
    parser.add_argument("--png", type=Path, help="write the boards of all precisions, then the target, to this file")
    options = parser.parse_args(arguments)
    precisions, rows, boards = options.precision or ["fp32", "amp_fp16"], [], []
    for precision in precisions:
        torch.manual_seed(0)
        model = network(options.mode).to(options.device)
        done = fit_checkerboard(
            model,
            size=options.size,
            steps=options.steps,
            precision=precision,
            checkpoint=options.checkpoints and options.checkpoints / f"{options.mode}-{precision}.pt",
            progress=partial(_report, precision, options.steps),
        )
        rows.append([precision, f"{float(done.losses[-1]):.4f}", done.skipped, f"{done.seconds:.1f}"])
        boards.append(drawn_by(model, options.size))
    from tabulate import tabulate  # noqa: PLC0415 -- whoever imports the zoo may lack it

    print(tabulate(rows, ["precision", "loss", "skipped", "seconds"], disable_numparse=True))  # noqa: T201
    if options.png:
        save_picture(options.png, *boards, checker(options.size, options.size, SQUARES)[0])


def _report(precision: str, steps: int, number: int, step: Step) -> None:
    if sys.stderr.isatty() or number % 50 == 0:
        end = "\r" if sys.stderr.isatty() else "\n"
        sys.stderr.write(f"{precision} step {number}/{steps}  loss {float(step.loss):.4f}{end}")


def _curve(  # noqa: PLR0913 -- the arguments of a fit, and the loss
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    call: Callable[..., Tensor],
    model: nn.Module,
    precision: str,
    x: Tensor,
    target: Tensor,
) -> Tensor:
    """Return the loss before each of 8 steps, at a rate that is high enough to learn a small board in them."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return loss_curve(call, loss_fn, (x, target), optimizer, precision, steps=8)


def _small_board(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    coordinates, target = board(8, 2)
    return coordinates + torch.rand(coordinates.shape, generator=generator) / 64, target


SPEC = Spec(
    name="fit_checkerboard",
    summary="8 steps of Adam on `checkerboard` with its source's squared error; the loss before each",
    formula="L = mean over pixels of (z − t)²",
    shapes="(1, 2, h, w), (1, 1, h, w) → (8,)",
    source="Effective PyTorch, TorchScript",
    build=partial(Checkerboard, channels=16),
    cases=(Case(name="typical", inputs=_small_board),),
    dtypes="float32",
    differentiable=False,
    fit=partial(_curve, squared_error),
    scripted=partial(scripted_checkerboard, channels=16),
)

CROSS_ENTROPY = replace(
    SPEC,
    name="fit_checkerboard_cross_entropy",
    summary="8 steps of Adam on `checkerboard` with a cross entropy, unlike its source; the loss before each",
    formula="L = mean over pixels of −t log σ(z) − (1 − t) log(1 − σ(z))",
    fit=partial(_curve, cross_entropy_of_pixels),
)

if __name__ == "__main__":
    main()
