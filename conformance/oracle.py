"""The truth that every cell is held to: the eager model in float64 on the CPU, and its own trial."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from conformance import evaluation, inputs
from conformance.evaluation import Answer, Question
from zoo.spec import Call, Spec

AGREEMENT = 1e-9  # of two float64 formulas, relative to the norm
SMALL = 400  # numbers in all inputs and parameters, up to which gradcheck takes every one by itself
NARROW = (torch.float16, torch.bfloat16, torch.float32)
CASTS = {torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16}
SAME_BITS = {torch.Tensor.view}  # a dtype here reinterprets and does not convert


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


def wide_model(model: Any) -> Any:
    """A float64 copy of a module, complex numbers kept complex; a function as it is."""
    if not isinstance(model, torch.nn.Module):
        return model
    wide = copy.deepcopy(model)
    return wide._apply(lambda t: t.to(inputs.widest(t.dtype)))  # noqa: SLF001 -- .double() drops imaginary parts


def wide_call(call: Call) -> Call:
    return inputs.place(call, convert=lambda t: t.to(inputs.widest(t.dtype)))


def answer(model: Any, spec: Spec, question: Question, state: dict[str, torch.Tensor]) -> Answer:
    """Outputs, gradients, buffers and, where claimed, second derivatives of a float64 model."""
    evaluation.reset(model, state)
    with widened():
        found = evaluation.evaluate(model, model, question)
        if question.second:
            evaluation.reset(model, state)
            found.tensors |= evaluation.differentiate_twice(model, model, question)
    return found


def try_oracle(model: Any, spec: Spec, question: Question, state: dict[str, torch.Tensor], first: Answer) -> None:
    """The oracle's own trial, but for finite differences: run again, and against the spec's reference.

    Raises:
        RandomError: two identical runs differ.
        TrialError: outputs differ from the reference's, or gradients from the surrogate's.
    """
    again = answer(model, spec, question, state)
    for name, tensor in first.tensors.items():
        other = again.tensors.get(name)
        if (tensor is None) != (other is None) or (
            tensor is not None and other is not None and not evaluation.same_bytes(tensor, other)
        ):
            raise RandomError(f"{name}: two identical float64 runs differ; global random state, or hidden state?")
    if spec.reference is not None:
        evaluation.reset(model, state)
        with widened(), torch.no_grad():
            wanted = spec.reference(model, *question.call.args, **question.call.kwargs)
        _agree("the spec's reference", inputs.named_leaves(wanted, "output"), first)
    if spec.surrogate_gradient is not None:
        _check_surrogate(model, spec, question, state, first)


def check_twin(twin: Any, spec: Spec, question: Question, state: dict[str, torch.Tensor], first: Answer) -> None:
    """The twin's float64 outputs must agree, given the same parameters.

    Raises:
        TrialError: they do not, or the parameters have other names.
    """
    if isinstance(twin, torch.nn.Module):
        try:
            twin.load_state_dict(state)
        except RuntimeError as problem:
            raise TrialError(f"twin {spec.twin}: {problem}") from problem
    with widened(), torch.no_grad():
        outputs = twin(*question.call.args, **question.call.kwargs)
    _agree(f"its twin {spec.twin}", inputs.named_leaves(outputs, "output"), first)


def _check_surrogate(
    model: Any, spec: Spec, question: Question, state: dict[str, torch.Tensor], first: Answer
) -> None:
    evaluation.reset(model, state)

    def surrogate(*args: Any, **kwargs: Any) -> Any:
        return spec.surrogate_gradient(model, *args, **kwargs)  # type: ignore[misc]

    with widened():
        wanted = evaluation.evaluate(surrogate, model, question)
    gradients = {name: t for name, t in wanted.tensors.items() if name.startswith("gradient of")}
    _agree("the declared surrogate_gradient", gradients, first)


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
            gap = float((theirs - ours).nan_to_num(0.0, 0.0, 0.0).abs().square().sum().sqrt())
            size = float(ours.nan_to_num(0.0, 0.0, 0.0).abs().square().sum().sqrt())
            same = gap <= AGREEMENT * max(size, 1e-3) and torch.equal(theirs.isfinite(), ours.isfinite())
        if not same:
            raise TrialError(f"{name}: the float64 oracle differs from {whose}")


def _shape(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else str(type(value).__name__)


def check_gradients(
    model: Any, spec: Spec, question: Question, state: dict[str, torch.Tensor], gradients: Answer
) -> None:
    """Finite differences of the float64 oracle, which alone see a wrong backward.

    Raises:
        TrialError: a gradient, or where the spec claims it a second derivative, is not the derivative.
    """
    named = {
        name.removeprefix("gradient of "): None
        for name, t in gradients.tensors.items()
        if name.startswith("gradient of ") and t is not None
    }
    owned = dict(model.named_parameters()) if isinstance(model, torch.nn.Module) else {}
    leaves = [t for name, t in {**question.names, **owned}.items() if name in named]
    if not leaves or any(t.numel() == 0 for t in leaves):
        return
    leaves = [t.requires_grad_() for t in leaves]

    def outputs(*_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        evaluation.reset_buffers(model, state)
        returned = inputs.named_leaves(model(*question.call.args, **question.call.kwargs), "output")
        return tuple(t for t in returned.values() if inputs.is_rounded(t) and t.requires_grad)

    fast = sum(t.numel() for t in leaves) > SMALL
    checks: list[tuple[str, Callable[..., bool]]] = [("gradcheck", gradcheck)]
    if spec.twice_differentiable:
        checks.append(("gradgradcheck", gradgradcheck))
    for name, check in checks:
        with widened():
            try:
                check(outputs, leaves, fast_mode=fast, nondet_tol=1e-12)
            except (GradcheckError, RuntimeError) as problem:
                advice = "; if that is by design, declare surrogate_gradient" if name == "gradcheck" else ""
                lines = str(problem).strip().splitlines()
                raise TrialError(f"{name} in float64: {' '.join(lines)[:200]}{advice}") from problem

