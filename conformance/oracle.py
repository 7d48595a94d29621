"""The truth that every cell is held to: the eager model in float64 on the CPU, and its own trial."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from conformance import evaluation, inputs
from conformance.evaluation import Answer, Question
from conformance.failures import is_out_of_memory, one_line
from zoo import catalog
from zoo.spec import Call, Case, Spec, SpecError

AGREEMENT = 1e-9  # of two float64 formulas, relative to the norm
SMALL = 400  # numbers in all inputs and parameters, up to which gradcheck takes every one by itself
NARROW = (torch.float16, torch.bfloat16, torch.float32)
CASTS = {torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16}
SAME_BITS = {torch.Tensor.view}  # a dtype here reinterprets and does not convert


class NoOracleError(RuntimeError):
    """The model runs in float32 and not in float64."""


class TrialError(RuntimeError):
    """The oracle disagrees with itself, with the spec's reference or with finite differences."""


class RandomError(RuntimeError):
    """Two identical oracle runs differ."""


class Widened(TorchFunctionMode):
    """Turns every cast to a floating dtype into one to float64, and narrow constants with it.

    Casts inside a model (`.float()`, `dtype=torch.float32`) must not pull the oracle down.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in CASTS:
            return args[0].double()
        if func in SAME_BITS or getattr(func, "__name__", "") in ("__get__", "__set__"):
            return func(*args, **kwargs)
        return func(*pytree.tree_map(_widened, args), **pytree.tree_map(_widened, kwargs))


def _widened(leaf: Any) -> Any:
    if isinstance(leaf, torch.dtype) and (leaf in NARROW or leaf == torch.complex64):
        return inputs.widest(leaf)
    if isinstance(leaf, torch.Tensor) and (leaf.dtype in NARROW or leaf.dtype == torch.complex64):
        return leaf.to(inputs.widest(leaf.dtype))
    return leaf


@contextlib.contextmanager
def widened() -> Iterator[None]:
    """Everything inside computes in float64."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Widened():
            yield
    finally:
        torch.set_default_dtype(default)


def prepared_model(spec: Spec, seed: int, build: Callable[..., Any] | None = None) -> Any:
    """A model as every run of a cell or reference wants it: seeded, on representable weights."""
    torch.manual_seed(seed)
    model = (build or spec.build)()
    if spec.initialise is not None:
        with torch.no_grad():
            spec.initialise(model)
    inputs.round_weights(model)
    return model


def wide_call(call: Call) -> Call:
    """The arguments in float64."""
    return inputs.place(call, convert=lambda t: t.to(inputs.widest(t.dtype)))


class Oracle:
    """The float64 model of one spec and seed.

    Attributes:
        spec, seed: whose.
        model: in float64; a plain function as it is.
    """

    def __init__(self, spec: Spec, seed: int) -> None:
        self.spec = spec
        self.seed = seed
        self._narrow = prepared_model(spec, seed)
        self.model = _wide_model(self._narrow)
        self._state = evaluation.state_of(self.model)

    def question(self, case: Case, picks: inputs.Picks) -> Question:
        """What every run of a case is asked, here in float64."""
        return question_of(self.spec, case, self.seed, picks, wide_call, self.model)

    def answer(self, question: Question) -> Answer:
        """Outputs, gradients, buffers and, where claimed, second derivatives."""
        self._reset()
        with widened():
            found = evaluation.evaluate(self.model, self.model, question)
            if question.second:
                self._reset()
                found.tensors |= evaluation.differentiate_twice(self.model, self.model, question)
        return found

    def forward(self, case: Case, draw: int) -> None:
        """Run one draw of a case forward, for the dispatch modes that watch it.

        Raises:
            NoOracleError: it runs in float32 and not in float64.
            SpecError: it does not run at all.
        """
        call = inputs.draw_batch(case, self.seed, draw)
        wide = wide_call(call)
        self._reset()
        try:
            with widened(), torch.no_grad():
                self.model(*wide.args, **wide.kwargs)
        except RuntimeError as problem:
            self._explain(problem, case, call)

    def _explain(self, problem: RuntimeError, case: Case, call: Call) -> NoReturn:
        if is_out_of_memory(problem):
            raise problem
        try:
            self._narrow(*call.args, **call.kwargs)
        except Exception:  # noqa: BLE001 -- it fails in float32 too, so the first problem stands
            raise SpecError(f"case {case.name}: {type(problem).__name__}: {one_line(problem)}") from problem
        text = f"case {case.name} runs in float32 but not in float64: {one_line(problem)}"
        raise NoOracleError(text) from problem

    def try_outputs(self, question: Question, first: Answer) -> None:
        """The trial but for finite differences: run again, against the reference, surrogate and twin.

        Raises:
            RandomError: two identical runs differ.
            TrialError: outputs differ from the reference's or the twin's, or gradients from the surrogate's.
        """
        self._try_again(question, first)
        if self.spec.reference is not None:
            self._reset()
            inputs.restore(question.call, question.pristine)
            with widened(), torch.no_grad():
                wanted = self.spec.reference(self.model, *question.call.args, **question.call.kwargs)
            _agree("the spec's reference", inputs.named_leaves(wanted, "output"), first)
        if self.spec.surrogate_gradient is not None:
            self._try_surrogate(question, first)
        if self.spec.twin:
            self._try_twin(question, first)

    def _try_again(self, question: Question, first: Answer) -> None:
        again = self.answer(question).tensors
        for name, tensor in first.tensors.items():
            other = again.get(name)
            both = tensor is not None and other is not None
            if (tensor is None) != (other is None) or (both and not evaluation.same_bytes(tensor, other)):  # type: ignore[arg-type]
                raise RandomError(f"{name}: two identical float64 runs differ; global random state, or hidden state?")

    def _try_surrogate(self, question: Question, first: Answer) -> None:
        declared = self.spec.surrogate_gradient

        def surrogate(*args: Any, **kwargs: Any) -> Any:
            return declared(self.model, *args, **kwargs)  # type: ignore[misc]

        self._reset()
        with widened():
            wanted = evaluation.evaluate(surrogate, self.model, question)
        gradients = {name: t for name, t in wanted.tensors.items() if name.startswith(evaluation.FIRST)}
        _agree("the declared surrogate_gradient", gradients, first)

    def _try_twin(self, question: Question, first: Answer) -> None:
        twin = _wide_model(prepared_model(catalog.get_spec(self.spec.twin), self.seed))
        if isinstance(twin, torch.nn.Module):
            try:
                twin.load_state_dict(self._state)
            except RuntimeError as problem:
                raise TrialError(f"twin {self.spec.twin}: {problem}") from problem
        inputs.restore(question.call, question.pristine)
        with widened(), torch.no_grad():
            outputs = twin(*question.call.args, **question.call.kwargs)
        _agree(f"its twin {self.spec.twin}", inputs.named_leaves(outputs, "output"), first)

    def check_gradients(self, question: Question, gradients: Answer) -> None:
        """Finite differences, which alone see a wrong backward.

        Raises:
            TrialError: a gradient, or where the spec claims it a second derivative, is not the derivative.
        """
        question = self._on_plain_memory(question)
        prefix = f"{evaluation.FIRST} "
        named = {n.removeprefix(prefix) for n, t in gradients.tensors.items() if t is not None}
        owned = dict(self.model.named_parameters()) if isinstance(self.model, torch.nn.Module) else {}
        leaves = [t.requires_grad_() for name, t in {**question.names, **owned}.items() if name in named]
        if not leaves or any(t.numel() == 0 for t in leaves):
            return
        fast = sum(t.numel() for t in leaves) > SMALL
        checks: list[Callable[..., bool]] = [gradcheck, gradgradcheck]
        for check in checks if self.spec.twice_differentiable else checks[:1]:
            self._reset()
            try:
                with widened():
                    check(self._outputs(question, gradients), leaves, fast_mode=fast, nondet_tol=1e-12)
            except (GradcheckError, RuntimeError) as problem:
                advice = "; if that is by design, declare surrogate_gradient" if check is gradcheck else ""
                text = " ".join(str(problem).split())[:200]
                raise TrialError(f"{check.__name__} in float64: {text}{advice}") from problem

    def _on_plain_memory(self, question: Question) -> Question:
        """The same question on contiguous copies: gradcheck refuses tensors that overlap themselves."""
        copied: dict[int, torch.Tensor] = {}

        def plain(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            return copied.setdefault(id(leaf), leaf.detach().clone(memory_format=torch.contiguous_format))

        args, kwargs = pytree.tree_map(plain, (question.pristine.args, dict(question.pristine.kwargs)))
        call = Call(args, kwargs)
        return replace(question, call=call, names=inputs.named_inputs(self.model, call))

    def _outputs(self, question: Question, first: Answer) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The model as gradcheck wants it: its finite outputs.

        gradcheck changes the leaves in place, so the arguments are theirs; what the model itself changes is
        handed to it as a copy.
        """
        finite = {
            name: t.isfinite()
            for name, t in first.tensors.items()
            if name.startswith("output") and t is not None and inputs.is_rounded(t)
        }
        mutated = {id(leaf) for name, leaf in question.names.items() if name in question.mutates}

        def fresh(leaf: Any) -> Any:
            return leaf.clone() if id(leaf) in mutated else leaf

        def outputs(*_: torch.Tensor) -> tuple[torch.Tensor, ...]:
            evaluation.reset_buffers(self.model, self._state)
            args, kwargs = pytree.tree_map(fresh, (question.call.args, dict(question.call.kwargs)))
            returned = inputs.named_leaves(self.model(*args, **kwargs), "output")
            return tuple(
                t if bool(finite[name].all()) else t[finite[name]]
                for name, t in returned.items()
                if inputs.is_rounded(t) and t.requires_grad and bool(finite[name].any())
            )

        return outputs

    def _reset(self) -> None:
        evaluation.reset(self.model, self._state)


def question_of(  # noqa: PLR0913 -- one question, asked in two places
    spec: Spec,
    case: Case,
    seed: int,
    picks: inputs.Picks,
    convert: Callable[[Call], Call],
    model: Any,
) -> Question:
    """The question of one case, its inputs drawn afresh and taken through `convert`."""
    call = convert(inputs.draw(case, seed, picks))
    pristine = inputs.place(call, convert=lambda t: t)
    names = inputs.named_inputs(model, call)
    return Question(
        call, pristine, names, (seed, case.name), spec.differentiable, spec.twice_differentiable, spec.mutates
    )


def _wide_model(model: Any) -> Any:
    """A float64 copy of a module, complex numbers kept complex; a function as it is."""
    if not isinstance(model, torch.nn.Module):
        return model
    wide = copy.deepcopy(model)
    return wide._apply(lambda t: t.to(inputs.widest(t.dtype)))  # noqa: SLF001 -- .double() drops imaginary parts


def _agree(whose: str, wanted: dict[str, Any], found: Answer) -> None:
    for name, theirs in wanted.items():
        ours = found.tensors.get(name)
        if theirs is None and ours is None:
            continue
        if not isinstance(theirs, torch.Tensor) or ours is None or theirs.shape != ours.shape:
            raise TrialError(f"{name}: {whose} gives {_shape(theirs)}, the float64 oracle {_shape(ours)}")
        if not inputs.is_rounded(ours):
            same = torch.equal(theirs, ours)
        else:
            gap, size = _norm(theirs - ours), _norm(ours)
            same = gap <= AGREEMENT * max(size, 1e-3) and torch.equal(theirs.isfinite(), ours.isfinite())
        if not same:
            raise TrialError(f"{name}: the float64 oracle differs from {whose}")


def _norm(tensor: torch.Tensor) -> float:
    """Of the finite elements."""
    return float(tensor.abs().nan_to_num(0.0, 0.0, 0.0).square().sum().sqrt())


def _shape(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
