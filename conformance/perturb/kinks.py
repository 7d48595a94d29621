"""Watches runs of the oracle for kinks: points at which a gradient jumps."""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FrameType
from typing import Any

import torch

from conformance.evaluate import custom_ops, inputs
from conformance.evaluate.containers import home
from conformance.perturb.ops import Rule, group_gaps, rule_of
from zoo import internals

MARGIN = 12.0 * 2.0**-8  # in units of the tensor's rms: three times the noise of a perturbed bfloat16 run
TIE = 2.0**-40  # times the rms: this close to a kink, even float64 may give either gradient
NUDGES = [MARGIN / parts for parts in (1, 2, 4, 8) for _ in range(8)]  # of probabilities, of their size


class KinkWatch(custom_ops.OpMode):
    """Notes ops with a kink through which a gradient flows, and how close each row of a batch comes to a kink.

    Its own arithmetic runs outside all modes, so another mode does not perturb what this one measures.

    Args:
        rows: number of rows of the batch; 0 if rows do not matter.
        selections: note equal elements among which an op selects.

    Attributes:
        kinked: an op with a kink ran, and a gradient flows through it.
        margin: the smallest distance to a kink in units of the tensor's rms.
        margins: for each row, the smallest distance to a kink in units of the tensor's rms: float64 of shape (rows,).
        ties, above: for each op with its kink at a fixed value, in order: boolean masks of the elements that lie on the
            kink, and above it; those above a jump too.
        equals: for each op that selects among elements, in order: a boolean mask of where it may take either of two.
    """

    def __init__(self, rows: int = 0, *, selections: bool = False) -> None:
        super().__init__()
        self.kinked = False
        self.margin = float("inf")
        self.margins = torch.full((rows,), float("inf"), dtype=torch.float64)
        self.ties: list[torch.Tensor] = []
        self.above: list[torch.Tensor] = []
        self.equals: list[torch.Tensor] = []
        self._selections = selections
        self._compared: dict[int, tuple[torch.Tensor, torch.Tensor, Any]] = {}  # the mask, and what made it
        self._chosen: dict[int, tuple[torch.UntypedStorage, torch.Tensor | None, float]] = {}  # memory, gap, rms
        # What rounding moves but no gradient reaches. A weak reference lets the numbers go, and keeps their identity.
        self._computed: dict[int, internals.StorageWeakRef] = {}

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op, and note it if it has a kink."""
        rule = rule_of(func, kwargs)
        if rule.gaps or rule.jump or rule.rivals:
            if args and _is_real(args[0]) and args[0].numel():
                self._note(rule, args[0], args[1:], kwargs)
        elif rule.masks and self._compared:
            self._note_masked(rule, args)
        sampled = rule.draws and internals.overload_of(func) == "default" and self._moves(args[0])
        result = self._sample(func, args, kwargs) if sampled else func(*args, **kwargs)
        if rule.groups and rule.moves(func, args, kwargs):
            self._note_groups(result, *args[1:4], flows=has_gradient(*args))
        if self._chosen and not sampled:
            self._follow((args, kwargs), result)
        self._note_decision(rule, args, kwargs, result)
        self._pass_on(rule, (args, kwargs), result)
        return result

    def _note_decision(self, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Note a result that jumps where its operands cross a border: a mask, an index, or a rounded number."""
        if rule.casts and id(args[0]) in self._compared:
            self._compared[id(result)] = (result, *self._compared[id(args[0])][1:])
        border = rule.jump or rule.border
        if not (border or rule.rivals) or not _is_real(args[0]) or not args[0].numel():
            return
        computed = any(map(self._moves, args))
        if rule.compares and (computed or has_gradient(*args)):
            self._compared[id(result)] = (result, args[0], args[1])
        if not computed and not rule.indexes:
            return
        decided = [leaf for leaf in _tensors(result) if rule.jump or rule.compares or not inputs.is_rounded(leaf)]
        if decided:
            with custom_ops.Unwatched(), torch.no_grad():
                x = args[0].detach()
                gap = border(x, *args[1:], **kwargs) if border and result is not args[0] else None
                for leaf in decided:
                    self._mark(leaf, gap, _rms(x))

    def _moves(self, value: Any) -> bool:
        """Whether rounding moves a value: it was computed from what the oracle perturbs. An input itself stays."""
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return False
        return (value.requires_grad and not value.is_leaf) or home(value.untyped_storage()) in self._computed

    def _pass_on(self, rule: Rule, given: Any, result: Any) -> None:
        """Keep which results without a gradient rounding moves; those with one say so themselves."""
        if rule.shapes:
            return
        operands = _tensors(given)
        if torch.is_grad_enabled() and not rule.detaches and any(value.requires_grad for value in operands):
            return
        for leaf in filter(inputs.is_rounded, _tensors(result)):
            memory = leaf.untyped_storage()
            own = home(memory)
            if any(self._moves(t) or (t.requires_grad and home(t.untyped_storage()) != own) for t in operands):
                self._computed[own] = internals.StorageWeakRef(memory)

    def _note(self, rule: Rule, x: torch.Tensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        operands = rest[:1] if rule.grid else (x, *rest, *kwargs.values())
        flows = not rule.indexes and has_gradient(*operands)
        with custom_ops.Unwatched():
            x = x.detach()
            if self._selections and rule.rivals:
                found = rule.rivals(x, *rest, **kwargs)
                self.equals += [] if found is None else [found]
            if not flows:
                return
            self.kinked = True
            if rule.jump:  # on a jump, the output is a coin toss too, as its budget shows
                self._keep([rule.jump(x, *rest, **kwargs)], x, _rms(x))
            elif rule.gaps:
                gaps = rule.gaps(x, *rest, **kwargs)
                rms = 1.0 if rule.grid else _rms(x)  # gaps to pixels are in pixels
                self.ties += [gap.abs() <= TIE * rms for gap in gaps]
                self._keep(gaps, x, rms)
            elif rule.lead:
                gap = rule.lead(x, *rest, **kwargs)
                self._keep([] if gap is None else [gap], x, _rms(x), sides=False)

    def _note_groups(self, best: torch.Tensor, axis: int, index: torch.Tensor, x: torch.Tensor, *, flows: bool) -> None:
        """Note the selection of the best of each group."""
        with custom_ops.Unwatched():
            behind, tied = group_gaps(best.detach(), axis, index, x.detach())
            self.equals += [tied] * self._selections
            if flows:
                self.kinked = True
                self._keep([behind], behind, _rms(x.detach()), sides=False)

    def _sample(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """Draw by probabilities, and note as a choice how little would make each number another."""
        generator = kwargs.get("generator") or torch.default_generator
        before = generator.get_state()
        result: torch.Tensor = func(*args, **kwargs)
        after, own = generator.get_state(), torch.Generator().manual_seed(0)
        gap = torch.full(result.shape, float("inf"), dtype=torch.float64)
        for nudge in NUDGES:
            with custom_ops.Unwatched():
                signs = torch.randint(2, args[0].shape, generator=own) * 2 - 1
                nudged = (args[0] * (1 + nudge * signs)).clamp_max(args[0].max().clamp_min(1.0))
            generator.set_state(before)
            other = func(nudged, *args[1:], **kwargs)
            with custom_ops.Unwatched():
                gap = torch.where(other != result, nudge, gap)  # a smaller one comes later
        generator.set_state(after)
        self._mark(result, gap, 1.0)
        return result

    def _note_masked(self, rule: Rule, args: tuple[Any, ...]) -> None:
        """Note a hand-written kink, such as where(x > 0, x, 0) or x * (x > 0)."""
        for mask in (args[i] for i in rule.masks):
            if id(mask) in self._compared and has_gradient(*args):
                _, x, limit = self._compared[id(mask)]
                self.kinked = True
                with custom_ops.Unwatched():
                    self._keep([x.detach() - limit], x.detach(), _rms(x.detach()))

    def _follow(self, given: Any, result: Any) -> None:
        """Note a decision, such as a mask or which vector is nearest, once what is made of it meets a gradient."""
        operands = _tensors(given)
        found = [choice for t in operands if (choice := self._chosen.get(home(t.untyped_storage())))]
        if not found:
            return
        if not has_gradient(*operands):
            for leaf in _tensors(result):
                self._mark(leaf, *found[0][1:])
            return
        self.kinked = True
        with custom_ops.Unwatched():
            for _, gap, rms in found:
                if gap is not None:
                    self._keep([gap], gap, rms, sides=False)

    def _mark(self, chosen: torch.Tensor, gap: torch.Tensor | None, rms: float) -> None:
        memory = chosen.untyped_storage()
        self._chosen[home(memory)] = memory, gap, rms

    def _keep(self, gaps: list[torch.Tensor], x: torch.Tensor, rms: float, *, sides: bool = True) -> None:
        """Keep on which side of its kinks each element is, and the smallest gap of each row."""
        if sides:
            self.above += [gap > 0 for gap in gaps]
        self.margin = min([self.margin, *(float(gap.abs().amin()) / rms for gap in gaps if gap.numel())])
        rows = len(self.margins)
        if rows and x.dim() and x.shape[0] == rows:
            for gap in gaps:
                if gap.dim() and gap.shape[0] == rows:
                    self.margins = torch.minimum(self.margins, gap.abs().reshape(rows, -1).amin(1) / rms)


def _tensors(values: Any) -> list[torch.Tensor]:
    """The strided tensors among the operands or results of an op."""
    return [
        leaf for leaf in custom_ops.leaves_of(values) if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided
    ]


def _rms(x: torch.Tensor) -> float:
    return float(x.square().mean().sqrt()) or 1.0


def _is_real(value: Any) -> bool:
    return inputs.is_rounded(value) and not value.is_complex()


def count_tossed(oracle: KinkWatch, perturbed: KinkWatch) -> int:
    """The number of elements on a kink in the oracle's run that rounding moves off it: their gradient is random.

    An element that stays there, such as a zero that no weight reaches, has one well-defined gradient.
    """
    return _count(oracle.ties, perturbed.ties, lambda tie, still: tie & ~still)


def count_flipped(oracle: KinkWatch, perturbed: KinkWatch) -> int:
    """The number of elements that rounding moves to the other side of a kink."""
    return _count(oracle.above, perturbed.above, torch.logical_xor)


def count_merged(rounded: KinkWatch, drawn: KinkWatch) -> int:
    """The number of ties that the inputs have only because they were rounded: on a kink, or between equal elements.

    One run is on inputs that every precision represents, the other on the same inputs as they were drawn.
    """
    ours, theirs = [*rounded.ties, *rounded.equals], [*drawn.ties, *drawn.equals]
    return _count(ours, theirs, lambda tie, before: tie & ~before)


def _count(ours: list[torch.Tensor], theirs: list[torch.Tensor], differ: Callable[..., torch.Tensor]) -> int:
    pairs = zip(ours, theirs, strict=False)
    return sum(int(differ(a, b).sum()) for a, b in pairs if a.shape == b.shape)


# Tells whether a gradient may flow through an op that a dispatch mode sees.


def has_gradient(*tensors: Any) -> bool:
    """Whether a gradient may flow through an op on some operands.

    Autograd records an op if gradients are enabled and an operand requires one. A custom Function's forward runs with
    gradients disabled, so there it counts what the Function was applied to.
    """
    if torch.is_grad_enabled() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in tensors):
        return True
    return any(
        (_is_forward(frame.f_code) and _may_need_gradient(frame))
        or frame.f_code.co_filename == internals.file_of_transforms  # which hide from autograd what they track
        for frame in frames()
    )


@contextlib.contextmanager
def applications_watched() -> Iterator[Callable[[], bool]]:
    """A context that can tell at any moment whether a custom Function is being applied.

    Torch disables gradients for a Function's forward, and makes views of what it returns. These ops come from no frame
    of Python, as `apply` is written in C since torch 2.14. So Python's calls of `apply` are counted.
    """
    running = 0

    def note(_: FrameType, event: str, called: Any) -> None:
        nonlocal running
        if event.startswith("c_") and isinstance(getattr(called, "__self__", None), type(torch.autograd.Function)):
            running += 1 if event == "c_call" else -1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield lambda: running > 0 or any(_is_forward(frame.f_code) for frame in frames())
    finally:
        sys.setprofile(before)


def frames() -> Iterator[FrameType]:
    """The frames that are running, the innermost first."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 -- nothing else knows that a Function's forward is running
    while frame is not None:
        yield frame
        frame = frame.f_back


@cache
def _is_forward(code: CodeType) -> bool:
    """Whether it is the forward of a custom Function, which may be wrapped."""
    classes: list[Any] = [torch.autograd.Function]
    for function in classes:  # it grows
        classes += type.__subclasses__(function)
        forward = function.forward
        while hasattr(forward, "__wrapped__"):
            forward = forward.__wrapped__
        if getattr(forward, "__code__", None) is code:
            return True
    return False


def _may_need_gradient(frame: FrameType) -> bool:
    """Whether a Function was applied to a tensor that requires a gradient. Without a context, nobody can tell: yes."""
    arguments = inspect.getargvalues(frame)
    given = [arguments.locals.get(name) for name in arguments.args]
    given += arguments.locals.get(arguments.varargs or "", ())
    context = next((value for value in given if isinstance(value, internals.FunctionBase)), None)
    return context is None or any(context.needs_input_grad)
