"""Compares the oracle's gradients with finite differences: the only check that sees a wrong backward in float64."""

import contextlib
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any
from unittest import mock

import torch
from torch.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck
from torch.utils.hooks import RemovableHandle

from conformance.derivatives.movable_model import MovableModel, Tensors, move
from conformance.derivatives.slopes import Mismatch, Slopes, dependents, set_to
from conformance.errors import SelfCheckError, one_line
from conformance.evaluate import evaluation, inputs
from conformance.float64.wide import Oracle
from conformance.process.forks import Forks
from conformance.records.cell import HOOKED, STOPPED, TensorName
from zoo import internals

SMALL = 400  # up to this many numbers in all inputs and parameters, each is tested; above, random directions
LEAVES = 12  # that one process checks at a time, in the fast mode
TOGETHER = 3  # to test one output with all leaves together costs as much as gradcheck with so many leaves
MOST_UNDEFINED, UNDEFINED = 100, "backward without a gradient of one output"
MOST_NAMED = 2  # leaves in a remark
TOLERANCE: dict[str, Any] = {"nondet_tol": 1e-12}
TWO_PASSES = (
    "two backward passes over one graph give different gradients: backward draws other random numbers than forward, as "
    "a checkpoint without `preserve_rng_state` does, or changes what forward has saved"
)
REFUSED = "if the model refuses an input that is moved a little, name the input in the spec's `constants`"


class GradientCheck:
    """Compares the gradients of one question with finite differences. `first` is what the oracle returned for it.

    Raises:
        SpecError: a convention names no tensor.
    """

    def __init__(
        self, oracle: Oracle, question: evaluation.Question, first: evaluation.Evaluation, forks: Forks
    ) -> None:
        self._assumed: dict[str, Any] = {}
        self._forks, self._changed = forks, contextlib.ExitStack()
        self._oracle, self._spec, self._first = oracle, oracle.spec, first
        self._model = MovableModel(oracle, question, first)
        self._conventions = self._model.conventions
        self._whose = "the spec's reference: " if self._spec.trusts_model else ""
        free = {name: leaf for name, leaf in self._model.leaves.items() if not self._conventions.exempt(name)}
        with_gradient = {name for name in free if first.tensors[TensorName("gradient", name)] is not None}
        # leaves whose gradient finite differences should reproduce, and those on which no output may depend
        self._asked: Tensors = {name: leaf for name, leaf in free.items() if name in with_gradient}
        self._silent: Tensors = {
            n: leaf for n, leaf in free.items() if n not in with_gradient and not self._conventions.concern(n)
        }
        self._fast = sum(t.numel() for t in self._asked.values()) > SMALL

    def run(self) -> dict[str, Any]:
        """Make the check.

        Returns:
            Facts without which the gradients are not the derivative: `STOPPED` with names of leaves, or `HOOKED`.

        Raises:
            SelfCheckError: a gradient is wrong or missing, or a second derivative that the spec claims.
        """
        with self._oracle.widened(), self._changed:
            try:
                self._compare()
            except SelfCheckError:
                if STOPPED in self._assumed or not self._model.freeze():
                    raise
                self._compare()
            self._conventions.check_zeros(self._first)
            if self._spec.twice_differentiable and self._asked:
                self._differentiate_twice()
        return self._assumed

    def _compare(self) -> None:
        """Compare all first derivatives. If they disagree, do so without hooks, and with what is stopped held."""
        try:
            if self._asked:
                self._check_all()
            self._listen_to_all()
        except RuntimeError as problem:  # GradcheckError and SelfCheckError are some
            disagrees = isinstance(problem, (GradcheckError, SelfCheckError))
            if disagrees and (self._without_hooks() or self._stop_gradients()):
                self._compare()
                return
            if isinstance(problem, SelfCheckError):
                raise
            self._explain(problem)
            self._listen_to_all()

    def _without_hooks(self) -> bool:
        """Leave out hooks from here on, if they change a gradient; False if they do not."""
        leaves = [*self._asked.values()]
        if not leaves or HOOKED in self._assumed:
            return False
        changed = leave_out_hooks(self._oracle.model, leaves, lambda: self._gradients(leaves)[1])
        if changed is not None:
            self._changed.push(changed)
            self._assumed[HOOKED] = True
        return changed is not None

    def _stop_gradients(self) -> bool:
        """Hold what forward takes out of autograd from here on, if outputs change by way of it and it is on purpose.

        Raises:
            SelfCheckError: a leaf reaches no output in another way.
        """
        if STOPPED in self._assumed or not self._spec.stops_gradients or not self._stops_gradients():
            return False
        if self._silent:
            with self._model.state_held():
                self._listen(self._silent, [*self._model.outputs()])
        names = [*islice(self._stopped([*self._model.leaves]), MOST_NAMED + 1)]
        self._assumed[STOPPED] = ", ".join(names[:MOST_NAMED]) + " and more" * (len(names) > MOST_NAMED)
        return self._model.freeze(stops=True)

    def _stopped(self, names: list[str]) -> Iterator[str]:
        """The leaves, of some, by which outputs change by way of what forward takes out of autograd."""
        if not self._stops_gradients(names):
            return
        if len(names) == 1:
            yield from names
            return
        yield from self._stopped(names[: len(names) // 2])
        yield from self._stopped(names[len(names) // 2 :])

    def _stops_gradients(self, names: Collection[str] = ()) -> bool:
        return self._model.stops_gradients(inputs.seed_generator("stopped", *self._model.question.seed), names)

    def _advice(self) -> str:
        """What a spec may declare if forward stops gradients; "" if it does not."""
        return "" if self._spec.stops_gradients or not self._stops_gradients() else STOPS

    def _outputs(self, names: Collection[str]) -> Tensors:
        """Some of the outputs, from one more run."""
        return {name: t for name, t in self._model.outputs().items() if name in names}

    def _with_gradient(self) -> Tensors:
        return {name: t for name, t in self._model.outputs().items() if t.requires_grad}

    def _roots(self, *_: Any) -> tuple[torch.Tensor, ...]:
        """The model for gradcheck, which changes the leaves in place: it uses these, and ignores its arguments."""
        return tuple(self._with_gradient().values())

    def _listen_to_all(self) -> None:
        """Raise an error if an output depends on something and autograd does not know it."""
        outputs = self._model.outputs()
        deaf = [n for n, t in outputs.items() if not t.requires_grad and n in self._first.requires_grad]  # no number
        if self._silent and outputs:
            self._listen(self._silent, [*outputs])
        if deaf and self._asked:
            self._listen(self._asked, deaf)

    def _check_all(self) -> None:
        """Check all first derivatives.

        The fast mode of gradcheck runs the model twice for each leaf. So all leaves are tested together first, and if
        they pass, gradcheck gets the first leaf alone: it also tries a backward that gets no gradient. Sparse gradients
        are refused by gradcheck.
        """
        names = [*self._with_gradient()]
        sparse = [leaf for name, leaf in self._asked.items() if name in self._first.sparse]
        if sparse and not all(self._agree(sparse, name) for name in names):
            raise GradcheckError("Jacobian mismatch of a sparse gradient")
        asked = [leaf for name, leaf in self._asked.items() if name not in self._first.sparse]
        if not self._fast or not asked:
            self._check(asked)
            return
        parts = [partial(self._check, asked[:1])]
        if TOGETHER * len(names) < len(asked):
            parts += [partial(self._agree, asked, name) for name in names]
        if not all(self._forks.results(parts)) or len(parts) == 1:
            self._forks.results([partial(self._check, asked[at : at + LEAVES]) for at in range(1, len(asked), LEAVES)])

    def _check(self, some: list[torch.Tensor]) -> bool:
        """Let gradcheck check some leaves."""
        if not some:
            return True
        undefined = len(self._with_gradient()) <= MOST_UNDEFINED  # it runs the model once more for each
        self._assumed |= {} if undefined else {UNDEFINED: f"not tried, of more than {MOST_UNDEFINED} outputs"}
        here = [leaf.detach().clone() for leaf in some]
        try:
            with _without_slow_mode():
                return bool(
                    gradcheck(self._roots, some, fast_mode=self._fast, check_undefined_grad=undefined, **TOLERANCE)
                )
        finally:
            set_to(some, here)  # after an error of the model, they are where gradcheck has moved them

    def _right_beside_kinks(self, asked: list[torch.Tensor]) -> bool:
        """Whether the gradients are right where no number is on a kink, and here between the slopes on both sides.

        Many numbers of a network may be on kinks: behind units that are off, a bias of zero puts all there.
        """
        outputs, found, cotangents = self._gradients(asked)
        seed = self._model.question.seed
        slopes = Slopes(partial(self._outputs, outputs), cotangents)
        tests = [
            partial(slopes.allow, leaf, gradient, inputs.seed_generator("beside", number, *seed))
            for number, (leaf, gradient) in enumerate(zip(asked, found, strict=True))
        ]
        if not all(self._forks.results(tests)):
            return False
        generator, here = inputs.seed_generator("moved", *seed), [leaf.detach().clone() for leaf in asked]
        set_to(asked, [move(numbers, generator) for numbers in here])
        try:
            return self._check(asked[:1]) and all(self._agree(asked, name) for name in outputs)
        except (GradcheckError, RuntimeError):
            return False  # the caller tests each number where it is
        finally:
            set_to(asked, here)

    def _gradients(self, leaves: list[torch.Tensor], only: str = "") -> tuple[Tensors, list[torch.Tensor], Tensors]:
        """The outputs with a gradient, or one of them, the gradients of the leaves, and the cotangents of these."""
        outputs = self._outputs([only]) if only else self._with_gradient()
        cotangents = {name: inputs.cotangent(name, t, self._model.question.seed) for name, t in outputs.items()}
        found = torch.autograd.grad([*outputs.values()], leaves, [*cotangents.values()], allow_unused=True)
        return outputs, [_fill_missing(leaf, t) for leaf, t in zip(leaves, found, strict=True)], cotangents

    def _agree(self, leaves: list[torch.Tensor], name: str) -> bool:
        """Whether the gradients of one output, for all leaves together, agree with finite differences."""
        outputs, found, cotangents = self._gradients(leaves, name)
        gradients = {leaf: found.pop(0) for leaf in leaves}
        generator = inputs.seed_generator("together", name, *self._model.question.seed)
        slopes = Slopes(partial(self._outputs, outputs), cotangents)
        return slopes.agree(outputs[name], gradients, generator)

    def _listen(self, leaves: Tensors, names: list[str]) -> None:
        """Raise an error if an output depends on leaves and autograd does not know it."""
        leaves = {name: leaf for name, leaf in leaves.items() if bool(leaf.isfinite().all())}  # a mask of infinities
        chosen = partial(self._outputs, names)
        seed = inputs.seed_generator("silent", *self._model.question.seed)
        if not dependents(chosen, [*leaves.values()], seed):
            return
        for name, leaf in leaves.items():
            for output, slope in dependents(chosen, [leaf], seed).items():
                way = f"a Convention on {name!r} or {output!r}"
                if name in self._asked:  # it has a gradient by way of another output
                    way = self._advice() or way
                place = self._model.stop_of(name)
                why = (
                    f"it is taken out of autograd at {place}."
                    if place
                    else "does a backward return None, or is the output marked as not differentiable?"
                )
                raise SelfCheckError(
                    f"gradcheck in float64: {self._whose}{name} gets no gradient from {output}, which changes with it "
                    f"(slope {slope:.3g} in a random direction): {why} If it is by design, declare {way}"
                )

    def _explain(self, problem: Exception) -> None:
        """Name what gradcheck rejects. Return if it is a tie, or a convention: these gradients are right.

        Raises:
            SelfCheckError: a gradient is wrong.
        """
        text = one_line(problem)
        if "not reentrant" in text:
            raise SelfCheckError(f"gradcheck in float64: {self._whose}{TWO_PASSES}") from problem
        if "Jacobian mismatch" not in text:
            refused = "" if isinstance(problem, GradcheckError) else f"; {REFUSED}"
            raise SelfCheckError(f"gradcheck in float64: {self._whose}{text}{refused}") from problem
        leaves = [*self._asked.values()]
        if self._fast and self._right_beside_kinks(leaves):
            return
        outputs, found, cotangents = self._gradients(leaves)
        padding = self._conventions.padding_rows(self._model.run, self._asked)
        slopes = Slopes(partial(self._outputs, outputs), cotangents)
        wrong: list[Mismatch] = []
        for (name, leaf), gradient in zip(self._asked.items(), found, strict=True):
            skipped = self._conventions.rows_of(name, leaf) | padding[name]
            try:
                mismatch = slopes.mismatch(name, leaf, gradient, skipped=skipped, singly=not self._fast)
            except RuntimeError as unclear:
                raise SelfCheckError(f"gradcheck in float64: {self._whose}{text}; {unclear}") from problem
            wrong += [mismatch] if mismatch else []
        if wrong:
            raise SelfCheckError(f"gradcheck in float64: {self._whose}{say_wrong(wrong, self._advice())}") from problem

    def _differentiate_twice(self) -> None:
        try:
            with _without_slow_mode():
                gradgradcheck(self._roots, [*self._asked.values()], fast_mode=self._fast, **TOLERANCE)
        except (GradcheckError, RuntimeError) as problem:
            text = one_line(problem)
            advice = "mend the backward of the backward, or do not declare twice_differentiable"
            raise SelfCheckError(f"gradgradcheck in float64: {self._whose}{text}; {advice}") from problem


def _fill_missing(leaf: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
    """The gradient of a leaf; zeros if it has none."""
    return torch.zeros_like(leaf) if gradient is None else inputs.dense(gradient)


def _without_slow_mode() -> contextlib.AbstractContextManager[None]:
    """A context in which a failing fast gradcheck does not test each number after all, to word its message."""
    return internals.replaced("slow_gradcheck", lambda *_: "")


# Says which gradients are wrong, what the first one looks like, and what to declare if it is by design.

UNCHANGED = 1e-6  # a slope below this is that of a constant
STOPS = "stops_gradients=True: forward calls detach, or computes under no_grad"


def say_wrong(wrong: Sequence[Mismatch], way: str) -> str:
    """The sentence. `way` is what to declare; "" if it depends on what the first gradient looks like."""
    first = wrong[0]
    low, high = (f"{value:.6g}" for value in first.numeric)
    numeric = low if low == high else f"{low} to {high}"
    others = f"; also wrong: the gradient of {', '.join(m.tensor for m in wrong[1:])}" if len(wrong) > 1 else ""
    found = f"Jacobian mismatch: gradient of {first.tensor} at {first.index} is {first.analytic:.6g}"
    if not math.isfinite(first.analytic):
        return f"{found}{others}; draw inputs away from the edge of their domain"
    if max(abs(value) for value in first.numeric) < UNCHANGED:
        guess, part = "the outputs do not change with it: a straight-through estimator?", ""
    elif not first.analytic:
        guess, part = "the outputs change with it: a detached path, or padding?", "rows=…, zero=True, "
    else:
        guess, part = "a wrong backward?", ""
    way = way or f'surrogate_gradient or Convention(tensor="{first.tensor}", {part}why=…)'
    return f"{found}, finite differences give {numeric}{others}; {guess} If it is by design, declare {way}"


# Leaves out the hooks of backward, which make another gradient than the derivative on purpose.

SAME = 1e-9  # two gradients whose relative difference is below this are the same


def leave_out_hooks(
    model: Any, leaves: list[torch.Tensor], gradients: Callable[[], list[torch.Tensor]]
) -> contextlib.ExitStack | None:
    """Leave out all hooks from here on; None, and they stay, if they change no gradient of some leaves.

    Returns:
        A context, entered, that puts them back when it is left.
    """
    before = gradients()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_without(model, leaves))
        pairs = zip(before, gradients(), strict=True)
        if any(float((one - other).norm()) > SAME * float(one.norm()) for one, other in pairs):
            return stack.pop_all()
        return None


@contextlib.contextmanager
def _without(model: Any, leaves: list[torch.Tensor]) -> Iterator[None]:
    """A context in which no hook sees a gradient: none of modules, of leaves, or of tensors that forward makes.

    Hooks of the nodes of the graph, `tensor.grad_fn.register_hook`, stay.
    """
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    kept = [internals.all_backward_hooks, internals.all_backward_pre_hooks]
    kept += [vars(module).get(name) for module in modules for name in internals.BACKWARD_HOOKS]
    kept += [internals.hooks_of(leaf) for leaf in leaves]
    none = RemovableHandle(OrderedDict())
    with contextlib.ExitStack() as stack:
        for hooks in filter(None, kept):
            stack.enter_context(mock.patch.dict(hooks, clear=True))
        stack.enter_context(mock.patch.object(torch.Tensor, "register_hook", return_value=none))
        yield
