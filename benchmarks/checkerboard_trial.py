"""What a process of the checkerboard study does: one whole training, or two trainings step against step."""

from __future__ import annotations

import importlib
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler

from conformance.cell import tf32
from conformance.measure import timing
from conformance.axes import PRECISIONS, Precision
from conformance.cell.observe import set_policy
from zoo.memory import peak_bytes
from zoo.models.checkerboard import Checkerboard, scripted_checkerboard
from zoo.training.checkerboard import board, fit_checkerboard, pixel_loss
from zoo.training.step import Step, train_step

BASELINE = ("eager", "fp32")
FIRST_STEPS = 3  # compilation falls into the first, TorchScript optimises during all of them
RATIO_SECONDS = 10.0  # of timed steps for each side of a ratio


def train(task: dict[str, Any], enter_phase: Callable[[str], None]) -> dict[str, Any]:
    """Train once: task["steps"] steps on task["size"]² pixels in task["mode"] and task["precision"].

    Returns: "first" and "rest", the seconds of the first steps and of the others; "loss" before the last step;
        "skipped" steps; "peak" bytes, on CUDA of everything allocated, on the CPU of what a step adds; and
        "flops", the floating-point operations of a step.

    Raises:
        FloatingPointError: the loss ended as infinity or NaN.
    """
    precision, device = PRECISIONS[task["precision"]], task["device"]
    set_policy(precision)
    with tempfile.TemporaryDirectory(prefix="checkerboard-", ignore_cleanup_errors=True) as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache  # nothing is compiled yet
        enter_phase("build")
        model = _network(task["mode"], device)
        marks: list[float] = []

        def mark(number: int, _: Step) -> None:
            if number == FIRST_STEPS:
                _finish(device)
                marks.append(time.perf_counter())

        enter_phase("train")
        started = time.perf_counter()
        done = fit_checkerboard(
            model, size=task["size"], steps=task["steps"], precision=precision.for_training, progress=mark
        )
        _finish(device)
        ended = time.perf_counter()
        enter_phase("look back")
        loss = float(done.losses[-1])
        if not abs(loss) < float("inf"):
            raise FloatingPointError(f"the loss ended as {loss}")
        peak = torch.cuda.max_memory_allocated() if device == "cuda" else peak_bytes(_step(model, task))["cpu"]
        return {
            "first": marks[0] - started,
            "rest": ended - marks[0],
            "loss": loss,
            "skipped": done.skipped,
            "peak": peak,
            "flops": step_flops(model, task["size"]),
            **tf32.prove(precision, device),
        }


def compare(task: dict[str, Any], enter_phase: Callable[[str], None]) -> dict[str, Any]:
    """Time single steps in rounds, each of one eager step in float32 and one in task["mode"] and task["precision"].

    Returns: "ratio", how many times faster than the eager one that is, and the medians of their steps, "seconds" and
        "eager_seconds"; or the "reason" why there is no figure.
    """
    set_policy()
    device = task["device"]
    enter_phase("warm up")
    clock = timing.clock_for(device)
    names = [BASELINE, (task["mode"], task["precision"])]
    contestants = [_contestant({**task, "mode": mode, "precision": precision}) for mode, precision in names]
    baseline, variant = (contestant.name for contestant in contestants)
    try:
        for contestant in contestants:
            timing.warm_up(contestant, clock)
        enter_phase("measure")
        rounds = timing.measure(contestants, clock, seed=0, budget=RATIO_SECONDS)
        ratio = rounds.ratio(baseline, variant)
    except timing.NotMeasuredError as problem:
        return {"reason": str(problem)}
    return {"ratio": ratio.to_json(), "seconds": rounds.seconds(variant), "eager_seconds": rounds.seconds(baseline)}


def step_flops(model: nn.Module, size: int) -> int:
    """Floating-point operations of the convolutions in a training step on size² pixels.

    Each layer has three products of one size: the output, and the gradients of weight and input; of the
    coordinates nobody asks a gradient.
    """
    weights = [p.numel() for p in model.parameters() if p.dim() == 4]
    return 2 * size * size * (3 * sum(weights) - weights[0])


def _contestant(task: dict[str, Any]) -> timing.Contestant:
    precision = PRECISIONS[task["precision"]]
    step = _step(_network(task["mode"], task["device"]), task)
    return timing.Contestant(f"{task['mode']} {precision.name}", step, before=partial(tf32.switch, precision))


def _network(mode: str, device: str) -> nn.Module:
    torch.manual_seed(0)
    model = (scripted_checkerboard() if mode == "scripted" else Checkerboard()).to(device)
    if mode == "compiled":
        importlib.import_module("torch._inductor.compile_fx")  # so that the first step need not
        model.compile()
    return model


def _step(model: nn.Module, task: dict[str, Any]) -> Callable[[], Step]:
    precision: Precision = PRECISIONS[task["precision"]]
    batch = tuple(t.to(task["device"]) for t in board(task["size"]))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = GradScaler(task["device"], enabled=precision.autocast == "float16")
    return partial(train_step, model, pixel_loss, batch, optimizer, precision.for_training, scaler)


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
