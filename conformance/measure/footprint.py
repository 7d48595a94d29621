"""Child process: counts what a cell costs in bytes, operations and graphs. A repeated count gives the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from conformance.axes import Prepared
from conformance.cell.session import CellSession, open_task
from conformance.evaluate import containers, evaluation, inputs
from conformance.evaluate.custom_ops import OpMode
from conformance.evaluate.error_text import one_line
from conformance.evaluate.evaluation import Question
from conformance.one_line import name_of
from conformance.process.child_side import ChildProcess
from conformance.records.measurements import Footprint, PerPass, Reason
from conformance.records.tasks import CellTask
from zoo import internals
from zoo.memory import kept_bytes, peak_bytes, saved_bytes

MEMORY = ("saved", "held", "peak_forward", "peak")
GRAPHS = ("graphs", "graph_breaks", "recompiles")
FIELDS = (*MEMORY, "flops", "least_bytes", *GRAPHS, "aten_calls")
CALLS = 3  # after so many calls, compilation is taken to be finished
NO_GRADIENT = Reason("no gradient is asked for")


def observe(task: CellTask, process: ChildProcess) -> Footprint:
    """Count what a cell costs on the first draw of its model's first case. Other cells may run at the same time."""
    with process.shared():
        with process.phase("import"):
            session = open_task(task, process)
        with process.phase("count"):
            return _Counts(session).footprint()


class _Subject:
    """A callable on the arguments of one question, run forward, or forward and backward."""

    def __init__(self, made: Prepared, question: Question) -> None:
        self.owner, self._call, self._question = made.parameters_of, made.call, question
        leaves = evaluation.leaves_of(self.owner, question)
        self._leaves = [leaf for leaf in leaves.values() if leaf.requires_grad]
        self.outputs = dict(containers.leaves_of(self.forward(), "output"))
        self._cotangents = {n: inputs.cotangent(n, t, question.seed) for n, t in self._roots(self.outputs).items()}

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (*self._question.call.args, dict(self._question.call.kwargs))

    @property
    def is_differentiable(self) -> bool:
        return bool(self._cotangents and self._leaves)

    def restore(self) -> None:
        """Undo what a call did to its arguments; in place, so it allocates nothing."""
        inputs.restore(self._question.call, self._question.pristine)

    def forward(self, *_: Any) -> Any:
        self.restore()
        return self.call()

    def call(self) -> Any:
        with evaluation.autocast(self._question):
            return inputs.called(self._call, self._question.call)

    def both(self) -> tuple[torch.Tensor | None, ...]:
        roots = self._roots(dict(containers.leaves_of(self.forward(), "output")))
        return torch.autograd.grad(
            list(roots.values()), self._leaves, list(self._cotangents.values()), allow_unused=True
        )

    def accumulate(self) -> None:
        """As `both`, through .grad: the module tracker of torch's flop counter refuses `autograd.grad`."""
        roots = self._roots(dict(containers.leaves_of(self.forward(), "output")))
        torch.autograd.backward(list(roots.values()), list(self._cotangents.values()), inputs=self._leaves)
        for leaf in self._leaves:
            leaf.grad = None

    @staticmethod
    def _roots(outputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {name: t for name, t in outputs.items() if isinstance(t, torch.Tensor) and t.requires_grad}


class _Owned(torch.nn.Module):
    """The subject's forward as a module that owns its weights, so that `saved_bytes` knows them."""

    def __init__(self, subject: _Subject) -> None:
        super().__init__()
        self.owner = subject.owner
        self.forward = subject.forward


class _Counts:
    """The counts of one cell, and the reasons for those that cannot be taken."""

    def __init__(self, session: CellSession) -> None:
        self._session = session
        self._found: dict[str, Any] = {}
        self._why: dict[str, Reason] = {}

    def footprint(self) -> Footprint:
        """Count everything that can be counted."""
        if self._session.spec.fit is not None:
            self._refuse(FIELDS, Reason("a training, which is many calls and no single one"))
        else:
            eager = self._try(FIELDS, self._eager)
            if eager is not None:
                self._count_work(eager)
                subject = self._try((*MEMORY, *GRAPHS, "least_bytes"), self._subject)
                if subject is not None:
                    self._count_memory(subject)
        return Footprint(**self._found, why=self._why)

    def _refuse(self, fields: Iterable[str], reason: Reason) -> None:
        self._why |= dict.fromkeys(fields, reason)

    def _try(self, fields: tuple[str, ...], count: Callable[[], Any]) -> Any:
        """What `count` returns; if it raises, None, and the fields get the reason."""
        try:
            return count()
        except BaseException as problem:  # noqa: BLE001 -- the model and the mode may raise anything
            self._refuse(fields, Reason(name_of(problem), one_line(problem)))
            return None

    def _note(self, field: str, count: Callable[[], Any]) -> None:
        self._found[field] = self._try((field,), count)

    def _eager(self) -> _Subject:
        model = self._session.build()
        return self._on_question(Prepared(model, dict, model), model)

    def _on_question(self, made: Prepared, model: Any) -> _Subject:
        return _Subject(made, self._session.question(self._session.spec.cases[0], model))

    def _subject(self) -> _Subject:
        """The cell's callable, called until it no longer compiles. Its graphs are counted during these calls."""
        session = self._session
        made = session.prepare()
        subject = self._on_question(made, session.build())
        if session.mode.compiles and not session.mode.forward_only:
            self._count_graphs(subject)
        else:
            self._refuse(GRAPHS, Reason("only a mode that calls torch.compile has graphs"))
        for _ in range(session.mode.warm_calls):
            subject.both() if subject.is_differentiable else subject.forward()
        return subject

    def _count_graphs(self, subject: _Subject) -> None:
        counters = internals.dynamo_counters

        compiled = counters["frames"]["total"]
        for _ in range(CALLS - 1):  # `_Subject` has already made one
            subject.forward()
        self._found["graphs"] = counters["stats"]["unique_graphs"]
        self._found["graph_breaks"] = sum(counters["graph_break"].values())
        self._found["recompiles"] = counters["frames"]["total"] - compiled

    def _count_work(self, eager: _Subject) -> None:
        self._note("aten_calls", lambda: _operators(eager))
        forward, both = self._try(("flops.forward",), lambda: _flops(eager.forward)), None
        if eager.is_differentiable:
            both = self._try(("flops.both",), lambda: _flops(eager.accumulate))
        else:
            self._refuse(("flops.both",), NO_GRADIENT)
        self._found["flops"] = PerPass(forward, both)

    def _count_memory(self, subject: _Subject) -> None:
        found, device = self._found, self._session.cell.device
        self._note("held", lambda: kept_bytes(subject.forward)[device])
        self._note("peak_forward", lambda: peak_bytes(subject.forward)[device])
        if subject.is_differentiable:
            self._note("peak", lambda: peak_bytes(subject.both)[device])
            # last, since its hooks change how compiled code unpacks what it saved
            self._note("saved", lambda: saved_bytes(_Owned(subject), *subject.arguments).saved)
        else:
            self._refuse(("saved", "peak"), NO_GRADIENT)
        least = self._try(("least_bytes",), lambda: least_bytes(*_read_and_written(subject)))
        both = None
        if least is not None and None not in (found["held"], found.get("saved"), found.get("peak")):
            moved, gradients = _read_and_written(subject), _tensors(subject.both())
            both = least_bytes(*moved, gradients, saved=found["saved"], held=found["held"])
        else:
            self._refuse(("least_bytes.both",), Reason("it needs the saved bytes and a backward"))
        self._found["least_bytes"] = PerPass(least, both)


def least_bytes(
    read: Iterable[torch.Tensor],
    written: Iterable[torch.Tensor],
    gradients: Iterable[torch.Tensor] = (),
    *,
    saved: int = 0,
    held: int = 0,
) -> int:
    """The fewest bytes that a call must move, if it reads all of its inputs and keeps nothing else in memory.

    Args:
        read: inputs and parameters.
        written: outputs; one that is also an input counts once.
        gradients: the gradients that backward writes.
        saved: bytes saved for backward, which reads them.
        held: bytes of these that are not part of an output, so that they were written for backward alone.
    """
    return _bytes_touched([*read, *written]) + _bytes_touched(gradients) + saved + min(saved, held)


def _bytes_touched(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the elements, at most the size of each storage: views overlap, and expanded tensors repeat elements."""
    touched: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for tensor in {id(t): t for t in tensors}.values():
        storage = tensor.untyped_storage()
        key = internals.identity_of(storage)  # also of an empty one
        sizes[key] = storage.nbytes()
        touched[key] = min(sizes[key], touched.get(key, 0) + tensor.numel() * tensor.element_size())
    return sum(touched.values())


def _read_and_written(subject: _Subject) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors that a call reads, and those that it writes."""
    weights = list(subject.owner.parameters()) if isinstance(subject.owner, torch.nn.Module) else []
    return [*_tensors(subject.arguments), *weights], _tensors(subject.outputs)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in internals.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _flops(call: Callable[[], Any]) -> int:
    counter = FlopCounterMode(display=False)
    with counter, OpMode():
        call()
    return int(counter.get_total_flops())


class _Calls(internals.TorchDispatchMode):  # type: ignore[misc]
    """Counts dispatched operators. An operator written in Python counts once."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def _operators(eager: _Subject) -> int:
    calls = _Calls()
    eager.restore()
    with calls:
        eager.call()
    return calls.count
