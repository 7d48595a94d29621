"""Child process: finds the pass of Inductor, or the op, with which a cell of `conformance explain` goes wrong."""

import contextlib
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch

from conformance.cell import observe
from conformance.cell.places import own_line
from conformance.cell.session import CellSession, open_task
from conformance.evaluate import evaluation, inputs, weights
from conformance.evaluate.custom_ops import OpMode, Unwatched, leaves_of
from conformance.process.child_side import ChildProcess
from conformance.records.explained import Culprit, CulpritTask
from conformance.verdict import judge
from zoo import internals

INDUCTOR = "inductor"
SWITCHES = {  # that torch's bisector tries too, and that are on the ladder or do nothing without torch's own backend
    "inductor_fallback_random", "inductor_emulate_precision_casts", "inductor_layout_optimization",
    "inductor_comprehensive_padding", "cudagraphs",
}  # fmt: skip
Print = tuple[Any, ...]  # of a tensor: see `_print`
WAVES = (1, 2, 3, 5)  # the weights of its sums are sines
LEAST_JUMP = 4.0  # of an error in one op; rounding alone grows less
TINY = 1e-30


def bisect(task: CulpritTask, process: ChildProcess) -> Culprit:
    """Let torch's own bisector leave out passes and lowerings of Inductor until the cell is right.

    Raises:
        MissingError: this torch has no such bisector.
        RuntimeError: the cell is not wrong each time.
    """
    bisector = internals.Bisector
    internals.functorch_config.enable_autograd_cache = False  # it knows nothing of a pass that is left out
    internals.inductor_config.test_configs.bisect_keep_custom_backend_for_inductor = True  # it counts runs of graphs

    def is_right() -> bool:
        if bisector.get_backend() != INDUCTOR:
            return True  # as the ladder has shown
        if bisector.get_subsystem() in SWITCHES:
            return False
        torch.compiler.reset()
        return judge(task.cell.cell.id, observe.observe(task.cell, process)).status not in task.shown

    found = bisector.do_bisect(is_right)
    if found is None:
        return Culprit("")
    if found.subsystem is None:
        return Culprit(
            "Whatever pass or lowering torch's bisector leaves out, the fault stays: it is in how Inductor joins loops "
            "or writes code."
        )
    name = f"`{found.debug_info}`, " if found.debug_info else ""
    return Culprit(
        f"By torch's bisector it begins with {name}number {found.bisect_number} of Inductor's `{found.subsystem}`."
    )


class Op(NamedTuple):
    """A call of an op.

    Attributes:
        name, line: its name, and the line of the person's own code that calls it; "" in compiled code.
        given, made: the print of each floating tensor that goes in, and that comes out.
        eps: of the widest rounding of what comes out.
    """

    name: str
    line: str
    given: tuple[Print, ...]
    made: tuple[Print, ...]
    eps: float


class _Ops(OpMode):
    """Notes each op.

    Attributes:
        seen: in the order of the calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Op] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch run compiled code beneath this mode, where it asks."""
        return True

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one op, and note it."""
        with Unwatched():
            given = _prints(_floats((args, kwargs)))
        result = func(*args, **kwargs)
        with Unwatched():
            made = _floats(result)
            eps = max((torch.finfo(t.dtype).eps for t in made), default=0.0)
            self.seen.append(Op(str(func), own_line(), given, _prints(made), eps))
        return result


def _floats(values: Any) -> list[torch.Tensor]:
    return [t for t in leaves_of(values) if inputs.is_rounded(t) and t.numel()]


def _prints(floats: Sequence[torch.Tensor]) -> tuple[Print, ...]:
    return tuple(_print(t.detach().cpu().double().flatten()) for t in floats)


def _print(x: torch.Tensor) -> Print:
    """The numbers of elements and of finite ones; of these, the root of the sum of squares, and sums with weights.

    If two tensors differ by rounding, each such sum differs by about the root of the sum of squares of the difference.
    """
    finite = x.isfinite()
    x, places = x.where(finite, 0.0), torch.arange(1, x.numel() + 1, dtype=x.dtype)
    return (x.numel(), int(finite.sum())), float(x.norm()), *(float(x @ (places * k).sin()) for k in WAVES)


def find_op(task: CulpritTask, process: ChildProcess) -> Culprit:
    """Find the op with which the numbers of a cell depart from those of the cell beside it.

    Raises:
        Whatever the mode or the model raises when it is built.
    """
    (ours, results), (known, _) = (_ops(open_task(one, process)) for one in (task.cell, task.beside))
    jumps = [
        (after / max(before, op.eps, TINY), before, after, op) for op, before, after in _errors(ours, results, known)
    ]
    jump, before, after, op = max(jumps, key=lambda found: found[0], default=(0.0, 0.0, 0.0, None))
    if op is None or jump < LEAST_JUMP:
        return Culprit("")
    beside = "eager" if task.beside.cell.precision == task.cell.cell.precision else "float32"
    return Culprit(
        f"The op is `{op.name}`{f' at {op.line}' if op.line else ''}, number {ours.index(op) + 1} of {len(ours)}: its "
        f"result is {after:.2g} from that of {beside}, and what goes in {before:.2g}."
    )


def _ops(session: CellSession) -> tuple[list[Op], tuple[Print, ...]]:
    """The ops of a call of a cell, and of its backward, when it is warm; and what they result in."""
    session.eager = session.build()
    made = session.prepare()
    asked = session.question(session.cases[0], session.eager)
    asked = replace(asked, second=False, stacked=None, forward_mode=False)
    state = weights.state_of(made.parameters_of)
    watch, found = _Ops(), None
    with contextlib.suppress(Exception):  # the verdict has told what the model raises
        for _ in range(session.mode.warm_calls + 1):
            weights.reset(made.parameters_of, state)
            evaluation.evaluate(made.call, made.parameters_of, asked)
        weights.reset(made.parameters_of, state)
        with watch:
            found = evaluation.evaluate(made.call, made.parameters_of, asked)
    return watch.seen, _prints(_floats([*found.tensors.values()])) if found else ()


def _errors(ours: Sequence[Op], results: Sequence[Print], known: Sequence[Op]) -> Iterator[tuple[Op, float, float]]:
    """Each op, and how far what goes into it, and what comes out of it, is from the nearest tensor that is known.

    What lies between two of the known ops, as a product before its sum, is near to no known tensor. So what an op makes
    is off by no more than what is computed from it.
    """
    tensors = defaultdict(list)
    for size, *sums in dict.fromkeys(p for op in known for p in (*op.given, *op.made)):
        tensors[size].append(sums)
    tables = {size: torch.tensor(sums, dtype=torch.float64) for size, sums in tensors.items()}

    @cache
    def nearest(size: tuple[int, int], *sums: float) -> float:
        if size not in tables:
            return math.inf
        apart = (tables[size] - torch.tensor(sums, dtype=torch.float64)).abs().amax(1)
        return float((apart / tables[size][:, 0].clamp(min=TINY)).amin())

    off: dict[Print, float] = {}
    later = {p: nearest(*p) for p in results}  # the largest error of what is computed from a tensor
    after: list[float] = []
    for op in reversed(ours):
        off |= {p: min(nearest(*p), later.get(p, 0.0)) for p in op.made if "empty" not in op.name}
        after.append(max((off.get(p, 0.0) for p in op.made), default=0.0))
        later |= {p: max(later.get(p, 0.0), after[-1]) for p in op.given if p not in op.made}
    for op, made in zip(ours, reversed(after), strict=True):
        yield op, max((off[p] if p in off else nearest(*p) for p in op.given), default=0.0), made
