"""Child process of the checkerboard study: one whole training, or the steps of two trainings side by side."""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.amp import GradScaler

from benchmarks.tasks import Comparison, Training, TrainingTask
from conformance.axes import PRECISIONS
from conformance.cell import policy
from conformance.cell.policy import set_policy
from conformance.errors import NotMeasuredError
from conformance.figures import meter
from conformance.figures.meter import TimedCall
from conformance.measure.side_by_side import clock_for
from conformance.process import environment
from conformance.process.child_side import ChildProcess
from conformance.records.measurements import Reason
from zoo.memory import peak_bytes
from zoo.training import checkerboard
from zoo.training.checkerboard import board, fit_checkerboard
from zoo.training.step import Step, squared_error, train_step

BASELINE = ("eager", "fp32")
FIRST_STEPS = 3  # compilation falls into the first, TorchScript optimises during all of them
RATIO_SECONDS = {"cpu": 10.0, "cuda": 2.0}  # of timed steps for each side of a ratio


def train(task: TrainingTask, process: ChildProcess) -> Training:
    """Train once, alone on the machine, with an empty compile cache.

    Raises:
        FloatingPointError: the loss ended as infinity or NaN.
    """
    precision, device = PRECISIONS[task.precision], task.device
    set_policy(precision)
    with process.alone(), tempfile.TemporaryDirectory(prefix="checkerboard-", ignore_cleanup_errors=True) as cache:
        environment.use_cache(cache)
        process.enter("build")
        model = network(task.mode, device)
        marks: list[float] = []

        def mark(number: int, _: Step) -> None:
            if number == FIRST_STEPS:
                _finish(device)
                marks.append(time.perf_counter())

        process.enter("train")
        started = time.perf_counter()
        done = fit_checkerboard(
            model, size=task.size, steps=task.steps, precision=precision.for_training, progress=mark
        )
        _finish(device)
        ended = time.perf_counter()
        process.enter("look back")
        loss = float(done.losses[-1])
        if not abs(loss) < float("inf"):
            raise FloatingPointError(f"the loss ended as {loss}")
        if task.picture:
            drawn, (_, target) = checkerboard.drawn_by(model, task.size), board(task.size)
            checkerboard.save_picture(Path(task.picture), drawn, target[0, 0])
        return Training(
            first=marks[0] - started,
            rest=ended - marks[0],
            loss=loss,
            skipped=done.skipped,
            peak=_peak(model, task),
            flops=step_flops(model, task.size),
            tf32=policy.prove_tf32(precision, device).get("tf32", ""),
        )


def _peak(model: nn.Module, task: TrainingTask) -> int:
    if task.device == "cuda":
        return torch.cuda.max_memory_allocated()
    return peak_bytes(training_step(model, task))["cpu"]


def compare(task: TrainingTask, process: ChildProcess) -> Comparison:
    """Time single steps in rounds, alone on the machine: an eager step in float32 and a step of the task in each."""
    set_policy()
    with process.alone():
        process.enter("warm up")
        clock = clock_for(task.device)
        mode, precision = BASELINE
        calls = [_timed_step(t) for t in (replace(task, mode=mode, precision=precision), task)]
        baseline, variant = (call.name for call in calls)
        try:
            for call in calls:
                meter.warm_up(call, clock)
            process.enter("measure")
            rounds = meter.measure(calls, clock, seed=0, budget=RATIO_SECONDS[task.device])
            ratio = rounds.ratio(baseline, variant)
        except NotMeasuredError as problem:
            return Comparison(reason=Reason(problem.short, problem.detail))
    return Comparison(ratio, rounds.seconds(variant), rounds.seconds(baseline))


def step_flops(model: nn.Module, size: int) -> int:
    """Floating-point operations of the convolutions in a training step on size² pixels.

    Each layer has three products of one size: the output, and the gradients of weight and input. The coordinates need
    no gradient.
    """
    weights = [p.numel() for p in model.parameters() if p.dim() == 4]
    return 2 * size * size * (3 * sum(weights) - weights[0])


def _timed_step(task: TrainingTask) -> TimedCall:
    precision = PRECISIONS[task.precision]
    step = training_step(network(task.mode, task.device), task)
    return TimedCall(f"{task.mode} {precision.name}", step, before=partial(policy.switch_tf32, precision))


def network(mode: str, device: str) -> nn.Module:
    """The network in a mode, with the same weights in every mode."""
    torch.manual_seed(0)
    if mode == "compiled":
        importlib.import_module("torch._inductor.compile_fx")  # so that the first step does not import it
    return checkerboard.network(mode).to(device)


def training_step(model: nn.Module, task: TrainingTask) -> Callable[[], Step]:
    """A function that does one step of the training."""
    precision = PRECISIONS[task.precision]
    batch = tuple(t.to(task.device) for t in board(task.size))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = GradScaler(task.device, enabled=precision.autocast == "float16")
    return partial(train_step, model, squared_error, batch, optimizer, precision.for_training, scaler)


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
