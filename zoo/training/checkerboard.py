"""Train the network that learns a chess board: `python -m zoo.training.checkerboard --png board.png`.

Adam with learning rate 1e-3 on the binary cross entropy of every pixel. Source: "Effective PyTorch", on TorchScript.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from zoo.case import Case
from zoo.models.checkerboard import Checkerboard, checker, grid, scripted_checkerboard
from zoo.spec import Spec
from zoo.training.step import AUTOCAST, Fit, Step, fit, loss_curve

SQUARES = 8
MODES = ("eager", "scripted", "compiled")


def board(size: int, squares: int = SQUARES) -> tuple[Tensor, Tensor]:
    """Return coordinates (1, 2, size, size) and the target board (1, 1, size, size) of 0 and 1, both float32.

    >>> [tuple(x.shape) for x in board(16)]
    [(1, 2, 16, 16), (1, 1, 16, 16)]
    """
    return grid(size, size).unsqueeze(0), checker(size, size, squares).unsqueeze(0)


def fit_checkerboard(
    model: nn.Module,
    *,
    size: int = 512,
    steps: int = 500,
    precision: str = "fp32",
    progress: Callable[[int, Step], None] | None = None,
) -> Fit:
    """Train a network on the chess board of 8 by 8 squares, on the device of its parameters.

    Args:
        model: a `Checkerboard`, plain, scripted or compiled; it is trained in place.
        size: number of pixels along each side.
        steps: number of steps of Adam, with learning rate 1e-3.
        precision: "fp32", "amp_fp16" or "amp_bf16".
        progress: as in `fit`.

    Raises:
        ValueError: `size` is not a positive multiple of 8, or `train_step` raises it.

    >>> import torch
    >>> from zoo.models.checkerboard import Checkerboard
    >>> fit_checkerboard(Checkerboard(channels=4), size=8, steps=2).losses.shape
    torch.Size([2])
    """
    if size < 1 or size % SQUARES:
        raise ValueError(f"fit_checkerboard: size must be a positive multiple of {SQUARES}, got {size}")
    device = next(model.parameters()).device
    batch = tuple(t.to(device) for t in board(size))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return fit(model, pixel_loss, batch, optimizer, steps=steps, precision=precision, progress=progress)


def pixel_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Compute the mean binary cross entropy of all pixels, in the dtype of the target.

    >>> pixel_loss(torch.zeros(2, dtype=torch.bfloat16), torch.tensor([0.0, 1.0]))
    tensor(0.6931)
    """
    return nn.functional.binary_cross_entropy_with_logits(logits.to(target.dtype), target)


def save_picture(path: Path, model: nn.Module, size: int) -> None:
    """Write a PNG with the model's board on the left and the target on the right, each `size` pixels wide.

    Raises:
        ImportError: Pillow is missing; the message names the extra to install.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     picture = Path(folder, "board.png")
    ...     save_picture(picture, Checkerboard(channels=4), size=16)
    ...     picture.read_bytes()[1:4]
    b'PNG'
    """
    try:
        from PIL import Image  # noqa: PLC0415 -- an optional dependency
    except ImportError as problem:
        raise ImportError("save_picture needs Pillow: pip install 'torch-conformance[images]'") from problem
    device = next(model.parameters()).device
    coordinates, target = (t.to(device) for t in board(size))
    with torch.no_grad():
        pair = torch.cat((model(coordinates).sigmoid(), target), dim=3)[0, 0]
    pixels = (pair * 255).round().to(torch.uint8).cpu().contiguous()
    Image.frombytes("L", (2 * size, size), bytes(pixels.flatten().tolist())).save(path)


def main(arguments: list[str] | None = None) -> None:
    """Train from the command line; print the progress, the final loss, the skipped steps and the seconds.

    >>> main(["--size", "8", "--steps", "1"])  # doctest: +ELLIPSIS
    loss 0..., 0 steps skipped, ... s
    """
    parser = argparse.ArgumentParser(prog="python -m zoo.training.checkerboard", description="Learn a chess board.")
    parser.add_argument("--size", type=int, default=512, help="pixels along each side (default: 512)")
    parser.add_argument("--steps", type=int, default=500, help="steps of Adam (default: 500)")
    parser.add_argument("--mode", choices=MODES, default="eager")
    parser.add_argument("--precision", choices=AUTOCAST, default="fp32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--png", type=Path, help="write the board beside the target to this file")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    model = (scripted_checkerboard() if options.mode == "scripted" else Checkerboard()).to(options.device)
    if options.mode == "compiled":
        model.compile()

    def progress(number: int, step: Step) -> None:
        if sys.stderr.isatty() or number % 50 == 0:
            end = "\r" if sys.stderr.isatty() else "\n"
            sys.stderr.write(f"step {number}/{options.steps}  loss {float(step.loss):.4f}{end}")

    done = fit_checkerboard(
        model, size=options.size, steps=options.steps, precision=options.precision, progress=progress
    )
    print(f"loss {float(done.losses[-1]):.4f}, {done.skipped} steps skipped, {done.seconds:.1f} s")  # noqa: T201
    if options.png:
        save_picture(options.png, model, options.size)


def _curve(call: Callable[..., Tensor], model: nn.Module, precision: str, x: Tensor, target: Tensor) -> Tensor:
    """Return the loss before each of 8 steps, at a rate that is high enough to learn a small board in them."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return loss_curve(call, pixel_loss, (x, target), optimizer, precision, steps=8)


def _small_board(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    coordinates, target = board(8, 2)
    return coordinates + torch.rand(coordinates.shape, generator=generator) / 64, target


SPEC = Spec(
    name="fit_checkerboard",
    summary="8 steps of Adam on `checkerboard`; the loss before each",
    formula="L = mean over pixels of −t log σ(z) − (1 − t) log(1 − σ(z))",
    shapes="(1, 2, h, w), (1, 1, h, w) → (8,)",
    source="Effective PyTorch, TorchScript",
    build=partial(Checkerboard, channels=16),
    cases=(Case(name="typical", inputs=_small_board),),
    dtypes="float32",
    differentiable=False,
    fit=_curve,
    scripted=partial(scripted_checkerboard, channels=16),
)

if __name__ == "__main__":
    main()
