"""Child process: counts what a cell costs in bytes and operations, or times how long its first results take.

A repeated count gives the same.
"""

import gc
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from conformance.axes import Prepared
from conformance.cell.session import CellSession, open_task
from conformance.errors import name_of
from conformance.evaluate import containers, custom_ops, error_text, evaluation, inputs
from conformance.process import child_side, environment
from conformance.records.measurements import CompileRun, Footprint, PerPass, Reason
from conformance.records.tasks import CellTask, CompileTask
from zoo import internals
from zoo.memory import kept_bytes, peak_bytes, saved_bytes

OF_MODE = ("saved", "held", "peak", "least_bytes")  # what is counted of the mode's callable; operations, of eager
FIELDS = (*OF_MODE, "flops")
CALLS = 3  # after so many calls, compilation is taken to be finished
NO_GRADIENT = Reason("no gradient is asked for")
NOT_BOTH = Reason("it needs the saved bytes and a backward")


def count(task: CellTask, process: child_side.ChildProcess) -> Footprint:
    """Count what a cell costs on the first draw of its model's first case. Other cells may run at the same time."""
    with process.shared():
        with process.phase("import"):
            session = open_task(task, process)
        with process.phase("count"):
            return _Counts(session).footprint()


def roots_of(returned: Any) -> dict[str, torch.Tensor]:
    """The outputs that take a gradient, by name."""
    named = dict(containers.leaves_of(returned, "output"))
    return {name: t for name, t in named.items() if isinstance(t, torch.Tensor) and t.requires_grad}


class _Subject:
    """A callable on the arguments of one question, run forward, or forward and backward."""

    def __init__(self, made: Prepared, question: evaluation.Question) -> None:
        self.owner, self._call, self._question = made.parameters_of, made.call, question
        leaves = evaluation.leaves_of(self.owner, question)
        self._leaves = [leaf for leaf in leaves.values() if leaf.requires_grad]
        returned = self.forward()
        self.outputs = [leaf for _, leaf in containers.leaves_of(returned)]
        self._cotangents = [inputs.cotangent(n, t, question.seed) for n, t in roots_of(returned).items()]

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (*self._question.call.args, dict(self._question.call.kwargs))

    @property
    def is_differentiable(self) -> bool:
        return bool(self._cotangents and self._leaves)

    def forward(self, *_: Any) -> Any:
        inputs.restore(self._question.call, self._question.pristine)  # in place, so it allocates nothing
        with evaluation.autocast(self._question):
            return inputs.invoke(self._call, self._question.call)

    def both(self) -> tuple[torch.Tensor | None, ...]:
        roots = list(roots_of(self.forward()).values())
        return torch.autograd.grad(roots, self._leaves, self._cotangents, allow_unused=True)

    def accumulate(self) -> None:
        """As `both`, through .grad: the module tracker of torch's flop counter refuses `autograd.grad`."""
        roots = list(roots_of(self.forward()).values())
        torch.autograd.backward(roots, self._cotangents, inputs=self._leaves)
        for leaf in self._leaves:
            leaf.grad = None


class _Owned(torch.nn.Module):
    """The subject's forward as a module that owns its weights, so that `saved_bytes` knows them."""

    def __init__(self, subject: _Subject) -> None:
        super().__init__()
        self.owner = subject.owner
        self.forward = subject.forward


class _Counts:
    """The counts of one cell by name, and the reasons for those that cannot be taken."""

    def __init__(self, session: CellSession) -> None:
        self._session = session
        self._found: dict[str, int] = {}
        self._why: dict[str, Reason] = {}

    def footprint(self) -> Footprint:
        """Count everything that can be counted."""
        if self._session.spec.fit is not None:
            self._refuse(FIELDS, Reason("a training, which is many calls and no single one"))
        else:
            self._try(FIELDS, self._count)
        found = self._found
        flops, moved = (PerPass(found.get(f"{n}.forward"), found.get(f"{n}.both")) for n in ("flops", "least_bytes"))
        return Footprint(found.get("saved"), found.get("held"), found.get("peak"), flops, moved, self._why)

    def _refuse(self, names: Iterable[str], reason: Reason) -> None:
        self._why |= dict.fromkeys(names, reason)

    def _try(self, names: Iterable[str], count: Callable[[], None]) -> None:
        """Take counts; if that raises, it is the reason for all of them."""
        try:
            count()
        except BaseException as problem:  # noqa: BLE001 -- the model and the mode may raise anything
            self._refuse(names, Reason(name_of(problem), error_text.one_line(problem)))

    def _note(
        self, name: str, count: Callable[[], int], *, wanted: bool = True, otherwise: Reason = NO_GRADIENT
    ) -> None:
        """Take one count, or give the reason why it is not wanted."""
        if wanted:
            self._try((name,), lambda: self._found.update({name: count()}))
        else:
            self._refuse((name,), otherwise)

    def _count(self) -> None:
        model = self._session.build()
        eager = self._on_question(Prepared(model, dict, model), model)
        self._note("flops.forward", lambda: _flops(eager.forward))
        self._note("flops.both", lambda: _flops(eager.accumulate), wanted=eager.is_differentiable)
        self._try(OF_MODE, lambda: self._count_memory(self._subject()))

    def _on_question(self, made: Prepared, model: Any) -> _Subject:
        return _Subject(made, self._session.question(self._session.spec.cases[0], model))

    def _subject(self) -> _Subject:
        """The cell's callable, called until it no longer compiles."""
        session = self._session
        made = session.prepare()
        subject = self._on_question(made, session.build())
        for _ in range(CALLS - 1 if session.mode.compiles else 0):  # `_Subject` has already made one
            subject.forward()
        for _ in range(session.mode.warm_calls):
            subject.both() if subject.is_differentiable else subject.forward()
        return subject

    def _count_memory(self, subject: _Subject) -> None:
        found, device, backward = self._found, self._session.cell.device, subject.is_differentiable
        self._note("held", lambda: kept_bytes(subject.forward)[device])
        self._note("peak", lambda: peak_bytes(subject.both)[device], wanted=backward)
        # after the peak, since its hooks change how compiled code unpacks what it saved
        self._note("saved", lambda: saved_bytes(_Owned(subject), *subject.arguments).saved, wanted=backward)
        self._note("least_bytes.forward", lambda: least_bytes(*_read_and_written(subject)))
        both = {"held", "saved", "peak", "least_bytes.forward"} <= found.keys()
        self._note("least_bytes.both", lambda: self._least_of_both(subject), wanted=both, otherwise=NOT_BOTH)

    def _least_of_both(self, subject: _Subject) -> int:
        moved, gradients = _read_and_written(subject), _tensors(subject.both())
        return least_bytes(*moved, gradients, saved=self._found["saved"], held=self._found["held"])


def least_bytes(
    read: Iterable[torch.Tensor],
    written: Iterable[torch.Tensor],
    gradients: Iterable[torch.Tensor] = (),
    *,
    saved: int = 0,
    held: int = 0,
) -> int:
    """The fewest bytes that a call must move, if it reads all of its inputs and keeps nothing else in memory.

    An output that is also an input counts once. Backward writes gradients and reads the saved bytes; those of them that
    are held are no part of an output, so they were written for backward alone.
    """
    return _bytes_touched([*read, *written]) + _bytes_touched(gradients) + saved + min(saved, held)


def _bytes_touched(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the elements, at most the size of each storage: views overlap, and expanded tensors repeat elements."""
    touched: dict[int, int] = {}
    for tensor in {id(t): t for t in tensors}.values():
        storage = tensor.untyped_storage()
        key = internals.identity_of(storage)  # also of an empty one
        touched[key] = min(storage.nbytes(), touched.get(key, 0) + tensor.numel() * tensor.element_size())
    return sum(touched.values())


def _read_and_written(subject: _Subject) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors that a call reads, and those that it writes."""
    weights = list(subject.owner.parameters()) if isinstance(subject.owner, torch.nn.Module) else []
    return [*_tensors(subject.arguments), *weights], _tensors(subject.outputs)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in internals.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _flops(call: Callable[[], Any]) -> int:
    counter = FlopCounterMode(display=False)
    with counter, custom_ops.OpMode():
        call()
    return int(counter.get_total_flops())


def time_compilation(task: CompileTask, process: child_side.ChildProcess) -> CompileRun:
    """Make a cell's callable and call it once, with the compile cache of the task.

    The fork server has already imported what torch imports at the first compile of a process, so that is not counted.
    """
    environment.use_cache(task.cache)
    with process.shared(), process.phase("prepare"):
        session = open_task(task.cell, process)
        question = session.question(session.spec.cases[0], session.build())
    with process.alone(), process.phase("compile"):
        return _first_results(session, question)


def _first_results(session: CellSession, question: evaluation.Question) -> CompileRun:
    gc.collect()
    started = time.perf_counter()
    made = session.prepare()
    leaves = [t for t in evaluation.leaves_of(made.parameters_of, question).values() if t.requires_grad]
    with evaluation.autocast(question):
        returned = inputs.invoke(made.call, question.call)
    _finish(session.cell.device)
    first_output = time.perf_counter() - started
    roots = roots_of(returned)
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
