"""Evaluates a callable: outputs, gradients, second derivatives, buffers, and what the call changed.

The oracle, its perturbed runs and every cell use this code, so their results can be compared.
"""

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from conformance.axes import Precision
from conformance.errors import NotProvenError
from conformance.evaluate import attributes, backward, containers, inputs, process_state, weights
from conformance.records.cell import TensorName
from zoo import Call, Case, Spec, SpecError

Tensors = dict[TensorName, torch.Tensor | None]
Leaves = dict[str, torch.Tensor | None]  # tensors of one kind, by leaf


@dataclass(frozen=True)
class Question:
    """What to evaluate: the arguments, and which results to compute.

    Attributes:
        call: the arguments, on the device and in the dtypes of the run.
        pristine: a copy of the arguments, from which every run starts.
        names: the leaves of the arguments by name, from `inputs.named_inputs`.
        seed: seed of the cotangents, which must be the same in every run of a case.
        differentiate: compute the gradients of inputs and parameters.
        constants: names of the inputs that get no gradient.
        second: compute Hessian-vector products too.
        stacked: inputs of a batch of samples, on which to compute the outputs of `torch.vmap` too; None: do not.
        forward_mode: compute the tangents of the outputs too.
        mutates: names of the inputs and parameters that may change.
        changes_state: states of process and module that may change, words of `zoo.states.STATES`.
        fit: a function that trains the model and is called in place of it; its parameters may change. None: the model
            is called.
        precision, device: precision and device type of the autocast that forward runs under; None for float64.
        scale: a power of two that multiplies the cotangents and divides the gradients again, so that small float16
            gradients do not vanish.
        around: makes the context in which the model's own code runs, forward and backward.
        gradients: computes the gradients, as `backward.gradients` does.
        states: the plain attributes that are set before each call, by path, such as those that calls change.
        training: whether the module is put into train mode, or into eval mode, before each call; None: it stays.
    """

    call: Call
    pristine: Call
    names: dict[str, Any]
    seed: tuple[object, ...]
    differentiate: bool = True
    constants: tuple[str, ...] = ()
    second: bool = False
    stacked: Call | None = None
    forward_mode: bool = False
    mutates: tuple[str, ...] = ()
    changes_state: tuple[str, ...] = ()
    fit: Callable[..., Any] | None = None
    precision: Precision | None = None
    device: str = "cpu"
    scale: float = 1.0
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    gradients: Callable[..., Sequence[torch.Tensor | None]] = backward.gradients
    states: attributes.States = field(default_factory=dict)
    training: bool | None = None

    def of_call(self, call: Call, model: Any) -> "Question":
        """The same question of another call, without second order and transforms; `model` names its inputs."""
        pristine, names = inputs.place(call, convert=lambda t: t), inputs.named_inputs(model, call)
        return replace(self, call=call, pristine=pristine, names=names, second=False, stacked=None, forward_mode=False)


def question_of(  # noqa: PLR0913 -- one question, asked in two places
    spec: Spec, case: Case, seed: int, picks: inputs.Picks, convert: Callable[[Call], Call], model: Any
) -> Question:
    """The question of one case, with newly drawn inputs; `convert` moves them to the device and dtypes of the run.

    The signature of the model names the inputs. The seed is that of inputs and cotangents.
    """
    call = convert(inputs.draw(case, seed, picks))
    pristine = inputs.place(call, convert=lambda t: t)
    names = inputs.named_inputs(model, call)
    if unknown := set(spec.constants).difference(names):
        raise SpecError(f"case {case.name}: constants: no input is named {min(unknown)!r}, but {', '.join(names)}")
    return Question(
        call,
        pristine,
        names,
        (seed, case.name),
        differentiate=spec.differentiable,
        constants=spec.constants,
        second=spec.twice_differentiable,
        stacked=convert(inputs.stack(case, seed, picks)) if spec.vmappable else None,
        forward_mode=spec.forward_mode,
        mutates=spec.mutates,
        changes_state=spec.changes_state,
        fit=spec.fit,
    )


@dataclass
class Evaluation:
    """What one evaluation returned.

    Attributes:
        tensors: the results by name.
        requires_grad: `requires_grad` of every output tensor, by leaf; a number that is no tensor has none.
        container: the containers of the outputs.
        shared: the pairs of an output and an input, parameter, buffer or other output that share memory, if noted.
        returned: the output tensors themselves, by leaf, of which `tensors` has copies.
        changes: what forward and backward changed, although the spec does not declare it.
        refused: the error that the mode raised for second derivatives; "" if it raised none.
        left_out: the kinds of the results that the mode does not give.
        drawn: what tells the random numbers that forward drew from others; "" if the spec declares none.
        sparse: names of what has a sparse gradient, as an embedding may; `tensors` has a dense one.
    """

    tensors: Tensors = field(default_factory=dict)
    requires_grad: dict[str, bool] = field(default_factory=dict)
    container: containers.Container = containers.NOTHING
    shared: frozenset[containers.Pair] = frozenset()
    returned: Leaves = field(default_factory=dict)
    changes: list[process_state.Change] = field(default_factory=list)
    refused: str = ""
    left_out: tuple[str, ...] = ()
    drawn: str = ""
    sparse: frozenset[str] = frozenset()


def evaluate(call: Callable[..., Any], owner: Any, question: Question, *, noted: bool = False) -> Evaluation:
    """Run forward and, if the question asks for gradients, backward; see also `differentiate_twice`.

    The owner is the module whose parameters and buffers the callable uses, or a plain function. What forward and
    backward change apart from their results is put back. If `noted`, it is noted too, and which tensors share memory.

    Raises:
        SpecError: an output is not a strided tensor.
        NotProvenError: autocast was not as the precision says, or a training never called the model.
        Whatever the mode or the model raises.
    """
    result = Evaluation()
    inputs.restore(question.call, question.pristine)
    leaves = leaves_of(owner, question)
    watch = _watch(owner, leaves, question, noted=noted)
    given = inputs.fresh(question.call)
    returned, outputs = _forward(call, owner, replace(question, call=given), watch)
    result.drawn = process_state.after_draws(question.changes_state, owner)
    result.container = containers.describe(returned)
    result.requires_grad = {
        name: t.requires_grad for name, t in containers.leaves_of(returned, "output") if isinstance(t, torch.Tensor)
    }
    result.returned = {name: t if t is None else t.detach() for name, t in outputs.items()}
    if noted:
        buffers = {f"buffer {name}": buffer for name, buffer in weights.buffers_of(owner).items()}
        result.shared = containers.sharing(result.returned, {**leaves, **weights.parameters_of(owner), **buffers})
    result.tensors |= copies("output", outputs)
    if question.differentiate:
        with watch.during("backward"):
            found = _gradients(outputs, leaves, question)
        result.sparse = frozenset(name for name, t in found.items() if t is not None and t.layout != torch.strided)
        result.tensors |= _dense("gradient", found)
    result.changes = watch.changes
    result.tensors |= copies("after", {name: leaf for name, leaf in leaves.items() if name in question.mutates})
    if given is not question.call:
        result.tensors |= copies("put", inputs.new_leaves(owner, given, question.names))
    result.tensors |= copies("buffer", weights.buffers_of(owner))
    result.tensors |= copies("attribute", _attributes(owner, question))
    return result


def _attributes(owner: Any, question: Question) -> Leaves:
    """The numbers in the attributes that calls change, as tensors."""
    held = attributes.current(owner, question.states)
    leaves = dict(leaf for path, value in held.items() for leaf in containers.leaves_of(value, path))
    return {path: containers.tensor_of(leaf, question.device) for path, leaf in leaves.items() if type(leaf) is not str}


def evaluate_orders(call: Callable[..., Any], owner: Any, question: Question) -> Evaluation:
    """As `evaluate` and, if the question asks for second derivatives, `differentiate_twice`, from the same state."""
    state = weights.state_of(owner)
    found = evaluate(call, owner, question)
    if question.second:
        weights.reset(owner, state)
        found.tensors |= differentiate_twice(call, owner, question)
    return found


def name_tensors(kind: str, leaves: Mapping[str, torch.Tensor | None]) -> Tensors:
    """The tensors of one kind by name."""
    return {TensorName(kind, leaf): t for leaf, t in leaves.items()}


def copies(kind: str, leaves: Mapping[str, torch.Tensor | None]) -> Tensors:
    """Copies of the tensors of one kind by name."""
    return name_tensors(kind, {leaf: t if t is None else t.detach().clone() for leaf, t in leaves.items()})


def differentiate_twice(
    call: Callable[..., Any], owner: Any, question: Question, wanted: Collection[TensorName] | None = None
) -> Tensors:
    """Hessian-vector products: the gradient of ⟨gradient, random direction⟩, by name; see `evaluate`.

    If `wanted` names the tensors that have a second derivative, only these are computed. One that a mode has lost is
    None. If it has lost them all, and `backward` raises an error for that, so does this.

    Raises:
        Whatever the mode raises; torch.compile raises an error for second derivatives.
    """
    inputs.restore(question.call, question.pristine)
    leaves = {name: t for name, t in leaves_of(owner, question).items() if t.requires_grad}
    watch = _watch(owner, leaves, question, noted=False)
    _, outputs = _forward(call, owner, replace(question, call=inputs.fresh(question.call)), watch)
    with watch.during("backward"):
        first = _gradients(outputs, leaves, question, create_graph=True)
    first = {name: t if t is None else inputs.dense(t) for name, t in first.items()}
    products = (
        g * inputs.cotangent(f"direction of {name}", g, question.seed)
        for name, g in first.items()
        if g is not None and g.requires_grad
    )
    slopes = [product.real.sum() if product.is_complex() else product.sum() for product in products]
    asked = {name: t for name, t in leaves.items() if wanted is None or TensorName("second", name) in wanted}
    if not slopes or not asked:
        return _dense("second", dict.fromkeys(leaves))
    total = sum(slopes[1:], start=slopes[0])
    second = torch.autograd.grad(total, list(asked.values()), allow_unused=True)
    if wanted is not None and all(tensor is None for tensor in second):
        with backward.keep_grads(leaves.values()):
            total.backward()  # it runs nodes that lead to no leaf too; some raise an error that `grad` passes over
    found: Leaves = dict.fromkeys(leaves) | dict(zip(asked, second, strict=True))
    return _dense("second", _unscale(found, question.scale))


def leaves_of(owner: Any, question: Question) -> dict[str, torch.Tensor]:
    """The input tensors by name, each once, and the module's parameters unless the question trains them.

    It sets `requires_grad` of floating inputs that may not change: True if the question asks for gradients.
    """
    leaves: dict[str, torch.Tensor] = {}
    for name, leaf in question.names.items():
        if isinstance(leaf, torch.Tensor) and not any(leaf is other for other in leaves.values()):
            if inputs.is_rounded(leaf) and name not in question.mutates:
                leaf.requires_grad_(question.differentiate and name not in question.constants)
            leaves[name] = leaf
    if question.fit is None:
        leaves |= weights.parameters_of(owner)
    return leaves


def _watch(owner: Any, leaves: dict[str, torch.Tensor], question: Question, *, noted: bool) -> process_state.Watch:
    trains = ("gradients", "training") if question.fit is not None else ()
    return process_state.Watch(owner, leaves, (*question.mutates, *question.changes_state, *trains), noted=noted)


def _forward(
    call: Callable[..., Any], owner: Any, question: Question, watch: process_state.Watch
) -> tuple[Any, Leaves]:
    """What the call returns, and the tensors in it by name."""
    attributes.put(owner, question.states)
    if question.training is not None:
        owner.train(question.training)
    if question.fit is None:
        with (
            autocast(question),
            watch.during("forward"),
            question.around(),
            backward.in_forward(),
            backward.note_reentrant(),
        ):
            returned = call(*question.call.args, **question.call.kwargs)
            _prove_autocast(question, "forward returned")
    else:
        with watch.during("training"), question.around():
            returned = _train(call, owner, question)
    return returned, containers.tensors_of(returned, device=question.device)


def _train(call: Callable[..., Any], owner: Any, question: Question) -> Any:
    assert question.fit is not None
    calls = 0

    def watched(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        _prove_autocast(question, "training called the model")
        return call(*args, **kwargs)

    precision = question.precision.for_training if question.precision else "fp32"
    returned = question.fit(watched, owner, precision, *question.call.args, **question.call.kwargs)
    if not calls:
        raise NotProvenError("training never called the model")
    return returned


def autocast(question: Question) -> contextlib.AbstractContextManager[Any]:
    """The autocast context of the question's precision; a context that does nothing if it has none."""
    return autocast_to(question.precision, question.device)


def autocast_to(precision: Precision | None, device: str) -> contextlib.AbstractContextManager[Any]:
    """The autocast context of a precision on a device; a context that does nothing if it has none."""
    if precision is None or not precision.autocast:
        return contextlib.nullcontext()
    return torch.autocast(device, dtype=getattr(torch, precision.autocast))


def _prove_autocast(question: Question, when: str) -> None:
    """Raise `NotProvenError` if autocast is not as the precision says."""
    if question.precision is None:
        return
    asked = question.precision.autocast
    if bool(asked) != torch.is_autocast_enabled(question.device):
        raise NotProvenError(f"autocast was {'off' if asked else 'on'} when {when}")


def _gradients(
    outputs: Leaves, leaves: dict[str, torch.Tensor], question: Question, *, create_graph: bool = False
) -> Leaves:
    """The gradients by leaf; those with a graph keep the scale of the cotangents."""
    wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    roots = {name: t for name, t in outputs.items() if t is not None and t.requires_grad}
    if not wanted or not roots:
        return dict.fromkeys(wanted)
    cotangents = [inputs.cotangent(name, t, question.seed) for name, t in roots.items()]
    if question.scale != 1.0:
        cotangents = [c * question.scale for c in cotangents]
    asked = [*roots.values()], [*wanted.values()], cotangents
    with question.around():
        by_leaf: Leaves = dict(zip(wanted, question.gradients(*asked, create_graph=create_graph), strict=True))
    return by_leaf if create_graph else _unscale(by_leaf, question.scale)


def _unscale(gradients: Leaves, scale: float) -> Leaves:
    """Copies divided by the scale, which is exact. The next replay of a CUDA graph cannot overwrite a copy.

    Each takes the place of the gradient, so that no second set is held.
    """
    for name, gradient in gradients.items():
        if gradient is not None:
            gradients[name] = gradient.detach().clone() if scale == 1.0 else gradient.detach() / scale
    return gradients


def _dense(kind: str, gradients: Leaves) -> Tensors:
    return name_tensors(kind, {leaf: t if t is None else inputs.dense(t.detach()) for leaf, t in gradients.items()})
