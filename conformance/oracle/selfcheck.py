"""Checks the oracle itself: it must agree with a second run and with other formulas.

A wrong backward is just as wrong in float64. Only finite differences find it: see `derivatives/gradients.py`.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from conformance.axes import Prepared
from conformance.errors import RandomError, SelfCheckError
from conformance.evaluate import backward, containers, error_text, evaluation, inputs, process_state, transforms
from conformance.float64 import replacements
from conformance.float64.wide import Oracle, prepared_model, wide_call, wide_model
from conformance.gates.distance import same_bytes
from zoo import Call, Case, Spec, SpecError

LAST_BITS = 2.0**-48  # relative to the largest norm of all tensors, for those whose terms cancel; float64 has 53 bits
AGREEMENT = 1e-9  # largest difference of two float64 formulas, relative to the norm
UNSTABLE = "if the model draws random numbers, pass them in; if it keeps a state, keep that in a buffer"
ONE_IS_WRONG = "one of the two is wrong, so call both on this case in float64"


def check_outputs(
    oracle: Oracle, twin: Spec | None, question: evaluation.Question, first: evaluation.Evaluation
) -> None:
    """Make all checks except finite differences: a second run, the reference, the surrogate and the twin.

    `first` is what the oracle returned for the question.

    Raises:
        RandomError: two identical runs differ.
        SelfCheckError: outputs differ from the reference's or the twin's, or gradients from the surrogate's or
            from the tangents.
    """
    spec = oracle.spec
    _try_again(oracle, question, first)
    if question.forward_mode:
        transforms.check_adjoint(question, first)
    if spec.reference is not None and not spec.trusts_model:
        oracle.reset()
        _compare_outputs("the spec's reference", partial(spec.reference, oracle.model), oracle, question, first)
    if spec.surrogate_gradient is not None:
        _try_surrogate(oracle, question, first)
    if twin is not None:
        other = wide_model(prepared_model(twin, oracle.seed))
        if isinstance(other, torch.nn.Module):
            try:
                other.load_state_dict(oracle.state)
            except RuntimeError as problem:
                raise SelfCheckError(f"twin {twin.name}: {problem}") from problem
        _compare_outputs(f"its twin {twin.name}", other, oracle, question, first)


def try_unclaimed(
    oracle: Oracle, case: Case, picks: inputs.Picks, question: evaluation.Question, found: evaluation.Evaluation
) -> dict[str, str]:
    """Whether `torch.vmap` and forward mode hold, in float64, where the spec does not claim them, by their names.

    Only a model with a backward of its own is asked, for torch knows the rules of its own ops. `found` is what the
    oracle returned for the question.
    """
    spec, told = oracle.spec, dict[str, Callable[[], bool]]()
    graph = replacements.has_graph(oracle.model)
    if spec.fit is not None or spec.mutates or graph or not _has_own_backward(oracle, question):
        return {}
    with contextlib.suppress(SpecError):  # its draws cannot be stacked
        if not spec.vmappable:
            told["vmap"] = partial(_try_vmap, oracle, question, inputs.stack(case, oracle.seed, picks))
    if spec.differentiable and not spec.forward_mode and any(found.requires_grad.values()):
        told["forward mode"] = partial(_try_forward_mode, oracle, question, found)
    return {name: _holds(oracle, holds) for name, holds in told.items()}


def _has_own_backward(oracle: Oracle, question: evaluation.Question) -> bool:
    """Whether the model calls an `autograd.Function`."""
    oracle.reset()
    inputs.restore(question.call, question.pristine)
    evaluation.leaves_of(oracle.model, question)
    with _put_back(oracle):
        outputs = transforms.rounded_outputs(inputs.invoke(oracle.model, question.call))
    return any(isinstance(node, BackwardCFunction) for node in backward.nodes_of(outputs.values()))


@contextlib.contextmanager
def _put_back(oracle: Oracle) -> Iterator[None]:
    """The context in which the oracle computes, after which what calls change of the process is as before."""
    watch = process_state.Watch(oracle.model, {}, oracle.spec.changes_state, noted=False)
    with watch.during("forward"), oracle.widened():
        yield


def _holds(oracle: Oracle, holds: Callable[[], bool]) -> str:
    oracle.reset()
    try:
        with _put_back(oracle):
            return "holds" if holds() else "gives other numbers"
    except Exception as problem:  # the model's own code may raise anything
        if error_text.is_out_of_memory(problem):
            raise
        return "raises an error"
    finally:
        oracle.reset()


def _try_vmap(oracle: Oracle, question: evaluation.Question, stacked: Call) -> bool:
    asked = replace(question, stacked=wide_call(stacked), forward_mode=False)
    wanted = transforms.of_oracle(oracle.model, asked, oracle.reset)
    found = transforms.under_vmap(Prepared(oracle.model, dict, oracle.model), asked)
    return all(_nearly_the_same(tensor, found.get(name), 0.0) for name, tensor in wanted.items() if tensor is not None)


def _try_forward_mode(oracle: Oracle, question: evaluation.Question, found: evaluation.Evaluation) -> bool:
    pushed = transforms.in_forward_mode(Prepared(oracle.model, dict, oracle.model), question, zero=())
    try:
        transforms.check_adjoint(question, replace(found, tensors=found.tensors | pushed))
    except SelfCheckError:
        return False
    return True


def _try_again(oracle: Oracle, question: evaluation.Question, first: evaluation.Evaluation) -> None:
    with oracle.remembering():
        again = oracle.evaluate(question).tensors
    changed = [name for name, tensor in first.tensors.items() if not _same_bits(tensor, again.get(name))]
    if not changed:
        return
    largest = max((_norm(t) for t in first.tensors.values() if t is not None and inputs.is_rounded(t)), default=0.0)
    for name in changed:
        if not _nearly_the_same(first.tensors[name], again.get(name), LAST_BITS * largest):
            raise RandomError(f"{name}: two identical float64 runs differ; {UNSTABLE}")


def _try_surrogate(oracle: Oracle, question: evaluation.Question, first: evaluation.Evaluation) -> None:
    def surrogate(*args: Any, **kwargs: Any) -> Any:
        return oracle.spec.surrogate_gradient(oracle.model, *args, **kwargs)  # type: ignore[misc]

    oracle.reset()
    with oracle.widened():
        wanted = evaluation.evaluate(surrogate, oracle.model, question)
    gradients = {name: t for name, t in wanted.tensors.items() if name.kind == "gradient"}
    _agree("the declared surrogate_gradient", gradients, first)


def _compare_outputs(
    whose: str, function: Any, oracle: Oracle, question: evaluation.Question, first: evaluation.Evaluation
) -> None:
    """Call another formula on the inputs, and compare its outputs with the oracle's."""
    inputs.restore(question.call, question.pristine)
    with oracle.widened(), torch.no_grad():
        outputs = inputs.invoke(function, question.call)
    _agree(whose, evaluation.name_tensors("output", containers.tensors_of(outputs)), first)


def _same_bits(tensor: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return tensor is other if tensor is None or other is None else same_bytes(tensor, other)


def _nearly_the_same(tensor: torch.Tensor | None, other: torch.Tensor | None, least: float) -> bool:
    """Whether two runs gave the same but for last bits: those of a sum may depend on where its terms lie in memory."""
    if tensor is None or other is None or tensor.shape != other.shape:
        return False
    if not inputs.is_rounded(tensor):
        return torch.equal(tensor, other)
    gap = _norm(tensor - other)
    return torch.equal(tensor.isfinite(), other.isfinite()) and gap <= max(AGREEMENT * _norm(tensor), least)


def _agree(whose: str, wanted: evaluation.Tensors, found: evaluation.Evaluation) -> None:
    for name, theirs in wanted.items():
        ours = found.tensors.get(name)
        if theirs is None and ours is None:
            continue
        if not isinstance(theirs, torch.Tensor) or ours is None or theirs.shape != ours.shape:
            shapes = f"{name}: {whose} gives {_shape(theirs)}, the float64 oracle {_shape(ours)}"
            raise SelfCheckError(f"{shapes}; {ONE_IS_WRONG}")
        if not inputs.is_rounded(ours):
            same = torch.equal(theirs, ours)
        else:
            gap, size = _norm(theirs - ours), _norm(ours)
            same = gap <= AGREEMENT * max(size, 1e-3) and torch.equal(theirs.isfinite(), ours.isfinite())
        if not same:
            raise SelfCheckError(f"{name}: the float64 oracle differs from {whose}; {ONE_IS_WRONG}")


def _norm(tensor: torch.Tensor) -> float:
    """The 2-norm of the finite elements."""
    return float(tensor.abs().nan_to_num(0.0, 0.0, 0.0).square().sum().sqrt())


def _shape(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
