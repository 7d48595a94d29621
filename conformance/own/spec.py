"""Makes the spec of a model that has none, in any process."""

from __future__ import annotations

import operator
import sys
from functools import partial
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from conformance.errors import UsageError, near_names
from conformance.evaluate import inputs
from conformance.one_line import named
from conformance.own import described, given, libraries, saved
from conformance.own.forms import Forms, forms_of
from conformance.own.libraries import Architecture
from conformance.records.own_model import OwnModel
from zoo.case import Call, Case
from zoo.convention import Convention
from zoo.spec import Spec

_defined: set[str] = set()  # the files of definitions that this process has executed


def spec_of(own: OwnModel, module: ModuleType | None) -> tuple[Spec, Forms]:
    """The spec of a model that has none, and its forms.

    Args:
        own: the model.
        module: the module or file that holds it; None if it is saved.

    Raises:
        UsageError: there is no such model, it cannot be loaded, or its inputs cannot be read.
    """
    define(own.definitions)
    known = libraries.architecture(own.library, train=own.training == "train") if own.library else None
    if known:
        build = known.build
    else:
        build = saved.builder(Path(own.saved)) if own.saved else partial(attribute, module, own.thing)
    case, declared = _case(own, known)
    forms = forms_of(build, case)
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


def attribute(module: ModuleType | None, name: str) -> Any:
    """What a module has under a name, such as "Net" or "Net.build".

    Raises:
        UsageError: it has nothing of that name; the message suggests similar ones.
    """
    try:
        return operator.attrgetter(name)(module)
    except AttributeError:
        near = near_names(name, [known for known in vars(module) if not known.startswith("_")])
        meant = f"; did you mean {', '.join(near)}?" if near else ""
        raise UsageError(f"{getattr(module, '__file__', None) or module} has no {name}{meant}") from None


def _case(own: OwnModel, known: Architecture | None) -> tuple[Case, tuple[Any, ...]]:
    """The case with the inputs, and what is declared: records of `Expect` and `Convention`."""
    call, declared = saved.unpickled(Path(own.call)) if own.call else (Call(), ())
    if call.args or call.kwargs:
        return given.case_of(call), declared
    if own.inputs:
        return Case(name=given.NAME, inputs=partial(described.draw, described.read(own.inputs))), declared
    if known:
        return Case(name=given.NAME, inputs=known.inputs), declared
    raise UsageError(f"{own.name} has no spec, so its inputs must be described: --input 2,3,64,64")


def _initialise(own: OwnModel, case: Case, model: Any) -> None:
    """Put the model into the mode that is asked for. If it is lazy, call it once, which makes its parameters."""
    if own.training:
        _switch(own, model)
    if isinstance(model, nn.Module) and any(map(is_lazy, chain(model.parameters(), model.buffers()))):
        call = inputs.raw_batch(case, 0, 0)
        with torch.no_grad():
            inputs.called(model, call)


def _switch(own: OwnModel, model: Any) -> None:
    """Put the model into train or eval mode.

    Raises:
        UsageError: it has no such mode.
    """
    try:
        if not isinstance(model, nn.Module):
            raise TypeError("it is no module")  # noqa: TRY301 -- one message for all
        model.train(own.training == "train")
    except Exception as problem:  # an exported program refuses with what it likes
        raise UsageError(f"{own.name} cannot be put into {own.training} mode: {named(problem)}") from problem


def define(path: str) -> None:
    """Execute what a model needs of the caller's main module, in the main module of this process; "" for nothing.

    Raises:
        UsageError: it cannot be executed.
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
            f"what the model needs of the main module cannot be defined again: {named(problem)}"
        ) from problem
    _defined.add(path)
