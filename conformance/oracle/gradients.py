"""Compares the oracle's gradients with finite differences: the only check that sees a wrong backward in float64."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck
from torch.utils import _pytree as pytree

from conformance.errors import SelfCheckError
from conformance.oracle import containers, inputs, process_state, weights
from conformance.oracle.conventions import Conventions
from conformance.oracle.evaluation import FIRST, Evaluation, Question
from conformance.oracle.float64 import Oracle
from conformance.oracle.frozen_state import freeze
from conformance.oracle.slopes import Mismatch, Slopes, dependents
from conformance.run.forks import ALONE, Forks
from zoo.case import Call

SMALL = 400  # up to this many numbers in all inputs and parameters, each is tested; above, random directions
LEAVES = 12  # that one process checks at a time, in the fast mode
TOLERANCE: dict[str, Any] = {"nondet_tol": 1e-12}
UNCHANGED = 1e-6  # a slope below this is that of a constant

Tensors = dict[str, torch.Tensor]
Frozen = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True)
class _Leaves:
    """The inputs and parameters that may have a gradient, by name.

    Attributes:
        asked: those with a gradient that finite differences should reproduce.
        silent: those without a gradient, on which no output may depend.
    """

    asked: Tensors
    silent: Tensors


class GradientCheck:
    """Compares the gradients of one question with finite differences.

    Args:
        oracle: the oracle under test.
        question: the question of a case.
        first: what the oracle returned for it.
        forks: the forks that may do a part of the work.
    """

    def __init__(self, oracle: Oracle, question: Question, first: Evaluation, forks: Forks = ALONE) -> None:
        self._forks = forks
        self._oracle, self._spec, self._model, self._first = oracle, oracle.spec, oracle.model, first
        self._question = _on_plain_memory(oracle, question)
        parameters = dict(self._model.named_parameters()) if isinstance(self._model, torch.nn.Module) else {}
        self._renew = False
        self._leaves = {
            name: leaf
            for name, leaf in {**self._question.names, **parameters}.items()
            if f"{FIRST} {name}" in first.tensors and leaf.numel()
        }
        for leaf in self._leaves.values():
            leaf.requires_grad_()
        self._conventions = Conventions(self._spec.conventions, {*self._leaves, *first.requires_grad})
        self._whose = "the spec's reference: " if self._spec.trusts_model else ""

    def run(self) -> None:
        """Make the check.

        Raises:
            SelfCheckError: a gradient is wrong or missing, or a second derivative that the spec claims.
            SpecError: a convention names no tensor.
        """
        self._oracle.reset()
        with self._oracle.widened():
            free = [name for name in self._leaves if not self._conventions.exempt(name)]
            with_gradient = {name for name in free if self._first.tensors[f"{FIRST} {name}"] is not None}
            leaves = _Leaves(
                {name: self._leaves[name] for name in free if name in with_gradient},
                {n: self._leaves[n] for n in free if n not in with_gradient and not self._conventions.concern(n)},
            )
            frozen: Frozen = contextlib.nullcontext
            try:
                self._compare(leaves, frozen)
            except SelfCheckError:
                self._renew = True
                state = freeze(self._reset_state, self._run_model, self._state)
                if state is None:
                    raise
                frozen = state
                self._compare(leaves, frozen)
            self._conventions.check_zeros(self._first)
            if self._spec.twice_differentiable and leaves.asked:
                self._differentiate_twice(leaves, frozen)

    def _compare(self, leaves: _Leaves, frozen: Frozen) -> None:
        """Compare all first derivatives, with the state that forward updates free or frozen."""
        if leaves.asked:
            try:
                self._check_all([*leaves.asked.values()], frozen, fast=self._fast(leaves))
            except (GradcheckError, RuntimeError) as problem:
                self._explain(problem, leaves.asked, frozen, fast=self._fast(leaves))
        outputs = self._outputs(frozen)
        deaf = [n for n, t in outputs.items() if not t.requires_grad and n in self._first.requires_grad]  # no number
        if leaves.silent and outputs:
            self._listen(leaves.silent, [*outputs], frozen)
        if deaf and leaves.asked:
            self._listen(leaves.asked, deaf, frozen)

    def _check_all(self, asked: list[torch.Tensor], frozen: Frozen, *, fast: bool) -> None:
        """Check all first derivatives. The fast mode runs the model twice for each leaf, whatever else it checks."""

        def check(some: list[torch.Tensor]) -> None:
            with _without_slow_mode():
                gradcheck(self._function(frozen), some, fast_mode=fast, **TOLERANCE)

        together = LEAVES if fast else len(asked)
        self._forks.results([partial(check, asked[at : at + together]) for at in range(0, len(asked), together)])

    def _fast(self, leaves: _Leaves) -> bool:
        return sum(t.numel() for t in leaves.asked.values()) > SMALL

    def _listen(self, leaves: Tensors, names: list[str], frozen: Frozen) -> None:
        """Raise an error if an output depends on leaves and autograd does not know it."""

        def chosen() -> Tensors:
            return {name: t for name, t in self._outputs(frozen).items() if name in names}

        seed = inputs.seeded("silent", *self._question.seed)
        if not dependents(chosen, [*leaves.values()], seed):
            return
        for name, leaf in leaves.items():
            for output, slope in dependents(chosen, [leaf], seed).items():
                raise SelfCheckError(
                    f"gradcheck in float64: {self._whose}{output} changes with {name} (slope {slope:.3g} in a random "
                    "direction), but autograd has no path between them: a detached path, or a backward that returns "
                    f"None? If it is by design, declare a Convention on {name!r} or {output!r}"
                )

    def _explain(self, problem: Exception, asked: Tensors, frozen: Frozen, *, fast: bool) -> None:
        """Name what gradcheck rejects. Return if it is a tie, or a convention: these gradients are right.

        Raises:
            SelfCheckError: a gradient is wrong.
        """
        text = " ".join(str(problem).split())[:200]
        if "Jacobian mismatch" not in text:
            raise SelfCheckError(f"gradcheck in float64: {self._whose}{text}") from problem
        outputs = {name: t for name, t in self._outputs(frozen).items() if t.requires_grad}
        cotangents = {name: inputs.cotangent(name, t, self._question.seed) for name, t in outputs.items()}
        found = torch.autograd.grad([*outputs.values()], [*asked.values()], [*cotangents.values()], allow_unused=True)
        padding = self._conventions.padding_rows(self._run_model, asked)

        def heard() -> Tensors:
            return {name: t for name, t in self._outputs(frozen).items() if name in cotangents}

        slopes = Slopes(heard, cotangents)
        wrong: list[Mismatch] = []
        for (name, leaf), gradient in zip(asked.items(), found, strict=True):
            skipped = self._conventions.rows_of(name, leaf) | padding[name]
            analytic = torch.zeros_like(leaf) if gradient is None else gradient
            try:
                mismatch = slopes.mismatch(name, leaf, analytic, skipped=skipped, singly=not fast)
            except RuntimeError as unclear:
                raise SelfCheckError(f"gradcheck in float64: {self._whose}{text}; {unclear}") from problem
            wrong += [mismatch] if mismatch else []
        if wrong:
            raise SelfCheckError(f"gradcheck in float64: {self._whose}{_told(wrong)}") from problem

    def _differentiate_twice(self, leaves: _Leaves, frozen: Frozen) -> None:
        asked = [*leaves.asked.values()]
        try:
            with _without_slow_mode():
                gradgradcheck(self._function(frozen), asked, fast_mode=self._fast(leaves), **TOLERANCE)
        except (GradcheckError, RuntimeError) as problem:
            text = " ".join(str(problem).split())[:200]
            advice = "mend the backward of the backward, or do not declare twice_differentiable"
            raise SelfCheckError(f"gradgradcheck in float64: {self._whose}{text}; {advice}") from problem

    def _state(self) -> list[torch.Tensor]:
        """The buffers, and the parameters that only forward's own code changes."""
        if not isinstance(self._model, torch.nn.Module):
            return []
        return [*self._model.buffers(), *(p for p in self._model.parameters() if not p.requires_grad)]

    def _reset_state(self) -> None:
        """Restore the state before a run, in new memory if forward writes it: backward may need what it was."""
        if not isinstance(self._model, torch.nn.Module):
            return
        if self._renew:
            _renew(self._model)
        weights.reset_buffers(self._model, self._oracle.state)
        for name, parameter in self._model.named_parameters():
            if not parameter.requires_grad:
                parameter.data.copy_(self._oracle.state[name])

    def _run_model(self) -> Any:
        """Run the model on the current leaves; it gets copies of inputs that it changes."""
        mutated = {id(leaf) for name, leaf in self._question.names.items() if name in self._question.mutates}

        def fresh(leaf: Any) -> Any:
            return leaf.clone() if id(leaf) in mutated else leaf

        args, kwargs = pytree.tree_map(fresh, (self._question.call.args, dict(self._question.call.kwargs)))
        process_state.seed_draws(self._question.changes_state)
        with torch.enable_grad(), process_state.restored():
            return self._model(*args, **kwargs)

    def _outputs(self, frozen: Frozen) -> Tensors:
        """The finite elements of all floating outputs, except those that a convention exempts."""
        self._reset_state()
        with frozen():
            returned = containers.tensors_of(self._run_model())
        outputs = {}
        for name, tensor in returned.items():
            truth = self._first.tensors.get(name)
            if truth is None or tensor is None or not inputs.is_rounded(tensor) or self._conventions.exempt(name):
                continue
            finite = truth.isfinite()
            if bool(finite.any()):
                outputs[name] = tensor if bool(finite.all()) else tensor[finite]
        return outputs

    def _function(self, frozen: Frozen) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The model as a function for gradcheck.

        gradcheck changes the leaves in place, so the function uses these and ignores its arguments.
        """
        return lambda *_: tuple(t for t in self._outputs(frozen).values() if t.requires_grad)


@contextlib.contextmanager
def _without_slow_mode() -> Iterator[None]:
    """A context in which a failing fast gradcheck does not test each number after all, to word its message."""
    module = sys.modules[gradcheck.__module__]
    name = "_run_slow_mode_and_get_error"
    if not hasattr(module, name):
        yield
        return
    with mock.patch.object(module, name, return_value=""):
        yield


def _on_plain_memory(oracle: Oracle, question: Question) -> Question:
    """The same question on contiguous copies: gradcheck refuses tensors that overlap themselves."""
    copied: dict[int, torch.Tensor] = {}

    def plain(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return copied.setdefault(id(leaf), leaf.detach().clone(memory_format=torch.contiguous_format))

    args, kwargs = pytree.tree_map(plain, (question.pristine.args, dict(question.pristine.kwargs)))
    call = Call(args, kwargs)
    return replace(question, call=call, names=inputs.named_inputs(oracle.namer, call))


def _renew(model: torch.nn.Module) -> None:
    """Give a module's buffers and frozen parameters new memory. Those of a ScriptModule cannot be replaced."""
    new: dict[int, torch.Tensor] = {}
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for name, buffer in module._buffers.items():  # noqa: SLF001 -- setting the attribute may run the model's code
            if buffer is not None:
                module._buffers[name] = new.setdefault(id(buffer), buffer.detach().clone())  # noqa: SLF001
        for name, parameter in module._parameters.items():  # noqa: SLF001
            if parameter is not None and not parameter.requires_grad:
                copied = torch.nn.Parameter(parameter.detach().clone(), requires_grad=False)
                module._parameters[name] = new.setdefault(id(parameter), copied)  # type: ignore[assignment]  # noqa: SLF001


def _told(wrong: list[Mismatch]) -> str:
    """What is wrong with the first gradient, what that looks like, and the names of the others."""
    first = wrong[0]
    low, high = (f"{value:.6g}" for value in first.numeric)
    numeric = low if low == high else f"{low} to {high}"
    others = f"; also wrong: the gradient of {', '.join(m.tensor for m in wrong[1:])}" if len(wrong) > 1 else ""
    zero = max(abs(value) for value in first.numeric) < UNCHANGED
    if zero:
        guess, way = "the outputs do not change with it: a straight-through estimator?", "why=…"
    elif not first.analytic:
        guess, way = "the outputs change with it: a detached path, or padding?", "rows=…, zero=True, why=…"
    else:
        guess, way = "a wrong backward?", "why=…"
    return (
        f"Jacobian mismatch: gradient of {first.tensor} at {first.index} is {first.analytic:.6g}, finite differences "
        f"give {numeric}{others}; {guess} If it is by design, declare surrogate_gradient or "
        f'Convention(tensor="{first.tensor}", {way})'
    )
