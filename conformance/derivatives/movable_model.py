"""Runs a model of the oracle again and again from the same state, on leaves that finite differences move in place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from conformance.derivatives.conventions import Conventions
from conformance.derivatives.frozen_state import freeze
from conformance.derivatives.slopes import differ, random_direction, sides
from conformance.evaluate import containers, inputs, process_state, weights
from conformance.evaluate.custom_ops import OpMode, written_tensors
from conformance.evaluate.evaluation import Evaluation, Question
from conformance.evaluate.memory_sharing import home
from conformance.float64.wide import Oracle
from conformance.records.observation import TensorName
from zoo import internals
from zoo.case import Call

Tensors = dict[str, torch.Tensor]
MOVE = 1e-3  # of a number's size, or of the tensor's rms for a zero; large beside the steps of finite differences


class MovableModel:
    """The model of an oracle, whose inputs and parameters may be moved.

    Args:
        oracle: the oracle.
        question: the question of a case.
        first: what the oracle returned for it.

    Attributes:
        question: the same question on contiguous copies of the inputs.
        leaves: the inputs and parameters that may have a gradient, by name.
        conventions: what the spec declares of its gradients.
    """

    def __init__(self, oracle: Oracle, question: Question, first: Evaluation) -> None:
        self._oracle, self._model, self._first = oracle, oracle.model, first
        self._renewed = False
        self._frozen: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
        self.question = _on_plain_memory(oracle, question)
        parameters = dict(self._model.named_parameters()) if isinstance(self._model, torch.nn.Module) else {}
        self.leaves = {
            name: leaf
            for name, leaf in {**self.question.names, **parameters}.items()
            if TensorName("gradient", name) in first.tensors and leaf.numel()
        }
        for leaf in self.leaves.values():
            leaf.requires_grad_()
        self.conventions = Conventions(oracle.spec.conventions, {*self.leaves, *first.requires_grad})
        written = {name: leaf for name, leaf in self.leaves.items() if name in parameters and name in question.mutates}
        oracle.reset()
        after = (first.tensors[TensorName("after", name)] for name in written)
        set_to([*written.values()], [t for t in after if t is not None])
        self._kept = partial(unwritten, self._model, [*written.values()]) if written else contextlib.nullcontext

    def freeze(self, *, stops: bool = False) -> bool:
        """Hold the state that forward updates at the values of one run from here on; False if there is nothing to hold.

        Args:
            stops: also hold what forward takes out of autograd.
        """
        self._renewed = True
        frozen = freeze(self._reset_state, self.run, self._state, stops=stops)
        self._frozen = frozen or self._frozen
        return frozen is not None

    def stops_gradients(self, generator: torch.Generator) -> bool:
        """Whether outputs change by way of what forward takes out of autograd, apart from the state.

        Args:
            generator: of the direction in which all leaves are moved.
        """
        before, slopes = self._frozen, []
        directions = {leaf: random_direction(leaf, generator) for leaf in self.leaves.values()}
        for stops in (False, True):
            self.freeze(stops=stops)
            slopes.append(sides(self.outputs, directions))
        self._frozen = before
        return differ(*slopes)

    def _state(self) -> list[torch.Tensor]:
        """The buffers, and the parameters that only forward's own code changes."""
        if not isinstance(self._model, torch.nn.Module):
            return []
        return [*self._model.buffers(), *(p for p in self._model.parameters() if not p.requires_grad)]

    def _reset_state(self) -> None:
        """Restore the state before a run, in new memory if forward writes it: backward may need what it was."""
        if not isinstance(self._model, torch.nn.Module):
            return
        self._oracle.forget()
        if self._renewed:
            _renew(self._model)
        weights.reset_buffers(self._model, self._oracle.state, tables=True)
        for name, parameter in self._model.named_parameters():
            if not parameter.requires_grad:
                parameter.data.copy_(self._oracle.state[name])

    def run(self) -> Any:
        """Run the model on the current leaves; it gets copies of inputs that it changes, and changes no other leaf."""
        mutated = {id(leaf) for name, leaf in self.question.names.items() if name in self.question.mutates}

        def fresh(leaf: Any) -> Any:
            return leaf.clone() if id(leaf) in mutated else leaf

        args, kwargs = internals.tree_map(fresh, (self.question.call.args, dict(self.question.call.kwargs)))
        process_state.seed_draws(self.question.changes_state, self._model)
        with torch.enable_grad(), process_state.keep_switches(), self._kept():
            return self._model(*args, **kwargs)

    def outputs(self) -> Tensors:
        """The finite elements of all floating outputs, except those that a convention exempts."""
        self._reset_state()
        with self._frozen():
            returned = containers.tensors_of(self.run())
        outputs = {}
        for name, tensor in returned.items():
            truth = self._first.tensors.get(TensorName("output", name))
            if truth is None or tensor is None or not inputs.is_rounded(tensor) or self.conventions.exempt(name):
                continue
            finite = truth.isfinite()
            if bool(finite.any()):
                outputs[name] = tensor if bool(finite.all()) else tensor[finite]
        return outputs


def set_to(leaves: list[torch.Tensor], numbers: list[torch.Tensor]) -> None:
    """Give leaves other numbers, in place."""
    with torch.no_grad():
        for leaf, number in zip(leaves, numbers, strict=True):
            leaf.copy_(number)


def move(numbers: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The numbers, each a little larger or smaller."""
    real = torch.view_as_real(numbers.resolve_conj()) if numbers.is_complex() else numbers
    noise = torch.rand(real.shape, generator=generator, dtype=torch.float64).sub_(0.5).mul_(2.0 * MOVE)
    rms = float(real.square().mean().sqrt()) or 1.0
    moved = real + noise * real.abs().where(real != 0, rms)
    return torch.view_as_complex(moved) if numbers.is_complex() else moved


def _on_plain_memory(oracle: Oracle, question: Question) -> Question:
    """The same question on contiguous copies: gradcheck refuses tensors that overlap themselves."""
    copied: dict[int, torch.Tensor] = {}

    def plain(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
            return leaf
        return copied.setdefault(id(leaf), leaf.detach().clone(memory_format=torch.contiguous_format))

    args, kwargs = internals.tree_map(plain, (question.pristine.args, dict(question.pristine.kwargs)))
    call = Call(args, kwargs)
    return replace(question, call=call, names=inputs.named_inputs(oracle.namer, call))


def _renew(model: torch.nn.Module) -> None:
    """Give a module's buffers and frozen parameters new memory. Those of a ScriptModule cannot be replaced."""
    new: dict[int, torch.Tensor] = {}
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        buffers, parameters = internals.buffers_of(module), internals.parameters_of(module)
        for name, buffer in buffers.items():  # setting the attribute may run the model's code
            if buffer is not None:
                buffers[name] = new.setdefault(id(buffer), buffer.detach().clone())
        for name, parameter in parameters.items():
            if parameter is not None and not parameter.requires_grad:
                copied = torch.nn.Parameter(parameter.detach().clone(), requires_grad=False)
                parameters[name] = new.setdefault(id(parameter), copied)


# Keeps forward from writing a model's parameters, so that they can be moved.
#
# A parameter may get its value in forward, as weights that are clipped, or an embedding with `max_norm`. Its gradient
# is the one at that value: to write it is no part of what autograd differentiates.

SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]  # a C descriptor has it


@contextlib.contextmanager
def unwritten(model: torch.nn.Module, written: list[torch.nn.Parameter]) -> Iterator[None]:
    """A context for one run, in which the model has copies of some parameters in their place, and writes none of them.

    The copies are made for autograd too, so gradients reach the parameters. Those of a ScriptModule cannot be replaced.

    Args:
        model: the model.
        written: the parameters.
    """
    copies = {id(parameter): parameter.clone() for parameter in written}
    with contextlib.ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            own = internals.parameters_of(module)  # setting the attribute refuses what is no Parameter
            stack.callback(own.update, dict(own))
            own.update({name: copies.get(id(parameter), parameter) for name, parameter in own.items()})
        stack.enter_context(_Undone([*copies.values()]))
        stack.enter_context(_Unset([*copies.values()]))
        yield


class _Undone(OpMode):
    """While active, ops that write some tensors leave them as they were."""

    def __init__(self, kept: list[torch.Tensor]) -> None:
        super().__init__()
        self._homes = {home(tensor.untyped_storage()) for tensor in kept}

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op, and undo what it writes."""
        written = [t for t in written_tensors(func, args, kwargs) if home(t.untyped_storage()) in self._homes]
        before = [tensor.clone() for tensor in written]
        result = func(*args, **kwargs)
        for tensor, numbers in zip(written, before, strict=True):
            tensor.copy_(numbers)
        return result


class _Unset(TorchFunctionMode):
    """While active, some tensors do not get other memory by `tensor.data = …`."""

    def __init__(self, kept: list[torch.Tensor]) -> None:
        super().__init__()
        self._kept = kept

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func == SET_DATA and any(args[0] is tensor for tensor in self._kept):
            return None
        return func(*args, **(kwargs or {}))
