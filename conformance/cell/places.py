"""Says where in a model a wrong dtype, an infinity, or a wrong step of a training comes first."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from conformance.cell.session import CellSession, Comparison
from conformance.evaluate import evaluation, inputs
from conformance.evaluate.custom_ops import OpMode, Unwatched, leaves_of
from conformance.gates.budget import TensorCriteria
from conformance.gates.compare import name_of
from conformance.records.cell import PLACE_OF, Discrepancy, case_of
from conformance.records.explained import Exit
from conformance.verdict import VALUES, failed_gate
from zoo import Case

OURS = (Path(__file__).parents[1], Path(torch.__file__).parent)  # where no line of a person's model is


def note_step(
    comparison: Comparison,
    found: dict[str, str],
    y: torch.Tensor | None,
    criteria: TensorCriteria,
    *others: Any,
) -> Discrepancy:
    """Compare a tensor of a training, and add the first wrong step of a curve, such as its losses, to what is found."""
    seen = comparison(y, criteria, *others)
    if y is not None and failed_gate(seen) and (step := _first_step(y, criteria)):
        found.setdefault(PLACE_OF + VALUES[0], step)
    return seen


def _first_step(y: torch.Tensor, criteria: TensorCriteria) -> str:
    """Which number of a curve is the first that is wrong; "" if it is no curve.

    The budget of one element finds it, or if the error is small and grows, those of the whole tensor.
    """
    oracle, budget = criteria.reference.oracle, criteria.budget
    if criteria.tensor.kind != "output" or y.dim() != 1 or tuple(y.shape) != oracle.shape or not oracle.is_rounded:
        return ""
    values, size = y.detach().cpu().double(), oracle.reals.abs()
    allowed = budget.point * (size + oracle.rms), budget.norm / (oracle.norm or 1.0) * size, budget.gain * size
    wrong = [((values - oracle.reals).abs() > most).nonzero().flatten().tolist() for most in allowed]
    for step in next(filter(None, wrong), [])[:1]:
        return (
            f"step {step} is the first of {criteria.tensor} that is wrong: {float(values[step]):.6g}, in float64 "
            f"{float(oracle.reals[step]):.6g}"
        )
    return ""


def of_faults(session: CellSession, discrepancies: Sequence[Discrepancy]) -> dict[str, str]:
    """Where eager, at the cell's precision, first gives a wrong dtype, and where an infinity or NaN: a fact for each.

    Args:
        session: the cell, which has been judged.
        discrepancies: what was found in it.
    """
    found = {}
    for wrong in discrepancies:
        failed = failed_gate(wrong)
        gate = failed.gate if failed else ""
        asked = gate == "class" or (gate == "dtype" and session.is_eager and wrong.tensor.kind == "output")
        if not asked or wrong.case != case_of(wrong.case) or PLACE_OF + gate in found or session.spec.fit:
            continue
        exits, infinity = walk(session, session.spec.case(wrong.case))
        found[PLACE_OF + gate] = infinity if gate == "class" else _first_dtype(exits, wrong.dtype)
    return {fact: said for fact, said in found.items() if said}


def _first_dtype(exits: Sequence[Exit], dtype: str) -> str:
    """From which module on a model has a dtype to its end; "" if it has no modules."""
    if not exits:
        return ""
    beside = [end for end in exits if end.parent == exits[-1].parent]
    other = [number for number, end in enumerate(beside) if end.dtype != dtype]
    first = beside[other[-1] + 1 :] if other else beside
    where = (
        f"from the end of {first[0]} on" if first else f"after the end of {exits[-1]}, which gives {exits[-1].dtype},"
    )
    return f"{where} the dtype is {dtype}"


class _FirstInfinity(OpMode):
    """Notes the first op whose result has an infinity or NaN although its operands have none.

    Attributes:
        said: the op, the module and the line that call it, and the largest number that went in.
    """

    def __init__(self, inside: list[str]) -> None:
        super().__init__()
        self.said = ""
        self._inside = inside

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one op, and look at what it gives."""
        result = func(*args, **kwargs)
        if not self.said:
            with Unwatched():
                if not all(map(_is_finite, leaves_of(result))) and all(map(_is_finite, leaves_of((args, kwargs)))):
                    self.said = self._say(func, args, result)
        return result

    def _say(self, func: Any, args: Any, result: Any) -> str:
        floats = [t for t in leaves_of(args) if inputs.is_rounded(t) and t.numel()]
        given = next(t.dtype for t in leaves_of(result) if isinstance(t, torch.Tensor))
        largest = max((float(t.abs().max()) for t in floats), default=0.0)
        where = f" in `{self._inside[-1]}`" if self._inside else ""
        line = own_line()
        return (
            f"`{func}`{where}{f', at {line}' if line else ', in backward'}, gives the first infinity or NaN: in "
            f"{name_of(given)}, where the largest number before it is {largest:.3g}"
        )


def _is_finite(leaf: Any) -> bool:
    if isinstance(leaf, float):
        return math.isfinite(leaf)  # a mask of infinities is meant
    return not inputs.is_rounded(leaf) or bool(leaf.isfinite().all())


def own_line() -> str:
    """The innermost line of the person's own code that is running."""
    frame = sys._getframe()  # noqa: SLF001 -- Python has no public name for it
    while frame is not None:
        if _is_own(frame.f_code):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _line_of(module: torch.nn.Module) -> str:
    code = getattr(type(module).forward, "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code and _is_own(code) else ""


@cache
def _is_own(code: CodeType) -> bool:
    """Whether a code is a person's own, and not torch's or ours."""
    path = Path(code.co_filename)
    return path.suffix == ".py" and not any(path.is_relative_to(folder) for folder in OURS)


def walk(session: CellSession, case: Case) -> tuple[tuple[Exit, ...], str]:
    """The ends of the modules in eager's forward, and where it first gives an infinity, at the cell's precision."""
    model = session.build()
    question = replace(session.question(case, model), second=False, stacked=None, forward_mode=False)
    ended: dict[str, str] = {}
    inside: list[str] = []
    parts = dict(_parts_of(model)) if isinstance(model, torch.nn.Module) else {}
    watch = _FirstInfinity(inside)
    with suppress(Exception), _noting(parts, ended, inside), watch:  # the verdict has told what the model raises
        evaluation.evaluate(model, model, question)
    exits = tuple(
        Exit(path, type(parts[path]).__name__, _line_of(parts[path]), dtype, _outermost([*ended][: number + 1]))
        for number, (path, dtype) in enumerate(ended.items())
    )
    return exits, watch.said


def _parts_of(model: torch.nn.Module, prefix: str = "") -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules inside a module that take hooks, by name: those inside a ScriptModule do not."""
    for name, part in model.named_children():
        yield f"{prefix}{name}", part
        if not isinstance(part, torch.jit.ScriptModule):
            yield from _parts_of(part, f"{prefix}{name}.")


@contextmanager
def _noting(parts: dict[str, torch.nn.Module], ended: dict[str, str], inside: list[str]) -> Iterator[None]:
    """Note the modules that are running, and those that have returned, in order, each once with its dtype."""
    names = {id(part): path for path, part in reversed(parts.items())}

    def enter(module: Any, _: Any) -> None:
        if id(module) in names:
            inside.append(names[id(module)])

    def leave(module: Any, _: Any, output: Any) -> None:
        if id(module) in names:
            inside.pop()
            dtypes = [name_of(leaf.dtype) for leaf in leaves_of(output) if isinstance(leaf, torch.Tensor)]
            ended.setdefault(names[id(module)], dtypes[0] if dtypes else "")

    with ExitStack() as hooks:
        hooks.enter_context(torch.nn.modules.module.register_module_forward_pre_hook(enter))
        hooks.enter_context(torch.nn.modules.module.register_module_forward_hook(leave))
        yield


def _outermost(paths: Sequence[str]) -> tuple[str, ...]:
    """The modules that are in no other one of them."""
    known = set(paths)

    def has_parent(path: str) -> bool:
        return any(path[:place] in known for place, letter in enumerate(path) if letter == ".")

    return tuple(path for path in paths if not has_parent(path))
