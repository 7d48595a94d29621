"""Every public function and class of the zoo refuses bad input in one line that names it and the argument.

The test finds the public names itself, so a new function is taken in. It calls each with a valid call, from a spec of
the same module or from `EXAMPLES`, in which it replaces one argument at a time by something bad.
"""

import importlib
import inspect
import pkgutil
import typing
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass

import pytest
import torch
from bad_input_examples import EXAMPLES, RESULTS
from torch import Tensor, nn

import zoo
from zoo.case import SpecError
from zoo.catalog import specs_of
from zoo.training import save_checkpoint

LEFT_OUT = (
    "zoo.probes.",  # run by name
    "zoo.counterexamples.",  # wrong on purpose
    "zoo.arguments",  # the checks, as is every want_…
    "zoo.internals",  # of this project alone
    "zoo.training.__main__",  # a command line, which argparse checks
)
ANY_NAME = ("zoo.training.checkpoint.save_checkpoint", "zoo.training.checkpoint.load_checkpoint")  # of parts
BAD = {
    Tensor: ([1.0], None, "text"),
    int: (None, "text", -1),
    float: (None, "text"),
    str: (None, 3),
    Callable: (None, 3),
    tuple: (None, 3),
    type: (None, 3),
    Mapping: (None, 3),
}


def public_names():
    """Qualified name and object of every public function and class, apart from errors and results."""
    for entry in pkgutil.walk_packages(zoo.__path__, "zoo."):
        if entry.ispkg or entry.name.startswith(LEFT_OUT):
            continue
        for name, thing in vars(importlib.import_module(entry.name)).items():
            if name.startswith(("_", "want_")) or getattr(thing, "__module__", "") != entry.name:
                continue
            if inspect.isfunction(thing) or (inspect.isclass(thing) and not issubclass(thing, (Exception, tuple))):
                yield f"{entry.name}.{name}", thing


NAMES = {name: thing for name, thing in public_names() if name not in RESULTS}


def from_specs(thing):
    """A model that is or contains `thing`, with example inputs, from the specs of its module; None if there is none."""
    for spec in specs_of(importlib.import_module(thing.__module__)):
        model = spec.build()
        if model is thing or (inspect.isclass(thing) and type(model) is thing):
            call = spec.cases[0].draw(torch.Generator().manual_seed(0))
            return model, inspect.signature(getattr(model, "forward", model)).bind(*call.args, **call.kwargs).arguments
    return None


def doors(name, thing):
    """Every way to call `thing`: a callable, the function that has its signature, and valid arguments."""
    example = EXAMPLES.get(name)
    if inspect.isclass(thing) and issubclass(thing, torch.autograd.Function):
        yield lambda **given: thing.apply(*given.values()), thing.forward, example
    elif inspect.isclass(thing) and issubclass(thing, nn.Module):
        settings, inputs = example or ({}, None)
        yield thing, thing.__init__, settings
        model, inputs = from_specs(thing) if inputs is None else (thing(**settings), inputs)
        yield model, thing.forward, inputs
    elif inspect.isclass(thing):
        yield thing, thing.__init__, example
    else:
        yield by_name(thing), thing, example if example is not None else (from_specs(thing) or (None, None))[1]


def by_name(function):
    """`function`, called with all arguments by name, also with those that it takes only by position."""
    places = {name: place.kind for name, place in inspect.signature(function).parameters.items()}

    def call(**given):
        positional = []
        for name in [name for name, kind in places.items() if kind < inspect.Parameter.KEYWORD_ONLY and name in given]:
            value = given.pop(name)
            positional += value if places[name] is inspect.Parameter.VAR_POSITIONAL else [value]
        return function(*positional, **given)

    only_by_position = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL}
    return call if only_by_position & set(places.values()) else function


def bad_values(argument, hint):
    """What must be refused for an argument of this type. `None` is allowed where the type says so."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, type(int | None)) else (hint,)
    values = []
    for kind in kinds:
        kind = typing.get_origin(kind) or kind  # noqa: PLW2901
        bad = BAD.get(kind, ()) if argument != "seed" else (None, "text")  # torch takes negative seeds
        values += [99 if (argument, value) == ("dim", -1) else value for value in bad]
    good = tuple(kind for kind in (typing.get_origin(kind) or kind for kind in kinds) if isinstance(kind, type))
    return [v for v in values if v == -1 or v == 99 or not isinstance(v, good)]  # noqa: PLR1714 -- tensors have no ==


def complaint(owner, argument, bad, call):
    """What is wrong with the error of a call with one bad argument; "" if nothing is."""
    try:
        call()
    except (TypeError, ValueError, IndexError) as problem:
        text, kind = str(problem), type(problem)
    except Exception as problem:  # noqa: BLE001 -- whatever comes from inside
        return f"{argument}={bad!r}: {type(problem).__name__} from inside: {problem}"
    else:
        return f"{argument}={bad!r}: accepted"
    record = is_dataclass(owner) and "__call__" not in vars(owner)  # and not a transform
    wanted = (SpecError,) if record else (TypeError,) if type(bad) is not int else (TypeError, ValueError)
    if bad == 99:
        wanted = (IndexError,)
    if kind not in wanted:
        return f"{argument}={bad!r}: {kind.__name__}, want {wanted[0].__name__}: {text}"
    if "\n" in text or owner.__name__.lower() not in text.lower() or argument not in text:
        return f"{argument}={bad!r}: want one line with {owner.__name__} and {argument}, got {text!r}"
    return ""


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    """A folder for what the valid calls write, with a checkpoint to read, and a catalogue to register in."""
    monkeypatch.chdir(tmp_path)
    save_checkpoint("saved.pt")
    monkeypatch.setattr("zoo.catalog._registered", {})


@pytest.mark.parametrize("name", NAMES)
def test_bad_input_is_refused_by_name(name):
    complaints = []
    for call, signature, arguments in doors(name, NAMES[name]):
        hints = {k: v for k, v in typing.get_type_hints(signature).items() if k != "return"}
        assert arguments is not None or not hints, f"add a valid call of {name} to EXAMPLES in bad_input_examples.py"
        given = dict(arguments or {})
        try:
            call(**given)  # the valid call
        except (ImportError, RuntimeError) as problem:  # a tool of the machine; the checks come before it
            assert ": needs " in str(problem)  # noqa: PT017
        for argument, hint in hints.items():
            kind = inspect.signature(signature).parameters[argument].kind
            if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                continue
            for bad in bad_values(argument, hint):
                said = complaint(NAMES[name], argument, bad, lambda: call(**{**given, argument: bad}))  # noqa: B023
                complaints += [said] if said else []
        if name not in ANY_NAME and not (
            inspect.isclass(NAMES[name]) and issubclass(NAMES[name], torch.autograd.Function)
        ):
            with pytest.raises(TypeError, match="no_such_argument"):
                call(**given, no_such_argument=1)
    assert complaints == []


def test_the_lists_name_nothing_that_does_not_exist():
    assert {*EXAMPLES, *RESULTS} - {name for name, _ in public_names()} == set()


def test_a_function_without_checks_is_noticed():
    for function, said in (
        (lambda x: x.sum(), "AttributeError from inside"),
        (lambda x: x, "accepted"),
        (lambda x: x + 1, "want one line with"),
        (lambda x: int(x[0]) - x, "want one line with"),
    ):
        assert said in complaint(function, "tensor", [1.0], lambda: function([1.0]))  # noqa: B023
