"""Runs a model of the oracle again and again from the same state, on leaves that finite differences move in place."""

import contextlib
import linecache
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from conformance.derivatives.slopes import differ, random_direction, set_to, sides
from conformance.errors import SelfCheckError, one_line
from conformance.evaluate import containers, custom_ops, evaluation, inputs, process_state, weights
from conformance.evaluate.containers import home
from conformance.float64.wide import Oracle
from conformance.perturb.kinks import applications_watched, frames
from conformance.records.cell import TensorName
from zoo import Call, Convention, SpecError, internals

Tensors = dict[str, torch.Tensor]
NO_MODELS = tuple(f"{folder}{os.sep}" for folder in (*torch.__path__, Path(__file__).parents[1]))  # whose code is ours
MOVE = 1e-3  # of a number's size, or of the tensor's rms for a zero; large beside the steps of finite differences


class MovableModel:
    """The model of an oracle, whose inputs and parameters may be moved.

    Attributes:
        question: the question of a case, on contiguous copies of the inputs.
        leaves: the inputs and parameters that may have a gradient, by name.
        conventions: what the spec declares of its gradients.
    """

    def __init__(self, oracle: Oracle, question: evaluation.Question, first: evaluation.Evaluation) -> None:
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
        set_to(written.values(), (t for t in after if t is not None))
        self._kept = partial(unwritten, self._model, [*written.values()]) if written else contextlib.nullcontext

    def freeze(self, *, stops: bool = False) -> bool:
        """Hold the state that forward updates at the values of one run from here on; False if there is nothing to hold.

        With `stops`, also hold what forward takes out of autograd.
        """
        self._renewed = True
        frozen = freeze(self._reset_state, self.run, self._state, stops=stops)
        self._frozen = frozen or self._frozen
        return frozen is not None

    def stops_gradients(self, generator: torch.Generator, names: Collection[str] = ()) -> bool:
        """Whether outputs change by way of what forward takes out of autograd, apart from the state.

        Some leaves, or all, are moved in one direction, which the generator draws.
        """
        slopes = []
        directions = {
            self.leaves[name]: random_direction(self.leaves[name], generator) for name in names or self.leaves
        }
        with self.state_held():
            slopes.append(sides(self.outputs, directions))
            self.freeze(stops=True)
            slopes.append(sides(self.outputs, directions))
        return differ(*slopes)

    @contextlib.contextmanager
    def state_held(self) -> Iterator[None]:
        """A context in which the state alone is held."""
        before = self._frozen
        self.freeze()
        try:
            yield
        finally:
            self._frozen = before

    def stop_of(self, name: str) -> str:
        """Where forward takes what comes of one leaf out of autograd; "" if no line of the model does.

        That is the place and the line, such as "net.py:12, y = x.detach()".
        """
        self._reset_state()
        others = [leaf for other, leaf in self.leaves.items() if other != name]
        try:
            for leaf in others:
                leaf.requires_grad_(False)
            with applications_watched() as applying, _LastStop(applying) as found:
                self.run()
        finally:
            for leaf in others:
                leaf.requires_grad_()
        return found.place

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


def move(numbers: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The numbers, each a little larger or smaller."""
    real = torch.view_as_real(numbers.resolve_conj()) if numbers.is_complex() else numbers
    noise = torch.rand(real.shape, generator=generator, dtype=torch.float64).sub_(0.5).mul_(2.0 * MOVE)
    rms = float(real.square().mean().sqrt()) or 1.0
    moved = real + noise * real.abs().where(real != 0, rms)
    return torch.view_as_complex(moved) if numbers.is_complex() else moved


def _on_plain_memory(oracle: Oracle, question: evaluation.Question) -> evaluation.Question:
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


class _Undone(custom_ops.OpMode):
    """While active, ops that write some tensors leave them as they were."""

    def __init__(self, kept: list[torch.Tensor]) -> None:
        super().__init__()
        self._homes = {home(tensor.untyped_storage()) for tensor in kept}

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op, and undo what it writes."""
        written = [
            t for t in custom_ops.written_tensors(func, args, kwargs) if home(t.untyped_storage()) in self._homes
        ]
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


# Holds what autograd takes as a constant at the values of one unperturbed run, so finite differences do so too.
#
# That is the state that forward updates, such as running averages, and what forward takes out of autograd: the results
# of `detach` and `item`, and of ops under `no_grad`.


# What an op gave in the recorded run, by its number: its name, whether it takes its results out of autograd, and these;
# else what it gave that writes the state, or something under `no_grad`, with None for what is free.
Held = dict[int, tuple[str, bool, Any]]


class FrozenState(custom_ops.OpMode):
    """While active, each op that was held gives what it gave in the recorded run."""

    def __init__(self, held: Held) -> None:
        super().__init__()
        self._held, self._number = held, -1

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op; if it is held, overwrite what it gave."""
        result = func(*args, **kwargs)
        self._number += 1
        name, stopped, kept = self._held.get(self._number, ("", False, None))
        if name != func.name():
            return result
        if stopped:
            return _copy(kept)
        for tensor, value in zip(_given(func, args, kwargs, result), kept, strict=True):
            if value is not None:
                tensor.copy_(value)
        return result


class _Record(custom_ops.OpMode):
    """Notes the memory of the tensors that each op gives: its results and what it writes. None of it is reused.

    It keeps no tensor: an op that writes to a tensor that somebody else holds may call another op more.

    Args:
        wanted: by number and name of an op whose values are held, whether each of the tensors that it gives is.
        applying: also hold what is taken out of autograd, unless this says that a custom Function is being applied.
    """

    def __init__(
        self,
        wanted: Mapping[tuple[int, str], Sequence[bool]] | None = None,
        applying: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__()
        self.given: list[tuple[str, list[torch.UntypedStorage]]] = []
        self.held: Held = {}
        self._wanted, self._applying = wanted or {}, applying

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stops = self._applying is not None and _stops(func, args, kwargs) and not self._applying()
        result = func(*args, **kwargs)
        given, number, name = _given(func, args, kwargs, result), len(self.given), func.name()
        wanted = self._wanted.get((number, name))
        if wanted is None and stops and custom_ops.written_names(func):
            wanted = [not tensor.requires_grad for tensor in given]
        if wanted is not None:
            values = [tensor.clone() if held else None for tensor, held in zip(given, wanted, strict=True)]
            self.held[number] = name, False, values
        elif stops:
            self.held[number] = name, True, _copy(result)
        self.given.append((name, [tensor.untyped_storage() for tensor in given]))
        return result


def _stops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an op takes a tensor out of autograd, unless a custom Function gives it a gradient all the same."""
    if torch.is_grad_enabled() and func not in (torch.ops.aten.detach.default, internals.item_op):
        return False
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in custom_ops.leaves_of((args, kwargs)))


class _LastStop(custom_ops.OpMode):
    """Notes which line of the model's code takes a tensor out of autograd, the last one that does."""

    def __init__(self, applying: Callable[[], bool]) -> None:
        super().__init__()
        self.place = ""
        self._applying = applying

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op."""
        if _stops(func, args, kwargs) and not self._applying():
            self.place = _line_of_model() or self.place
        return func(*args, **kwargs)


def _line_of_model() -> str:
    """The innermost line that runs and is neither torch's nor ours; "" if the model has none, as a script."""
    for frame in frames():
        if frame.f_code is MovableModel.run.__code__:
            break
        if not frame.f_code.co_filename.startswith(NO_MODELS):
            file, line = frame.f_code.co_filename, frame.f_lineno
            return f"{Path(file).name}:{line}, {one_line(linecache.getline(file, line))}"
    return ""


def _copy(result: Any) -> Any:
    return internals.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, result)


def freeze(
    reset: Callable[[], None], forward: Callable[[], Any], state: Callable[[], list[torch.Tensor]], *, stops: bool
) -> Callable[[], FrozenState] | None:
    """Record which ops of a forward write the state, and what they give.

    Args:
        reset: restores the state before each run.
        forward: runs the model once.
        state: returns the tensors of the state, which forward may replace by others.
        stops: also hold what forward takes out of autograd.

    Returns:
        A function that makes the mode for one run; None if there is nothing to hold.
    """
    reset()
    before = [tensor.untyped_storage() for tensor in state()]
    with _Record() as first:
        forward()
    homes = {home(memory) for memory in (*before, *(tensor.untyped_storage() for tensor in state()))}
    given = {(number, name): [home(m) in homes for m in memory] for number, (name, memory) in enumerate(first.given)}
    writes = {op: ours for op, ours in given.items() if any(ours)}
    if not writes and not stops:
        return None
    reset()
    with applications_watched() as applying, _Record(writes, applying if stops else None) as second:
        forward()
    if not second.held:
        return None
    return lambda: FrozenState(second.held)


def _given(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[torch.Tensor]:
    """The tensors that an op writes or returns; none of a view."""
    if func.is_view:
        return []
    returned = [t for t in internals.tree_leaves(result) if isinstance(t, torch.Tensor)]
    return [*custom_ops.written_tensors(func, args, kwargs), *returned]


# Applies the conventions that a spec declares, and torch's own for padding rows, to the check of gradients.


class Conventions:
    """The conventions of one spec.

    Args:
        declared: the conventions.
        names: names of the inputs, parameters and outputs that they may be about.

    Raises:
        SpecError: a convention names none of them.
    """

    def __init__(self, declared: tuple[Convention, ...], names: set[str]) -> None:
        self._declared = declared
        for convention in declared:
            if not any(convention.concerns(name) for name in names):
                known = ", ".join(sorted(names))
                raise SpecError(f"convention on {convention.tensor!r}: no such input, parameter or output; got {known}")

    def exempt(self, name: str) -> bool:
        """Whether a whole tensor is left out of the comparison with finite differences."""
        return any(c.is_whole and c.concerns(name) for c in self._declared)

    def concern(self, name: str) -> bool:
        """Whether any convention is about a tensor."""
        return any(c.concerns(name) for c in self._declared)

    def rows_of(self, name: str, leaf: torch.Tensor) -> torch.Tensor:
        """Mask of the elements of a tensor that are left out.

        Raises:
            SpecError: a row is not there.
        """
        mask = torch.zeros(leaf.shape, dtype=torch.bool)
        for convention in self._declared:
            if convention.concerns(name):
                if convention.rows and max(convention.rows) >= (leaf.shape[0] if leaf.dim() else 0):
                    raise SpecError(f"convention on {name}: no row {max(convention.rows)} in shape {tuple(leaf.shape)}")
                mask[list(convention.rows) if convention.rows else ...] = True
        return mask

    def check_zeros(self, first: evaluation.Evaluation) -> None:
        """Raise `SelfCheckError` if a gradient that is declared zero is not, in what the oracle returned."""
        for name, gradient in first.tensors.items():
            for convention in self._declared if name.kind == "gradient" else ():
                if gradient is None or not convention.zero or not convention.concerns(name.leaf):
                    continue
                part = gradient[list(convention.rows)] if convention.rows else gradient
                if part.count_nonzero():
                    raise SelfCheckError(f"{name} is declared zero ({convention.why}), but it is not; remove that")

    def padding_rows(self, forward: Callable[[], Any], leaves: Tensors) -> Tensors:
        """Masks of the rows that torch's `embedding` takes as padding and gives no gradient, when `forward` runs."""
        with _PaddingWatch() as watch:
            forward()
        masks = {name: torch.zeros(leaf.shape, dtype=torch.bool) for name, leaf in leaves.items()}
        for name, leaf in leaves.items():
            for row in watch.rows.get(leaf.data_ptr(), ()):
                masks[name][row] = True
        return masks


class _PaddingWatch(custom_ops.OpMode):
    """Notes the padding row of each table that is looked up, by the address of the table."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, set[int]] = {}

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is torch.ops.aten.embedding.default:
            table = args[0]
            padding = args[2] if len(args) > 2 else kwargs.get("padding_idx", -1)  # noqa: PLR2004 -- its third argument
            if padding >= 0:
                self.rows.setdefault(table.data_ptr(), set()).add(padding)
        return func(*args, **kwargs)
