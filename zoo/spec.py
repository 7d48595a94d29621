"""The contract of a model: a frozen record beside every entry of the zoo, and its validation.

A `Spec` is data. It says how to build a model, which inputs to try and what must hold for the results. The
conformance matrix reads it and runs the checks; this module runs no model. A record that contradicts itself
raises a `SpecError` when it is created.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zoo.candidate import Candidate
from zoo.case import NAME, Case, SpecError, UnknownNameError
from zoo.claim import Claim
from zoo.convention import Convention
from zoo.error_input import ErrorInput
from zoo.expect import Expect, check_names
from zoo.family import Family
from zoo.scale import Scale
from zoo.states import STATES

Model = Callable[..., Any]

SIZES = re.compile(rf"{NAME.pattern}=[0-9]+(,{NAME.pattern}=[0-9]+)*")
NAME_AND_SIZE = re.compile(rf"{NAME.pattern}(@([0-9]+|{SIZES.pattern}))?")
NAME_OR_NONE = re.compile(rf"({NAME.pattern})?")
DTYPES = ("float32", "float16", "bfloat16")
DTYPE_WORDS = ("follows", "input")
PROBES = Path(__file__).parent / "probes"
TRANSFORMED = ("vmapped ", "tangent of ")  # how the names of tensors begin that a claimed transform gives


def is_dtype(word: str) -> bool:
    """Return whether a word is the name of a torch dtype.

    Raises:
        TypeError: `word` is not a str.

    >>> is_dtype("float16"), is_dtype("half precision")
    (True, False)
    """
    if not isinstance(word, str):
        raise TypeError(f"is_dtype: word must be a str, got {type(word).__name__}")
    return isinstance(getattr(torch, word, None), torch.dtype)


@dataclass(frozen=True, kw_only=True)
class Spec:
    """The contract of one model: a module, an op or a custom autograd.Function.

    Attributes:
        name: unique name; lower-case letters, digits and "_".
        alias: a second name, for a model whose first name is easily taken for another model.
        summary: the model in one line.
        source: the text or paper the mathematics comes from.
        formula: the mathematics in one line, for the catalogue in docs.
        shapes: shapes of inputs and outputs, such as "(batch, n), (n, m) → (batch, m)".
        build: returns the model, an `nn.Module` or a function. `zoo.create_model` passes keyword arguments on to
            it. Weights are drawn from torch's global generator. Every call makes all parts of its model anew: give it
            the class of a module, as in `partial(Net, activation=nn.ReLU)`, and not the module.
        cases: the inputs to try; at least one. The first is the typical one.
        initialise: changes a fresh module in place before the matrix judges it and `zoo.create_model` returns it. It
            sets weights, statistics or the training mode, for models whose initial values make a weak test.
        dtype: the dtype of the floating parameters and inputs that `build` and `cases` make: "float32", "float16" or
            "bfloat16". A model in half precision is judged without autocast, as it is.
        dtypes: dtype of each output leaf, or one word for all: "follows" (the autocast dtype, float32
            without autocast), "input" (the promoted floating dtype of the inputs) or the name of a dtype such
            as "int64". A mapping from leaf names ("output", "output[0]", "output['mean']") gives each leaf
            its own word; each value may be a mapping from device types in turn. None: the dtype of eager.
        differentiable: the matrix checks the gradient of every floating input and parameter.
        constants: names of floating inputs that get no gradient, such as the targets of a loss.
        stops_gradients: results of `detach` and `item`, and of ops under `no_grad`, are constants on purpose.
        twice_differentiable: the matrix also checks Hessian-vector products, and gradgradcheck in float64.
        vmappable: `torch.vmap` over a new first axis of every input tensor gives what a loop over the samples gives.
        forward_mode: forward-mode derivatives (`torch.func.jvp`, `torch.autograd.forward_ad`) agree with the
            gradients. The backward must be differentiable in its cotangent.
        one_graph: torch.compile captures each call in one graph, without a graph break. False declares that it may not;
            with None, a graph break is red in a strict run alone.
        deterministic: identical calls agree bit for bit.
        threads: so many threads may call one instance at once. Above 1, every mode is called so.
        mutates: names of inputs and parameters that forward changes on purpose; what they are after it is judged.
        changes_state: what else a call changes on purpose, in words of `STATES`: of the process ("random generator",
            "grad mode", modes of torch functions and dispatch …), of the leaves (`.grad`: "gradients", "requires_grad",
            "hooks") or of the module ("training", new or replaced "parameters" …). If a call draws random
            numbers, all generators get a seed before it, those of the module too, and compiled code draws as eager.
        aliases: pairs of names, such as ("output", "x"): the output shares memory with the input, parameter, "buffer …"
            or later output, in every mode. Without a declaration, a mode may return a copy.
        float32_accurate: names of the tensors that must reach float32's precision under every autocast dtype.
        reference: a formula or a trusted implementation. A formula is called as reference(model, *inputs) in
            float64. A trusted implementation is a subclass of `nn.Module`, or a callable that can be called
            without arguments and returns a module or a function, like `build`. It has the parameters and buffers
            of the model, by name. It then is the oracle: every result of the model is held to its results, and
            every dtype that `dtypes` does not name to its dtype. With a `scale`, it is called with the size.
        surrogate_gradient: for models whose gradient is not the derivative by design: a function with the
            arguments of a formula whose ordinary derivative is that gradient.
        conventions: tensors whose gradient is not the derivative by design; only the others must be the derivative.
        twin: name of a model that computes the same in another way, with the same parameters.
        fit: trains the model; the matrix calls it in place of the model, as fit(call, model, precision, *inputs).
            `call` is the model's forward in some mode, `model` owns the parameters, and `precision` is "fp32",
            "amp_fp16" or "amp_bf16". `fit` enters autocast itself. The matrix judges its result, such as the
            loss of every step, like an output. It asks for no gradients: `differentiable` must be False.
        scripted: returns the ScriptModule or ScriptFunction; None: torch.jit.script(build()).
        expectations: the declared divergences.
        scale: how to build the model at larger sizes, for measurements.
        family: the shapes in which its inputs may come, of which a run draws some.
        claims: the gains that its sources publish.
        candidates: replacements for this model, which a run judges beside its modes.
        error_inputs: inputs that the model refuses with an error. The matrix calls every mode with them, last of all.

    >>> import torch
    >>> double = Spec(
    ...     name="double", summary="twice x", source="arithmetic", build=lambda: lambda x: 2 * x, dtypes="input",
    ...     cases=(Case(name="typical", inputs=lambda g: (torch.randn(4, generator=g),)),),
    ... )
    >>> double.build()(torch.ones(2)), double.dtype_word("output", "cpu")
    (tensor([2., 2.]), 'input')
    """

    name: str
    summary: str
    source: str
    build: Callable[..., Model]
    cases: tuple[Case, ...]
    alias: str = ""
    formula: str = ""
    shapes: str = ""
    initialise: Callable[[Any], None] | None = None
    dtype: str = "float32"
    dtypes: str | Mapping[str, str | Mapping[str, str]] | None = None
    differentiable: bool = True
    constants: tuple[str, ...] = ()
    stops_gradients: bool = False
    twice_differentiable: bool = False
    vmappable: bool = False
    forward_mode: bool = False
    one_graph: bool | None = None
    deterministic: bool = True
    threads: int = 1
    mutates: tuple[str, ...] = ()
    changes_state: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    float32_accurate: tuple[str, ...] = ()
    reference: Callable[..., Any] | None = None
    surrogate_gradient: Callable[..., Any] | None = None
    conventions: tuple[Convention, ...] = ()
    twin: str = ""
    fit: Callable[..., Any] | None = None
    scripted: Callable[..., Model] | None = None
    expectations: tuple[Expect, ...] = ()
    scale: Scale | None = None
    family: Family | None = None
    claims: tuple[Claim, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    error_inputs: tuple[ErrorInput, ...] = ()

    def __post_init__(self) -> None:
        for field, pattern in (("name", NAME_AND_SIZE), ("alias", NAME_OR_NONE)):
            if not isinstance(given := getattr(self, field), str) or not pattern.fullmatch(given):
                raise SpecError(f"spec {field} {given!r}: want lower-case letters, digits and '_'")
        self._check_texts_and_functions()
        self._check_conduct()
        self._check_cases()
        if self.dtype not in DTYPES:
            raise SpecError(f"spec {self.name}: dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if not isinstance(self.dtypes, (str, Mapping, type(None))):
            raise SpecError(f"spec {self.name}: dtypes must be a word or a mapping of them, got {self.dtypes!r}")
        for word in self._dtype_words():
            if word not in DTYPE_WORDS and not is_dtype(word):
                raise SpecError(f"spec {self.name}: dtypes: {word!r} is neither 'follows', 'input' nor a torch dtype")
        self._check_transforms()
        if self.fit is not None and self.differentiable:
            raise SpecError(f"spec {self.name}: fit takes its own gradients, so it needs differentiable=False")
        if isinstance(self.reference, nn.Module):
            raise SpecError(f"spec {self.name}: reference is a module; want its class, or a function that builds it")
        for field, record in (("conventions", Convention), ("expectations", Expect), ("claims", Claim)):
            self._check_records(field, record)
        self._check_expectations()

    def _check_texts_and_functions(self) -> None:
        for field in ("summary", "source", "formula", "shapes", "twin"):
            if not isinstance(getattr(self, field), str):
                raise SpecError(f"spec {self.name}: {field} must be a string, got {getattr(self, field)!r}")
        for field in ("build", "initialise", "reference", "surrogate_gradient", "fit", "scripted"):
            value = getattr(self, field)
            if not callable(value) and (value is not None or field == "build"):
                raise SpecError(f"spec {self.name}: {field} must be callable, got {value!r}")

    def _check_transforms(self) -> None:
        for claim in ("twice_differentiable", "forward_mode"):
            if getattr(self, claim) and not self.differentiable:
                raise SpecError(f"spec {self.name}: {claim} needs differentiable")
        for claim in ("vmappable", "forward_mode"):
            if getattr(self, claim) and (self.fit is not None or self.mutates):
                raise SpecError(f"spec {self.name}: {claim} needs a model without fit that mutates nothing")

    def _check_expectations(self) -> None:
        """Refuse what `Expect` cannot see: a dtype that torch lacks, and a probe that the zoo lacks."""
        for expected in self.expectations:
            where = f"spec {self.name}: expectation {expected.reason!r}"
            if expected.outcome == "dtype" and not is_dtype(expected.dtype):
                raise SpecError(f"{where}: torch has no dtype {expected.dtype!r}")
            if expected.probe and not (expected.probe.isidentifier() and (PROBES / f"{expected.probe}.py").is_file()):
                raise SpecError(f"{where}: there is no probe {expected.probe!r} in zoo.probes")

    def _check_cases(self) -> None:
        if not isinstance(self.cases, tuple) or not self.cases:
            raise SpecError(f"spec {self.name}: cases: want a tuple with at least one Case, got {self.cases!r}")
        for field, record in (("cases", Case), ("candidates", Candidate), ("error_inputs", ErrorInput)):
            self._check_named(field, record)
        for name in {case.name for case in self.cases} & {given.name for given in self.error_inputs}:
            raise SpecError(f"spec {self.name}: a case and an error input are named {name!r}")
        if not isinstance(self.family, (Family, type(None))):
            raise SpecError(f"spec {self.name}: family must be a Family, got {self.family!r}")

    def _check_records(self, field: str, record: type) -> None:
        items = getattr(self, field)
        if not isinstance(items, tuple) or not all(isinstance(item, record) for item in items):
            raise SpecError(f"spec {self.name}: {field} must be a tuple of {record.__name__} records, got {items!r}")

    def _check_named(self, field: str, record: type) -> None:
        self._check_records(field, record)
        names = [item.name for item in getattr(self, field)]
        for name in names:
            if names.count(name) > 1:
                raise SpecError(f"spec {self.name}: two {field} are named {name!r}")

    def _check_conduct(self) -> None:
        if not isinstance(self.threads, int) or self.threads < 1:
            raise SpecError(f"spec {self.name}: threads must be a number of threads, got {self.threads!r}")
        for field in ("constants", "mutates", "float32_accurate", "changes_state"):
            check_names(f"spec {self.name}: {field}", getattr(self, field))
        for state in self.changes_state:
            if state not in STATES:
                raise SpecError(f"spec {self.name}: changes_state: {state!r} is none of {', '.join(STATES)}")
        if not isinstance(self.aliases, tuple):
            raise SpecError(f"spec {self.name}: aliases must be a tuple of pairs of names, got {self.aliases!r}")
        for pair in self.aliases:
            check_names(f"spec {self.name}: a pair of aliases", pair)
            if len(pair) != 2:  # noqa: PLR2004
                raise SpecError(f"spec {self.name}: a pair of aliases has two names, got {pair!r}")

    def _dtype_words(self) -> list[str]:
        values = [self.dtypes] if isinstance(self.dtypes, str) else list((self.dtypes or {}).values())
        return [word for value in values for word in ([value] if isinstance(value, str) else value.values())]

    @property
    def trusts_model(self) -> bool:
        """Whether `reference` is a trusted implementation and not a formula.

        >>> import zoo
        >>> spec = zoo.get_spec("square")
        >>> spec.trusts_model, replace(spec, reference=nn.Identity).trusts_model
        (False, True)
        """
        if self.reference is None or (isinstance(self.reference, type) and issubclass(self.reference, nn.Module)):
            return self.reference is not None
        try:
            parameters = inspect.signature(self.reference).parameters.values()
        except (TypeError, ValueError):  # a built-in function has no signature
            return False
        return not any(p.default is p.empty for p in parameters)

    def dtype_word(self, leaf: str, device: str) -> str | None:
        """Return the declared dtype word of one output leaf; None if the spec declares nothing.

        Args:
            leaf: name of the output, such as "output[0]".
            device: device type, such as "cpu".
        """
        if self.dtypes is None or isinstance(self.dtypes, str):
            return self.dtypes
        word = self.dtypes.get(leaf)
        return word if word is None or isinstance(word, str) else word.get(device)

    def initialised(self, model: Model) -> Model:
        """Apply `initialise` to a fresh model, and return it."""
        if self.initialise is not None:
            with torch.no_grad():
                self.initialise(model)
        return model

    def at(self, size: int) -> Spec:
        """Return the spec of this model at a size of its scale, named like "merge@256", with one case.

        Raises:
            SpecError: the model has no scale, or `size` is not positive.
        """
        if self.scale is None:
            raise SpecError(f"{self.name} has no scale, so there is no {self.name}@{size}")
        if size < 1:
            raise SpecError(f"{self.name}@{size}: the {self.scale.size_name} must be positive")
        case = Case(
            name=f"{self.scale.size_name}-{size}",
            inputs=partial(self.scale.inputs, size),
            independent_samples=self.cases[0].independent_samples,
        )
        scripted = None if self.scale.scripted is None else partial(self.scale.scripted, size)
        kept = tuple(e for e in self.expectations if not e.tensor.startswith(TRANSFORMED))
        candidates = tuple(
            replace(c, build=partial(c.build_at, size), build_at=None) for c in self.candidates if c.build_at
        )
        reference = partial(self.reference, size) if self.reference and self.trusts_model else self.reference
        return replace(
            self,
            name=f"{self.name}@{size}",
            build=partial(self.scale.build, size),
            scripted=scripted,
            cases=(case,),
            reference=reference,
            vmappable=False,  # its own cases check the transforms
            forward_mode=False,
            expectations=kept,
            twin="",
            alias="",
            scale=None,
            family=None,
            claims=(),
            candidates=candidates,
            error_inputs=(),
        )

    def shaped(self, sizes: Mapping[str, int]) -> Spec:
        """Return the spec of this model at a shape of its family, named like "softmax@rows=3,n=1", with one case.

        What is declared for one of its own cases, and its error inputs, are left to these.

        Raises:
            SpecError: the model has no family, these are not its sizes, or one is out of its bounds.
        """
        name = f"{self.name.partition('@')[0]}@{','.join(f'{size}={number}' for size, number in sizes.items())}"
        if self.family is None:
            raise SpecError(f"{self.name} has no family of shapes, so there is no {name}")
        try:
            case = self.family.case(sizes, independent_samples=self.cases[0].independent_samples)
        except SpecError as problem:
            raise SpecError(f"{name}: {problem}") from None
        kept = tuple(expected for expected in self.expectations if not expected.case)
        return replace(
            self, name=name, cases=(case,), expectations=kept, alias="", scale=None, claims=(), error_inputs=()
        )

    def sized(self, size: str) -> Spec:
        """Return the spec that has this behind the "@" in its name: a size of the scale, or sizes of the family.

        Raises:
            SpecError: it is neither, or there is no such spec; see `at` and `shaped`.
        """
        if SIZES.fullmatch(size):
            pairs = (one.split("=") for one in size.split(","))
            return self.shaped({name: int(number) for name, number in pairs})
        if not size.isdecimal():
            raise SpecError(f"{self.name}@{size}: want a positive number behind '@', or sizes such as rows=3,n=1")
        return self.at(int(size))

    def case(self, name: str) -> Case:
        """Return the case with this name.

        Raises:
            UnknownNameError: there is no such case; the message lists the names.
        """
        for case in self.cases:
            if case.name == name:
                return case
        raise UnknownNameError(f"{self.name} has no case {name!r}; it has {', '.join(c.name for c in self.cases)}")
