"""What a mode costs before it is of use: seconds to the first output and to the first gradient."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from conformance import evaluation, inputs, isolation, machine, modes
from conformance.axes import PRECISIONS
from conformance.cell import Phases, Run, set_policy
from conformance.records import Cell
from conformance.reference import ANY_DRAW
from conformance.sources import Home


def observe(task: dict[str, Any], enter_phase: Callable[[str], None]) -> dict[str, Any]:
    """Child process: make task["cell"]'s callable and call it once, with the compile cache in task["cache"].

    What torch imports at the first compile of a process is imported before, and not part of it.

    Returns: "first_output" and "first_gradient" in seconds from the start, the second null where there is none,
        and "cache": "hit", "miss" or "off", and "" where nothing is compiled.
    """
    clock = Phases(enter_phase)
    enter_phase(isolation.WAITING)
    with machine.shared(), clock.phase("prepare"):
        set_policy(PRECISIONS[task["cell"]["precision"]])
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = task["cache"]
        for home in task["homes"]:
            Home(**home).load()
        spec = Home(**task["home"]).spec(task["cell"]["model"])
        run = Run(spec, Cell(**task["cell"]), task["seed"], clock)
        question = run.question(spec.cases[0], ANY_DRAW, run.build())
    enter_phase(isolation.WAITING)
    with machine.alone(), clock.phase("compile"):
        gc.collect()
        started = time.perf_counter()
        made = modes.prepare(run.mode, spec, run.build)
        leaves = [t for t in evaluation.leaves_of(made.parameters_of, question).values() if t.requires_grad]
        with evaluation.autocast(question):
            returned = made.call(*question.call.args, **question.call.kwargs)
        _finish(run.cell.device)
        first_output = time.perf_counter() - started
        named = inputs.named_leaves(returned, "output")
        roots = {n: t for n, t in named.items() if isinstance(t, torch.Tensor) and t.requires_grad}
        first_gradient = None
        if roots and leaves:
            cotangents = [inputs.cotangent(n, t, question.seed) for n, t in roots.items()]
            torch.autograd.grad(list(roots.values()), leaves, cotangents, allow_unused=True)
            _finish(run.cell.device)
            first_gradient = time.perf_counter() - started
    cache = made.proof().get("cache", "")
    return {"first_output": first_output, "first_gradient": first_gradient, "cache": cache}


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
