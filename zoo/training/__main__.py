"""Trains the network that learns a chess board: `python -m zoo.training --png board.png`."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import torch
from tabulate import tabulate

from zoo.amp import AUTOCAST
from zoo.models.checkerboard import checker
from zoo.training.checkerboard import MODES, SQUARES, drawn_by, fit_checkerboard, network, save_picture
from zoo.training.step import Step


def main(arguments: list[str] | None = None) -> None:
    """Train from the command line in each precision; print the final losses, the skipped steps and the seconds.

    >>> main(["--size", "8", "--steps", "1", "--precision", "fp32"])  # doctest: +ELLIPSIS
    precision    loss    skipped    seconds
    -----------  ...
    fp32         ...
    """
    parser = argparse.ArgumentParser(prog="python -m zoo.training", description="Learn a chess board.")
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
    if options.checkpoints:
        options.checkpoints.mkdir(parents=True, exist_ok=True)
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
    print(tabulate(rows, ["precision", "loss", "skipped", "seconds"], disable_numparse=True))  # noqa: T201
    if options.png:
        save_picture(options.png, *boards, checker(options.size, options.size, SQUARES)[0])


def _report(precision: str, steps: int, number: int, step: Step) -> None:
    if sys.stderr.isatty() or number % 50 == 0:
        end = "\r" if sys.stderr.isatty() else "\n"
        sys.stderr.write(f"{precision} step {number}/{steps}  loss {float(step.loss):.4f}{end}")


if __name__ == "__main__":
    main()
