"""What a model promises: the frozen record beside every zoo entry, and its validation.

A `Spec` is data. It says how to build a model, which inputs to try, and what must hold for it; the
conformance matrix does the rest. Nothing here runs a model. A record that contradicts itself raises a
`SpecError` when it is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from zoo.case import NAME, Case, SpecError
from zoo.claim import Claim
from zoo.expect import Expect, check_names, is_dtype
from zoo.scale import Scale

Model = Callable[..., Any]

NAME_AND_SIZE = re.compile(rf"{NAME.pattern}(@[0-9]+)?")
DTYPE_WORDS = ("follows", "input")


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
        scale: how to make it larger, for measurements.
        claims: what its sources say it gains.

    >>> import torch
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
    scale: Scale | None = None
    claims: tuple[Claim, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME_AND_SIZE.fullmatch(self.name):
            raise SpecError(f"spec name {self.name!r}: want lower-case letters, digits and '_'")
        if not callable(self.build):
            raise SpecError(f"{self.name}: build must be callable, got {self.build!r}")
        check_names(f"{self.name}: mutates", self.mutates)
        check_names(f"{self.name}: float32_accurate", self.float32_accurate)
        self._check_cases()
        for word in self._dtype_words():
            if word not in DTYPE_WORDS and not is_dtype(word):
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

    def at(self, size: int) -> Spec:
        """The spec of this model at a size of its scale, named like "merge@256", with one case.

        Raises:
            SpecError: it has no scale, or the size is not positive.

        >>> import zoo
        >>> zoo.get_spec("merge").at(64).name
        'merge@64'
        """
        if self.scale is None:
            raise SpecError(f"{self.name} has no scale, so there is no {self.name}@{size}")
        if size < 1:
            raise SpecError(f"{self.name}@{size}: the {self.scale.knob} must be positive")
        case = Case(
            name=f"{self.scale.knob}-{size}",
            inputs=partial(self.scale.inputs, size),
            independent_samples=self.cases[0].independent_samples,
        )
        scripted = None if self.scale.scripted is None else partial(self.scale.scripted, size)
        build = partial(self.scale.build, size)
        name = f"{self.name}@{size}"
        return replace(self, name=name, build=build, scripted=scripted, cases=(case,), twin="", scale=None, claims=())

    def case(self, name: str) -> Case:
        """The case of that name.

        Raises:
            KeyError: no such case; the message lists them.
        """
        for case in self.cases:
            if case.name == name:
                return case
        raise KeyError(f"{self.name} has no case {name!r}; it has {', '.join(c.name for c in self.cases)}")
