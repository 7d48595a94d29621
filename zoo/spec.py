"""What a model promises: the frozen records beside every zoo entry, and their validation.

A `Spec` is data. It says how to build a model, which inputs to try, and what must hold for it; the
conformance matrix does the rest. Nothing here runs a model. A record that contradicts itself raises a
`SpecError` when it is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from packaging.specifiers import InvalidSpecifier, SpecifierSet

Model = Callable[..., Any]

NAME = re.compile(r"[a-z][a-z0-9_]*")
DTYPE_WORDS = ("follows", "input")
OUTCOMES = ("dtype", "refuses", "FAIL", "UNSTABLE", "VOID", "INVALID", "INCONCLUSIVE", "ERROR")
ENDINGS = ("CRASH", "TIMEOUT", "OOM")


class SpecError(ValueError):
    """A spec that contradicts itself; the message names the spec and the field."""


def _is_dtype(word: str) -> bool:
    return isinstance(getattr(torch, word, None), torch.dtype)


def _check_names(where: str, names: Any) -> None:
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise SpecError(f"{where} must be a tuple of names, got {names!r}")


@dataclass(frozen=True)
class Call:
    """The arguments of one call: `model(*args, **kwargs)`.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.

    >>> Call((torch.ones(2),), {"dim": 0}).kwargs
    {'dim': 0}
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One named set of inputs.

    Attributes:
        name: lower-case identifier, unique within the spec; hyphens are allowed.
        inputs: draws the inputs from the generator it is given: a tuple of positional arguments, or a
            `Call` where keywords are needed. CPU tensors; floating ones are rounded to values that
            float16 and bfloat16 both represent before any run sees them.
        independent_samples: row i of every output depends on row i of every input only. The matrix then
            draws more rows and keeps those that stay away from kinks (relu, max, clamp), where a
            rounding error could flip a unit and gradients have no single right value.

    >>> case = Case(name="one-row", inputs=lambda g: (torch.randn(1, 3, generator=g),))
    >>> case.draw(torch.Generator().manual_seed(0)).args[0].shape
    torch.Size([1, 3])
    """

    name: str
    inputs: Callable[[torch.Generator], tuple[Any, ...] | Call]
    independent_samples: bool = False

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name.replace("-", "_")):
            raise SpecError(f"case name {self.name!r}: want lower-case letters, digits, '-' and '_'")
        if not callable(self.inputs):
            raise SpecError(f"case {self.name!r}: inputs must be a function of a torch.Generator, got {self.inputs!r}")

    def draw(self, generator: torch.Generator) -> Call:
        """Draw the inputs as a `Call`.

        Args:
            generator: source of every random number, on the CPU.

        Raises:
            SpecError: `inputs` returned neither a tuple nor a `Call`.
        """
        drawn = self.inputs(generator)
        if isinstance(drawn, Call):
            return drawn
        if isinstance(drawn, tuple):
            return Call(drawn)
        raise SpecError(
            f"case {self.name!r}: inputs must return a tuple of arguments or a Call, got {type(drawn).__name__}"
        )


@dataclass(frozen=True, kw_only=True)
class Expect:
    """A declared divergence: which cells, what exactly happens, why, where it is known, on which torch.

    Attributes:
        outcome: `"dtype"`: the output named by `tensor` has dtype `dtype` instead of the contract's, and
            every other gate holds. `"refuses"`: building or calling the mode raises `error` with a
            message that `match` finds. Otherwise the name of a red verdict that must come out.
        reason: one sentence a reader can check.
        link: where the behaviour is documented or reported.
        modes, precisions, devices: the cells concerned; an empty tuple means all.
        torch: version range in the form of PEP 440, such as ">=2.6,<2.15"; empty means all.
        tensor, dtype: for "dtype" and "FAIL"; a tensor name as the report prints it, such as "output".
        error, match: for "refuses" and "ERROR": the exception's type name and a regular expression.
        gate, case: for "FAIL": the gate that must say no, and in which case.

    >>> known = Expect(outcome="VOID", modes=("compiled",), torch=">=2.6", reason="falls back to eager")
    >>> known.concerns("compiled", "fp32", "cpu", "2.13.0"), known.concerns("compiled", "fp32", "cpu", "2.4.1")
    (True, False)
    """

    outcome: str
    reason: str
    link: str = ""
    modes: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    torch: str = ""
    tensor: str = ""
    dtype: str = ""
    error: str = ""
    match: str = ""
    gate: str = ""
    case: str = ""

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES + ENDINGS:
            raise SpecError(f"outcome {self.outcome!r}: want one of {', '.join(OUTCOMES + ENDINGS)}")
        if not self.reason:
            raise SpecError(f"an expectation of {self.outcome!r} needs a reason")
        for axis in ("modes", "precisions", "devices"):
            _check_names(f"expectation {self.reason!r}: {axis}", getattr(self, axis))
        if self.outcome == "dtype" and not (self.tensor and _is_dtype(self.dtype)):
            raise SpecError(
                f"an expectation of 'dtype' needs tensor and a dtype's name, got {self.tensor!r} and {self.dtype!r}"
            )
        if self.outcome == "refuses" and not (self.error and self.match):
            raise SpecError("an expectation of 'refuses' needs error and match")
        try:
            SpecifierSet(self.torch)
            re.compile(self.match)
        except (InvalidSpecifier, re.error) as problem:
            raise SpecError(f"expectation {self.reason!r}: {problem}") from problem

    def concerns(self, mode: str, precision: str, device: str, torch_version: str) -> bool:
        """Whether this expectation is about the given cell on the given torch.

        Args:
            mode: the cell's.
            precision: the cell's.
            device: the cell's, by type.
            torch_version: such as "2.13.0+cpu"; what follows the plus sign is left out.
        """
        return (
            (not self.modes or mode in self.modes)
            and (not self.precisions or precision in self.precisions)
            and (not self.devices or device in self.devices)
            and SpecifierSet(self.torch).contains(torch_version.split("+", maxsplit=1)[0], prereleases=True)
        )


@dataclass(frozen=True, kw_only=True)
class Spec:
    """The contract of one model: a module, an op or a custom autograd.Function.

    Attributes:
        name: unique, lower-case.
        summary: one line.
        source: where the mathematics comes from.
        formula: the mathematics, in one line; for the catalogue in docs.
        shapes: of inputs and outputs, such as "(batch, n), (n, m) → (batch, m)".
        build: returns the model, an `nn.Module` or a function; keyword arguments reach it from
            `zoo.create_model`. Weights are drawn from torch's global generator.
        cases: the inputs to try; at least one. The first is the typical one.
        initialise: changes a fresh module in place for the matrix: weights, statistics or mode under which
            it should be judged, where the constructor's own say little.
        dtypes: dtype of each output leaf, or one word for all: "follows" (the autocast dtype, float32
            without autocast), "input" (the promoted floating dtype of the inputs) or a dtype's name such
            as "int64". A mapping from leaf name ("output", "output[0]", "output['mean']") gives each its
            own; a value may again be a mapping from device type. None: whatever eager does.
        differentiable: gradients of every floating input and parameter are checked.
        twice_differentiable: so are Hessian-vector products, and gradgradcheck in float64.
        one_graph: torch.compile captures each call whole, without a graph break.
        deterministic: identical calls agree bit for bit.
        mutates: names of inputs that are changed in place on purpose; their content afterwards is judged.
        float32_accurate: names of tensors held to float32's precision under every autocast dtype.
        reference: independent float64 formula, called as reference(model, *inputs).
        surrogate_gradient: for gradients that by design are not the derivative: a function, called the
            same way, whose ordinary derivative they are.
        twin: name of a model that computes the same by another road, with the same parameters.
        fit: trains instead of calling. It is called as fit(call, model, precision, *inputs): `call` is the
            model's forward in some mode, `model` owns the parameters, `precision` is "fp32", "amp_fp16" or
            "amp_bf16", and autocast is its own to enter. What it returns, such as the loss of every step, is
            judged like an output; gradients are not asked for, so `differentiable` must be False.
        scripted: builds the ScriptModule or ScriptFunction by hand; None: torch.jit.script(build()).
        expectations: the declared divergences.

    >>> double = Spec(
    ...     name="double", summary="twice x", source="arithmetic", build=lambda: lambda x: 2 * x, dtypes="input",
    ...     cases=(Case(name="typical", inputs=lambda g: (torch.randn(4, generator=g),)),),
    ... )
    >>> double.build()(torch.ones(2)), double.dtype_word("output", "cpu")
    (tensor([2., 2.]), 'input')
    >>> double.case("typical").name
    'typical'
    """

    name: str
    summary: str
    source: str
    build: Callable[..., Model]
    cases: tuple[Case, ...]
    formula: str = ""
    shapes: str = ""
    initialise: Callable[[Any], None] | None = None
    dtypes: str | Mapping[str, str | Mapping[str, str]] | None = None
    differentiable: bool = True
    twice_differentiable: bool = False
    one_graph: bool = False
    deterministic: bool = True
    mutates: tuple[str, ...] = ()
    float32_accurate: tuple[str, ...] = ()
    reference: Callable[..., Any] | None = None
    surrogate_gradient: Callable[..., Any] | None = None
    twin: str = ""
    fit: Callable[..., Any] | None = None
    scripted: Callable[..., Model] | None = None
    expectations: tuple[Expect, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise SpecError(f"spec name {self.name!r}: want lower-case letters, digits and '_'")
        if not callable(self.build):
            raise SpecError(f"{self.name}: build must be callable, got {self.build!r}")
        _check_names(f"{self.name}: mutates", self.mutates)
        _check_names(f"{self.name}: float32_accurate", self.float32_accurate)
        self._check_cases()
        for word in self._dtype_words():
            if word not in DTYPE_WORDS and not _is_dtype(word):
                raise SpecError(f"{self.name}: dtypes: {word!r} is neither 'follows', 'input' nor a torch dtype")
        if self.twice_differentiable and not self.differentiable:
            raise SpecError(f"{self.name}: twice_differentiable needs differentiable")
        if self.fit is not None and self.differentiable:
            raise SpecError(f"{self.name}: fit takes its own gradients, so it needs differentiable=False")
        for item in self.expectations:
            if not isinstance(item, Expect):
                raise SpecError(f"{self.name}: expectations must hold Expect records, got {item!r}")

    def _check_cases(self) -> None:
        if not isinstance(self.cases, tuple) or not self.cases:
            raise SpecError(f"{self.name}: cases: want a tuple with at least one Case, got {self.cases!r}")
        names = [case.name if isinstance(case, Case) else case for case in self.cases]
        for name in names:
            if not isinstance(name, str):
                raise SpecError(f"{self.name}: cases must hold Case records, got {name!r}")
            if names.count(name) > 1:
                raise SpecError(f"{self.name}: two cases are named {name!r}")

    def _dtype_words(self) -> list[str]:
        if self.dtypes is None:
            return []
        values = [self.dtypes] if isinstance(self.dtypes, str) else list(self.dtypes.values())
        return [word for value in values for word in ([value] if isinstance(value, str) else value.values())]

    def dtype_word(self, leaf: str, device: str) -> str | None:
        """The contract's word for one output leaf; None where nothing is declared.

        Args:
            leaf: name of the output, such as "output[0]".
            device: device type.
        """
        if self.dtypes is None or isinstance(self.dtypes, str):
            return self.dtypes
        word = self.dtypes.get(leaf)
        return word if word is None or isinstance(word, str) else word.get(device)

    def case(self, name: str) -> Case:
        """The case of that name.

        Raises:
            KeyError: no such case; the message lists them.
        """
        for case in self.cases:
            if case.name == name:
                return case
        raise KeyError(f"{self.name} has no case {name!r}; it has {', '.join(c.name for c in self.cases)}")
