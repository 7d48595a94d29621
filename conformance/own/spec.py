"""Makes the spec of a model that has none, in any process; its contract is what one call in eager does."""

import math
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from conformance import axes
from conformance.errors import UsageError, call_theirs, describe_error, near_names, one_line, own_fault, some
from conformance.evaluate import error_text, evaluation, inputs, weights
from conformance.float64 import replacements, wide
from conformance.float64.copies import adopt_state
from conformance.own.forms import Architecture, Forms, architecture, forms_of
from conformance.own.saved import builder, unpickle
from conformance.records.plan import OtherModel, OwnModel
from zoo import Call, Candidate, Case, Convention, Spec, SpecError, internals
from zoo.states import STATES

_defined: set[str] = set()  # the files of definitions that this process has executed


def spec_of(own: OwnModel, module: ModuleType | None) -> tuple[Spec, Forms]:
    """The spec of a model that has none, and its forms. The module or file holds it; None if it is saved.

    Raises UsageError if there is no such model, it cannot be loaded, or its inputs cannot be read.
    """
    define(own.definitions)
    known = architecture(own.library, train=own.training == "train") if own.library else None
    fetch = (
        builder(Path(own.saved), trusted=own.trusted)
        if own.saved
        else known.build
        if known
        else partial(attribute, module, own.thing)
    )
    case, declared = _case(own, known)
    forms = forms_of(fetch, case)
    spec = Spec(
        name=own.name,
        summary=f"{forms.kind}, without a spec",
        source=own.saved or own.library or own.thing,
        build=forms.build,
        scripted=forms.scripted,
        cases=(case,),
        initialise=partial(_initialise, own, case),
        dtype=own.dtype,
        differentiable=own.differentiable,
        constants=own.constants,
        stops_gradients=True,  # what is unknown is what eager does
        mutates=own.mutates,
        changes_state=own.changes_state,
        expectations=tuple(one for one in declared if not isinstance(one, Convention)),
        conventions=tuple(one for one in declared if isinstance(one, Convention)),
    )
    return spec, forms


def with_others(spec: Spec, reference: Spec | None, candidate: Spec | None) -> Spec:
    """The spec with the model of another one as its reference, which makes it the oracle, or as its candidate."""
    if reference:
        spec = replace(spec, reference=partial(_build, reference))
    if candidate:
        spec = replace(spec, candidates=(Candidate(name=candidate.name, build=partial(_build, candidate)),))
    return spec


def _build(spec: Spec) -> Any:
    return spec.initialised(call_theirs(spec.build))


def attribute(module: ModuleType | None, name: str) -> Any:
    """What a module has under a name, such as "Net.build"; UsageError that suggests similar ones if it has nothing."""
    try:
        return operator.attrgetter(name)(module)
    except AttributeError:
        meant = near_names(name, [known for known in vars(module) if not known.startswith("_")])
        raise UsageError(f"{getattr(module, '__file__', None) or module} has no {name}{meant}") from None


def _case(own: OwnModel, known: Architecture | None) -> tuple[Case, tuple[Any, ...]]:
    """The case with the inputs, and what is declared: records of `Expect` and `Convention`."""
    call, declared = unpickle(Path(own.call)) if own.call else (Call(), ())
    if call.args or call.kwargs:
        return case_of(call), declared
    if own.inputs:
        return Case(name=NAME, inputs=partial(draw_inputs, read_description(own.inputs))), declared
    if known:
        return Case(name=NAME, inputs=known.inputs), declared
    raise UsageError(f"{own.name} has no spec, so its inputs must be described: --input 2,3,64,64")


def _initialise(own: OwnModel, case: Case, model: Any) -> None:
    """Put the model into the mode that is asked for. If it is lazy, call it once, which makes its parameters."""
    if own.training:
        _switch(own, model)
    if isinstance(model, nn.Module) and any(map(nn.parameter.is_lazy, [*model.parameters(), *model.buffers()])):
        with torch.no_grad():
            inputs.invoke(model, inputs.raw_batch(case, 0, 0))


def _switch(own: OwnModel, model: Any) -> None:
    """Put the model into train or eval mode. Raises UsageError if it has no such mode."""
    try:
        if not isinstance(model, nn.Module):
            raise TypeError("it is no module")  # noqa: TRY301 -- one message for all
        model.train(own.training == "train")
    except Exception as problem:  # an exported program refuses with what it likes
        raise UsageError(f"{own.name} cannot be put into {own.training} mode: {describe_error(problem)}") from problem


def define(path: str) -> None:
    """Execute what a model needs of the caller's main module, in the main module of this process; "" for nothing.

    Raises UsageError if it cannot be executed.
    """
    if not path or path in _defined:
        return
    main = sys.modules["__main__"]
    main.__file__ = path  # `inspect` finds the sources by it, and TorchScript reads them
    try:
        code = compile(Path(path).read_text(encoding="utf-8"), path, "exec", dont_inherit=True)
        exec(code, vars(main))  # noqa: S102 -- the person's own code
    except Exception as problem:  # it is the person's own code
        raise UsageError(
            f"what the model needs of the main module cannot be defined again: {describe_error(problem)}"
        ) from problem
    _defined.add(path)


# Reads inputs that a person describes in words, such as "2,3,64,64" or "mask=2,16:bool", and draws them.

FORM = re.compile(
    r"((?P<name>[A-Za-z_]\w*)=)?(?P<shape>(\d+(,\d+)*)?)"
    r"(:(?P<dtype>\w+)(:(?P<low>-?[\d.]+(e-?\d+)?)\.\.(?P<high>-?[\d.]+(e-?\d+)?))?)?"
)
WANTED = "want [NAME=]SHAPE[:DTYPE[:LOW..HIGH]], such as 2,3,64,64 or 2,16:int64:0..1000"


@dataclass(frozen=True)
class Description:
    """One input in words; it is positional without a name, and a single number with shape ().

    `limits` are the smallest value, and the one below which all are; None for a standard normal distribution.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    limits: tuple[float, float] | None

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        """Draw the input, a tensor on the CPU."""
        if self.dtype == torch.bool:
            return torch.rand(self.shape, generator=generator) < 0.5  # noqa: PLR2004 -- both values are as frequent
        if self.limits is None:
            return torch.randn(self.shape, generator=generator, dtype=self.dtype)
        low, high = self.limits
        if self.dtype.is_floating_point:
            return low + (high - low) * torch.rand(self.shape, generator=generator, dtype=self.dtype)
        return torch.randint(int(low), int(high), self.shape, generator=generator, dtype=self.dtype)


def read_description(texts: Sequence[str]) -> tuple[Description, ...]:
    """The inputs that texts describe, in order. Raises UsageError if a text describes none; the message says which."""
    return tuple(_one(text) for text in texts)


def draw_inputs(descriptions: Sequence[Description], generator: torch.Generator) -> Call:
    """The arguments of one call."""
    drawn = [(one.name, one.draw(generator)) for one in descriptions]
    return Call(tuple(t for name, t in drawn if not name), {name: t for name, t in drawn if name})


def _one(text: str) -> Description:
    found = FORM.fullmatch(text)
    if found is None or not (found["shape"] or found["dtype"]):
        raise UsageError(f"--input {text}: {WANTED}")
    dtype = getattr(torch, found["dtype"] or "float32", None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"--input {text}: torch has no dtype {found['dtype']!r}")
    limits = (_number(text, found["low"]), _number(text, found["high"])) if found["low"] else None
    if limits and not (limits[0] < limits[1] and not dtype.is_complex and dtype != torch.bool):
        raise UsageError(f"--input {text}: LOW must be below HIGH, and bool and complex numbers have no limits")
    if limits is None and not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool):
        raise UsageError(f"--input {text}: whole numbers need limits, such as {text}:0..10, which gives 0 to 9")
    shape = tuple(int(axis) for axis in found["shape"].split(",")) if found["shape"] else ()
    return Description(found["name"] or "", shape, dtype, limits)


def _number(text: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.inf
    if not math.isfinite(value):
        raise UsageError(f"--input {text}: {number} is no number")
    return value


# Makes a case of the arguments of one call: they are its first draw, and further draws are made from them.

NAME = "given"
FEW = 8  # distinct values: a mask, or the codes of classes


def case_of(call: Call) -> Case:
    """The case whose first draw is this call."""
    return Case(name=NAME, inputs=lambda generator: like(call, generator), first=call)


def like(call: Call, generator: torch.Generator) -> Call:
    """Other arguments like these.

    Floating numbers are drawn from the distribution of the given ones, so they lie between the same limits. All other
    values stay, and so does a floating tensor that holds few distinct values, or one that is not finite.
    """
    return inputs.place(call, convert=_drawing(generator))


def _drawing(generator: torch.Generator) -> Callable[[torch.Tensor], torch.Tensor]:
    def draw(values: torch.Tensor) -> torch.Tensor:
        if values.is_complex():
            return torch.view_as_complex(draw(torch.view_as_real(values).flatten()).view(-1, 2))
        if not values.is_floating_point() or values.numel() < 2 or not bool(values.isfinite().all()):  # noqa: PLR2004
            return values
        known = values.double().sort().values
        distinct = int(known.unique_consecutive().numel())
        if distinct <= FEW and distinct < known.numel():
            return values
        place = torch.rand(known.numel(), generator=generator, dtype=torch.float64) * (known.numel() - 1)
        below = place.long().clamp(max=known.numel() - 2)
        return torch.lerp(known[below], known[below + 1], place - below).to(values.dtype)

    return draw


# Calls a model without a spec once in eager, and takes what it does as its contract.

NARROW = ("bfloat16", "float16")  # the coarsest first
STATE_IN_WORDS = {"random generator": "it draws random numbers, as dropout does; a seed is set before each call"}

STEPS = (-1e-4, 1e-4)  # by which an input is moved, in units of its numbers; of zeros, absolute
NOT_WRITTEN = ("no autograd formula was registered", "is not implemented")  # of a backward that does not exist


def try_model(
    own: OwnModel,
    module: ModuleType | None,
    seed: int,
    reference: Spec | None = None,
    candidate: Spec | None = None,
) -> tuple[OwnModel, tuple[str, ...]]:
    """The model with the contracts that its first call shows, and these contracts in words.

    The module or file holds it; None if it is saved. If the spec of a reference is given, that model is called in its
    place: its contracts count, and the model may need another device. The spec of a candidate gives weights to check.

    Raises:
        UsageError: it cannot be built, or does not take its inputs; or what is saved beside it has other weights.
        SpecError: the parameters or buffers of its others have other names, shapes or dtypes.
    """
    spec, forms = spec_of(own, module)
    try:
        model = wide.prepared_model(spec, seed)
    except UsageError:
        raise
    except Exception as problem:  # the model's own code may raise anything
        if own_fault(problem):
            raise
        raise UsageError(f"{own.name} cannot be built: {describe_error(problem)}") from problem
    for role, other, theirs in (("reference", own.reference, reference), ("candidate", own.candidate, candidate)):
        if other and theirs:
            _check_weights(spec, other, theirs, f"the {role} {theirs.name} of {own.name}")
    tried, called = spec, model
    if reference:
        tried = replace(reference, cases=spec.cases)
        called = wide.prepared_reference(with_others(spec, reference, None), seed, model)
    try:
        found, constants = _try(tried, called, seed)
    except UsageError as problem:
        raise UsageError(f"the reference: {problem}" if reference else str(problem)) from problem
    changed = {change.subject for change in found.changes}
    names = dict(zip(_inputs(tried, called, seed), _inputs(spec, model, seed), strict=True))  # each may name them anew
    own = replace(
        own,
        without=forms.without,
        dtype=_dtype(spec, model, seed),
        differentiable=_has_gradients(found),
        constants=tuple(names[name] for name in constants),
        mutates=tuple(sorted(names.get(n, n) for n in changed & {*names, *weights.parameters_of(called)})),
        changes_state=tuple(state for state in STATES if state in changed),
    )
    without_gradients = (f"{names[name]} gets no gradient: {why}" for name, why in constants.items())
    return own, (*_in_words(own, forms, model, found.refused, reference), *without_gradients)


def _check_weights(spec: Spec, other: OtherModel, theirs: Spec, where: str) -> None:
    """Refuse another model whose weights the model cannot give it, or that is saved with other ones than the model's.

    `theirs` is the spec of the other model, and `where` names it in messages. Raises SpecError if the two do not have
    the same parameters and buffers, and UsageError if one of these differs, or if the other model cannot be built.
    """
    model = _build(spec)
    try:
        made = _build(theirs)
    except UsageError:
        raise
    except Exception as problem:  # the model's own code may raise anything
        raise UsageError(f"{where} cannot be built: {describe_error(problem)}") from problem
    held = weights.state_of(made)
    adopt_state(made, model, where, any_width=True)
    for name, tensor in {} if other.takes_weights else weights.state_of(made).items():
        if not torch.equal(tensor, held[name]):
            raise UsageError(
                f"{where} is saved with another {name}; save both models with the same weights, or give the class of "
                "the saved one, which takes those of the model"
            )


def _try(spec: Spec, model: Any, seed: int) -> tuple[evaluation.Evaluation, dict[str, str]]:
    """What the call gives, and why an input gets no gradient, by its name."""
    found = _call(spec, model, seed)
    constants = _constants(spec, model, seed, found)
    if constants:
        without = _call(replace(spec, constants=tuple(constants)), model, seed)
        if not without.refused and any(without.requires_grad.values()):
            return without, constants
    return found, {}  # they are not what is wrong, or nothing else has a gradient


def _constants(spec: Spec, model: Any, seed: int, found: evaluation.Evaluation) -> dict[str, str]:
    """Why an input gets no gradient, by its name: forward refuses it if it is moved, or backward has none for it.

    The targets of a loss are often such inputs: binary cross entropy takes none below zero.
    """
    names = _inputs(spec, model, seed)
    floating = [name for name, leaf in names.items() if inputs.is_rounded(leaf)]
    some_refuse_moves = bool(_refusal_of_moves(spec, model, seed, floating))
    constants: dict[str, str] = {}
    for name in floating:
        refusal = _refusal_of_moves(spec, model, seed, [name]) if some_refuse_moves else ""
        if refusal:
            constants[name] = f"moved a little, it raises {refusal}"
        elif found.refused:
            alone = replace(spec, constants=tuple(other for other in names if other != name))
            refusal = _refusal(model, _question(alone, model, seed))
            constants |= {name: f"it raises {refusal}"} if refusal else {}
    return constants


def _refusal_of_moves(spec: Spec, model: Any, seed: int, names: list[str]) -> str:
    """The error that forward raises if these inputs are moved by a little; "" if it raises none."""
    moved = (_question(spec, model, seed, partial(_move, model, names, step)) for step in STEPS)
    return next(filter(None, (_refusal(model, replace(question, differentiate=False)) for question in moved)), "")


def _refusal(model: Any, question: evaluation.Question) -> str:
    """The error that a call raises; "" if it raises none. Raises whatever says that memory is full."""
    try:
        evaluation.evaluate(model, model, question)
    except Exception as problem:  # the model's own code may raise anything
        if error_text.is_out_of_memory(problem) or own_fault(problem):
            raise
        return describe_error(problem)
    return ""


def _move(model: Any, names: list[str], step: float, call: Call) -> Call:
    """The call with some inputs moved by a little."""
    named_leaves = inputs.named_inputs(model, call)
    chosen = {id(named_leaves[name]) for name in names}

    def move(leaf: Any) -> Any:
        return leaf + step * leaf.abs().clamp_min(1.0) if id(leaf) in chosen else leaf

    args, kwargs = internals.tree_map(move, (call.args, dict(call.kwargs)))
    return Call(args, kwargs)


def _dtype(spec: Spec, model: Any, seed: int) -> str:
    """The narrowest dtype of the model's floating parameters; of its inputs, if it has none."""
    parameters = [p for p in weights.parameters_of(model).values() if p.is_floating_point()]
    tensors = parameters or [t for t in _inputs(spec, model, seed).values() if inputs.is_rounded(t)]
    return next((dtype for dtype in NARROW if any(t.dtype == getattr(torch, dtype) for t in tensors)), "float32")


def _has_gradients(found: evaluation.Evaluation) -> bool:
    """Whether gradients are judged. A backward that raises an error is judged too, unless nobody has written it."""
    if found.refused:
        return not any(words in found.refused for words in NOT_WRITTEN)
    return any(found.requires_grad.values())


def _call(spec: Spec, model: Any, seed: int) -> evaluation.Evaluation:
    """What the call gives; `refused` if its gradients raise an error, which the judge then names."""

    def call_once() -> evaluation.Evaluation:
        return evaluation.evaluate(model, model, _question(spec, model, seed), noted=True)

    try:
        with replacements.note_scripts() as scripts:
            calls = [call_once()]
        later = axes.MODES["scripted"].warm_calls if scripts else 0  # a script may do otherwise then
        calls += [call_once() for _ in range(later)]
        return replace(calls[-1], changes=[change for call in calls for change in call.changes])
    except Exception as problem:  # the model's own code may raise anything
        if own_fault(problem):
            raise
        try:
            forward = replace(_question(spec, model, seed), differentiate=False)
            found = evaluation.evaluate(model, model, forward, noted=True)
        except SpecError as other:
            raise UsageError(f"{spec.name}: {one_line(other)}") from other
        except Exception as first:
            if own_fault(first):
                raise
            why = _fixed_sizes(model, _inputs(spec, model, seed)) or describe_error(first)
            raise UsageError(f"{spec.name} does not take these inputs: {why}") from first
        found.refused = describe_error(problem)
        return found


def _fixed_sizes(model: Any, named: Mapping[str, Any]) -> str:
    """Which sizes of the inputs are not those that an exported program was exported for; "" if all are."""
    nodes = model.graph.nodes if isinstance(model, torch.fx.GraphModule) else ()
    made = [node.meta.get("val") for node in nodes if node.op == "placeholder"]
    wrong = [
        f"dimension {axis} of {name} is fixed at {fixed} and given as {size}"
        for (name, leaf), of in zip(named.items(), made, strict=False)
        if isinstance(leaf, torch.Tensor) and isinstance(of, torch.Tensor)
        for axis, (fixed, size) in enumerate(zip(of.shape, leaf.shape, strict=False))
        if isinstance(fixed, int) and fixed != size
    ]
    return f"{some(wrong, 3)}; give that size, or export it with dynamic shapes" if wrong else ""


def _question(spec: Spec, model: Any, seed: int, convert: Callable[[Call], Call] | None = None) -> evaluation.Question:
    return evaluation.question_of(spec, spec.cases[0], seed, 0, convert or (lambda call: call), model)


def _inputs(spec: Spec, model: Any, seed: int) -> dict[str, Any]:
    return _question(spec, model, seed).names


def _in_words(own: OwnModel, forms: Forms, model: Any, refused: str, reference: Spec | None) -> list[str]:
    """The assumed contracts, a line each."""
    eager = f"its reference {reference.name}" if reference else "eager"
    weighted = " with the same weights" if weights.state_of(model) else ""
    held = f"it must give the outputs, dtypes and gradients of {eager}{weighted}"
    words = [held if reference else "the dtypes of its outputs are those of eager", *filter(None, [forms.taken])]
    if own.dtype != "float32":
        words.append(f"it is in {own.dtype}, so it is judged without autocast")
    if isinstance(model, nn.Module) and not isinstance(model, torch.fx.GraphModule) and (mode := _training(model)):
        words.append(f"{mode}, as {'asked' if own.training else 'it is'}")
    if not own.differentiable:
        why = f"backward raises {refused}" if refused else f"no output of {eager} requires any"
        words.append(f"it has no gradients, because {why}")
    words += [f"it changes {some(own.mutates, 2)}, as {eager} does"] * bool(own.mutates)
    for state in own.changes_state:
        words.append(STATE_IN_WORDS.get(state, f"it changes the state {state!r} of the process, as {eager} does"))
    if without := [mode for mode in forms.without if mode in axes.MODES]:
        words.append(f"it is {forms.kind}, which cannot be {', '.join(without)}")
    return words


def _training(model: nn.Module) -> str:
    """Whether it is in train or eval mode, in words; "" for a frozen ScriptModule, which is in neither."""
    flags = [module.training for module in model.modules() if hasattr(module, "training")]
    words = f"the model is in {'train' if flags[0] else 'eval'} mode" if flags else ""
    return f"{words}, and parts of it are not" if len(set(flags)) > 1 else words
