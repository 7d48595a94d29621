"""Runs the oracle, with which every cell is compared: the eager model in float64 on the CPU."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

import torch

from conformance.errors import NoOracleError, call_theirs
from conformance.evaluate import (
    backward,
    containers,
    error_text,
    evaluation,
    inputs,
    process_state,
    transforms,
    weights,
)
from conformance.evaluate.evaluation import Evaluation, Question, question_of
from conformance.float64 import copies, replacements
from zoo import Call, Case, Spec, SpecError, internals

CASTS = {torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16}
REFUSALS = (RuntimeError, AssertionError, torch.jit.Error)  # what a model raises if it knows no float64
SAME_BITS = {torch.Tensor.view}  # a dtype argument reinterprets the bits and does not convert
UNCHANGED = contextlib.nullcontext()
FORMULAS = {replacements.FUNCTION: replacements.attention, replacements.BRANCH: replacements.branch} | dict.fromkeys(
    replacements.FUNCTIONS, replacements.grouped_mm
)


class Widened(torch.overrides.TorchFunctionMode):
    """Turns every cast to a floating dtype into one to float64, and widens float32 and narrower constants.

    Casts inside a model (`.float()`, `dtype=torch.float32`) must not lower the precision of the oracle.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in CASTS:
            return args[0].double()
        if func in SAME_BITS or getattr(func, "__name__", "") in ("__get__", "__set__"):
            return func(*args, **kwargs)
        args, kwargs = (replacements.recast(given, replacements.WIDE) for given in (args, kwargs))
        return FORMULAS.get(func, func)(*args, **kwargs)


@contextlib.contextmanager
def widen(*, ops: bool = False, draws: bool = False) -> Iterator[None]:
    """A context in which torch computes in float64, also for casts and constants of lower precision.

    TorchScript does not optimise in it, because it would specialise its code for the dtypes of earlier calls. With
    `ops`, graphs of TorchScript and of `torch.export` compute in float64 inside too. With `draws`, random numbers are
    drawn in float32. Each costs time in every op.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with (
            torch.jit.optimized_execution(False),  # type: ignore[attr-defined]
            replacements.plain_branches(),
            backward.plain_checkpoints(),
            replacements.without_validation(),
            Widened(),
            replacements.NarrowDraws() if draws else UNCHANGED,
            replacements.WidenedOps() if ops else UNCHANGED,
        ):
            yield
    finally:
        torch.set_default_dtype(default)


def prepared_model(spec: Spec, seed: int, build: Callable[..., Any] | None = None) -> Any:
    """Build a model, of the spec or by another builder, with seeded weights that every precision represents exactly."""
    torch.manual_seed(seed)
    model = spec.initialised(call_theirs(build or spec.build))
    inputs.round_weights(model)
    return model


def wide_call(call: Call) -> Call:
    """The arguments in float64."""
    return inputs.place(call, convert=lambda t: t.to(inputs.widest(t.dtype)))


def prepared_reference(spec: Spec, seed: int, model: Any) -> Any:
    """Build the trusted implementation that a spec names as its reference, with the weights of a model.

    The model is on the CPU, from `prepared_model` with the same seed.

    Raises:
        SpecError: it cannot be built, or has other parameters or buffers than the model.
    """
    try:
        trusted = prepared_model(spec, seed, spec.reference)
    except Exception as problem:  # a builder may raise anything
        raise SpecError(
            f"{spec.name}: the trusted reference cannot be built: {error_text.describe_error(problem)}"
        ) from problem
    if not callable(trusted):
        raise SpecError(f"{spec.name}: reference built a {type(trusted).__name__}; want a module or a function")
    copies.adopt_state(trusted, model, f"the trusted reference of {spec.name}", any_width=True)
    return trusted


class Oracle:
    """The float64 model of one spec and seed, or its trusted implementation.

    Attributes:
        spec, seed: the spec, and the seed of weights, inputs and cotangents.
        model: the model in float64; a plain function as it is.
        namer: the model that names the inputs; in every cell, the model under test does.
        state: the parameters and buffers from which every run starts, in the dtypes of the cells, which float64 holds.
        kept: names of the buffers and frozen parameters that further draws leave as they are; see `tables`.
        draws: whether it draws random numbers.
    """

    def __init__(self, spec: Spec, seed: int) -> None:
        self.spec = spec
        self.seed = seed
        self.namer = self._narrow = prepared_model(spec, seed)
        if spec.trusts_model:
            self._narrow = prepared_reference(spec, seed, self.namer)
        self.model = wide_model(self._narrow)
        self.state = _state_apart(self._narrow, self.model)
        self.kept: tuple[str, ...] = ()
        self._memory, self._remembers = ModuleMemory(self.model), False
        self._watched = self._ops = replacements.has_graph(self.model)
        self.draws, self._differentiates = process_state.DRAWS in spec.changes_state, spec.differentiable

    def starting_from(self, state: dict[str, torch.Tensor]) -> "Oracle":
        """The same oracle, whose runs start from other parameters and buffers, in any dtype."""
        other = copy.copy(self)
        other.state = state
        return other

    def built_anew(self) -> "Oracle":
        """The same oracle, with a model that no call has changed. The parameters of both lie in the same memory."""
        other = Oracle(self.spec, self.seed)
        other.namer, other._narrow, other.state = self.namer, self._narrow, self.state  # which are large
        own, apart = weights.parameters_of(self.model), weights.sharing_memory(self.namer)
        for name, parameter in weights.parameters_of(other.model).items():
            if name not in apart:
                parameter.data = own[name].data  # each run sets them first
        return other

    def widened(self) -> contextlib.AbstractContextManager[None]:
        """The context in which this model computes in float64."""
        process_state.seed_draws(self.spec.changes_state, self.model)
        return widen(ops=self._ops, draws=self.draws)

    def question(self, case: Case, picks: inputs.Picks) -> Question:
        """The question that every run of a case answers, with arguments in float64."""
        return question_of(self.spec, case, self.seed, picks, wide_call, self.namer)

    def evaluate(
        self, question: Question, mode: contextlib.AbstractContextManager[Any] = UNCHANGED, *, noted: bool = False
    ) -> Evaluation:
        """Outputs, gradients, buffers and, if the question asks for them, second derivatives and transforms.

        The mode, which changes the ops of the model, is entered more than once. For `noted`, see `evaluation.evaluate`.
        """
        if self._watched:
            found = self._evaluate(self.model, question, mode, noted=noted)
        else:
            found = self._first_evaluation(question, mode, noted=noted)
        if question.second:
            self.reset()
            with mode, self.widened():
                found.tensors |= evaluation.differentiate_twice(self.model, self.model, question)
        if question.stacked is not None or question.forward_mode:
            with mode, self.widened():
                found.tensors |= transforms.of_oracle(self.model, question, self.reset)
        return found

    def _evaluate(
        self, call: Callable[..., Any], question: Question, mode: contextlib.AbstractContextManager[Any], *, noted: bool
    ) -> Evaluation:
        @contextlib.contextmanager
        def around() -> Iterator[None]:
            with mode, self.widened():
                yield

        self.reset()
        return evaluation.evaluate(call, self.model, replace(question, around=around), noted=noted)

    def _first_evaluation(
        self, question: Question, mode: contextlib.AbstractContextManager[Any], *, noted: bool
    ) -> Evaluation:
        """Evaluate, and see whether Python code calls scripted functions, or draws from a generator of its own."""
        watch = replacements.NarrowWatch()

        def watched(*args: Any, **kwargs: Any) -> Any:
            with watch:
                return self.model(*args, **kwargs)

        found = self._evaluate(watched, question, mode, noted=noted)
        again = watch.seen or (watch.draws and not self.draws)
        self._ops, self.draws, self._watched = watch.seen, self.draws or watch.draws, True
        return self._evaluate(self.model, question, mode, noted=noted) if again else found

    def forward(self, case: Case, call: Call) -> None:
        """Run one draw of a case forward, for the dispatch modes that watch it.

        Raises:
            NoOracleError: the model runs in float32 and not in float64.
            SpecError: the model does not run at all.
        """
        wide = wide_call(call)
        self.reset()
        self._ask_gradients(wide)
        try:
            with self.widened(), torch.set_grad_enabled(self._differentiates):
                inputs.invoke(self.model, wide)
        except REFUSALS as problem:
            if not self._watched:  # a scripted function inside Python code may have mixed the dtypes
                self._ops = self._watched = True
                self.forward(case, call)
            elif not self._differentiates:  # forward may call backward itself
                self._differentiates = True
                self.forward(case, call)
            else:
                self._explain(problem, case, call)

    def _ask_gradients(self, call: Call) -> None:
        """Let the inputs require gradients as an evaluation does: a kink counts if a gradient flows through it."""
        for name, leaf in inputs.named_inputs(self.model, call).items():
            if inputs.is_rounded(leaf) and name not in self.spec.mutates:
                leaf.requires_grad_(self.spec.differentiable and name not in self.spec.constants)

    def _explain(self, problem: Exception, case: Case, call: Call) -> NoReturn:
        if error_text.is_out_of_memory(problem):
            raise problem
        where = f"case {case.name}{' of the reference' if self.spec.trusts_model else ''}"
        self._ask_gradients(call)
        try:
            inputs.invoke(self._narrow, call)
        except Exception:  # noqa: BLE001 -- it fails in float32 too, so the spec is wrong
            raise SpecError(f"{where}: {error_text.describe_error(problem)}") from problem
        text = f"{where} runs in float32 but not in float64: {error_text.one_line(problem)}"
        if replacements.has_graph(self.model):
            text += "; the model is a graph made for float32, so name the eager module as the reference"
        raise NoOracleError(text) from problem

    def reset(self) -> None:
        """Restore the model's parameters and buffers. The next call makes anew what a call has made."""
        if not self._remembers:
            self.forget()
        weights.reset(self.model, self.state, tables=not self._remembers)

    @contextlib.contextmanager
    def remembering(self) -> Iterator[None]:
        """A context in which the model keeps what calls have left in it, as it does for its user."""
        self._remembers = True
        try:
            yield
        finally:
            self._remembers = False

    def forget(self) -> None:
        """Take away what calls have left in the model, such as a table that the first one has made."""
        self._memory.restore()


def _state_apart(model: Any, run: Any) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a model that nothing runs; copies of what shares memory with the one that runs."""
    ran, held = ({**weights.parameters_of(owner), **weights.buffers_of(owner)} for owner in (run, model))
    shared = {containers.home(tensor.untyped_storage()) for tensor in ran.values()}
    return {
        name: tensor.detach().clone() if containers.home(tensor.untyped_storage()) in shared else tensor.detach()
        for name, tensor in held.items()
    }


def wide_model(model: Any) -> Any:
    """A float64 copy of a module, complex numbers kept complex; a function as it is."""
    if not isinstance(model, torch.nn.Module):
        return model
    wide = copies.copy_model(model)
    replacements.widen_constants(wide)
    return internals.apply_to_tensors(wide)(lambda t: t.to(inputs.widest(t.dtype)))  # .double() drops imaginary parts


# Forgets what calls have left in a module: new or other attributes, late buffers, and what lists and dicts hold.
#
# A model may compute a table in its first call and keep it. If its weights change, or the roundings of the oracle, it
# has to compute the table again.


class ModuleMemory:
    """What a module holds before its first call, with its parts. A plain function holds nothing."""

    def __init__(self, owner: Any) -> None:
        modules = owner.modules() if isinstance(owner, torch.nn.Module) else ()
        self._held: list[tuple[Any, Any]] = []
        for module in modules:
            if not isinstance(module, torch.jit.ScriptModule):
                own = vars(module)
                checked = internals.BACKWARD_HOOKS  # a check may hold these
                held = [own, *(value for name, value in own.items() if name not in checked)]
                self._held += [(v, [*v] if isinstance(v, list) else {**v}) for v in held if isinstance(v, (dict, list))]

    def restore(self) -> None:
        """Put everything back that is not a number of a tensor."""
        for held, before in self._held:
            if isinstance(held, list):
                if len(held) != len(before) or any(new is not old for new, old in zip(held, before, strict=True)):
                    held[:] = before
            elif held.keys() != before.keys() or any(held[name] is not value for name, value in before.items()):
                held.clear()
                held.update(before)
