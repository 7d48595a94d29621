"""Child process: times how long a mode takes to its first output and its first gradient."""

import gc
import time

import torch

from conformance.cell.session import CellSession, open_task
from conformance.evaluate import containers, evaluation, inputs
from conformance.evaluate.evaluation import Question
from conformance.process import environment
from conformance.process.child_side import ChildProcess
from conformance.records.measurements import CompileRun
from conformance.records.tasks import CompileTask


def observe(task: CompileTask, process: ChildProcess) -> CompileRun:
    """Make a cell's callable and call it once, with the compile cache of the task.

    The fork server has already imported what torch imports at the first compile of a process, so that is not counted.
    """
    environment.use_cache(task.cache)
    with process.shared(), process.phase("prepare"):
        session = open_task(task.cell, process)
        question = session.question(session.spec.cases[0], session.build())
    with process.alone(), process.phase("compile"):
        return _first_results(session, question)


def _first_results(session: CellSession, question: Question) -> CompileRun:
    gc.collect()
    started = time.perf_counter()
    made = session.prepare()
    leaves = [t for t in evaluation.leaves_of(made.parameters_of, question).values() if t.requires_grad]
    with evaluation.autocast(question):
        returned = inputs.invoke(made.call, question.call)
    _finish(session.cell.device)
    first_output = time.perf_counter() - started
    named = dict(containers.leaves_of(returned, "output"))
    roots = {n: t for n, t in named.items() if isinstance(t, torch.Tensor) and t.requires_grad}
    first_gradient = None
    if roots and leaves:
        cotangents = [inputs.cotangent(n, t, question.seed) for n, t in roots.items()]
        torch.autograd.grad(list(roots.values()), leaves, cotangents, allow_unused=True)
        _finish(session.cell.device)
        first_gradient = time.perf_counter() - started
    return CompileRun(first_output, first_gradient, made.proof().get("cache", ""))


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
