"""The truth that every cell is held to: the eager model in float64 on the CPU."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from conformance.errors import NoOracleError
from conformance.oracle import evaluation, inputs
from conformance.oracle.error_text import is_out_of_memory, one_line
from conformance.oracle.evaluation import Evaluation, Question
from zoo.case import Call, Case, SpecError
from zoo.spec import Spec

NARROW = (torch.float16, torch.bfloat16, torch.float32)
CASTS = {torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16}
SAME_BITS = {torch.Tensor.view}  # a dtype here reinterprets and does not convert


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
        state: its parameters and buffers as every run finds them.
    """

    def __init__(self, spec: Spec, seed: int) -> None:
        self.spec = spec
        self.seed = seed
        self._narrow = prepared_model(spec, seed)
        self.model = wide_model(self._narrow)
        self.state = evaluation.state_of(self.model)

    def question(self, case: Case, picks: inputs.Picks) -> Question:
        """What every run of a case is asked, here in float64."""
        return question_of(self.spec, case, self.seed, picks, wide_call, self.model)

    def evaluate(self, question: Question) -> Evaluation:
        """Outputs, gradients, buffers and, where claimed, second derivatives."""
        self.reset()
        with widened():
            found = evaluation.evaluate(self.model, self.model, question)
            if question.second:
                self.reset()
                found.tensors |= evaluation.differentiate_twice(self.model, self.model, question)
        return found

    def forward(self, case: Case, call: Call) -> None:
        """Run one draw of a case forward, for the dispatch modes that watch it.

        Raises:
            NoOracleError: it runs in float32 and not in float64.
            SpecError: it does not run at all.
        """
        wide = wide_call(call)
        self.reset()
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

    def reset(self) -> None:
        """Put parameters and buffers back."""
        evaluation.reset(self.model, self.state)


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
        call,
        pristine,
        names,
        (seed, case.name),
        differentiate=spec.differentiable,
        second=spec.twice_differentiable,
        mutates=spec.mutates,
        fit=spec.fit,
    )


def wide_model(model: Any) -> Any:
    """A float64 copy of a module, complex numbers kept complex; a function as it is."""
    if not isinstance(model, torch.nn.Module):
        return model
    wide = copy.deepcopy(model)
    return wide._apply(lambda t: t.to(inputs.widest(t.dtype)))  # noqa: SLF001 -- .double() drops imaginary parts
