"""What was observed in a cell, before it is judged: measures, tensors, and how the cell ended."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from conformance.records.convert import Rounded, one_of

RAISES = "raises"  # the gate of the error inputs
PROBED = "shows "  # begins the fact that a probe shows its fault on this machine, or does not; see `Expectation`
ASKED_OTHERWISE = "refused when asked otherwise"  # the fact that names the ways in which a call may raise an error
STOPPED = "gradients stopped"  # the fact that names the leaves of whose gradients a part is stopped on purpose
HOOKED = "gradients hooked"  # the fact of a model whose hooks change its gradients
LEFT_ASIDE = "left aside"  # the fact of a cell whose model returns other things than tensors
REDRAWN, SHORTER = "with other weights", "with a row less"  # the ways in which a case runs again with other weights
FP32, OTHER_WEIGHTS = "fp32", "fp32 with other weights"  # who judges what a cell cannot
PRINTED = {  # the name of a tensor as people read and write it, by its kind
    "output": "{}",
    "gradient": "gradient of {}",
    "second": "second gradient of {}",
    "buffer": "buffer {}",
    "attribute": "attribute {}",
    "after": "{} after",
    "put": "put into {}",
    "vmapped": "vmapped {}",
    "tangent": "tangent of {}",
    "subject": "{}",
}


@dataclass(frozen=True)
class TensorName:
    """What a tensor is, and of which leaf. Its text is for people and for what they declare; nothing parses it.

    Attributes:
        kind: "output"; "gradient" and "second", the first and second gradients of a leaf; "buffer"; "attribute", a
            number that a module keeps otherwise; "after", a leaf that forward may write, after it; "put", a tensor that
            forward has put into a container among its arguments; "vmapped" and "tangent", an output under `torch.vmap`
            and in forward mode; or "subject", no tensor but what a call did wrong: a state such as "grad mode", or
            "compiled code".
        leaf: the output ("output", "output[0]"), input, parameter or buffer.

    >>> print(TensorName("gradient", "x"))
    gradient of x
    """

    kind: Annotated[str, one_of(PRINTED)]
    leaf: str

    def __str__(self) -> str:
        """The name as a report prints it."""
        return PRINTED[self.kind].format(self.leaf)

    @property
    def is_gradient(self) -> bool:
        """Whether it is a first or second gradient, which the scale of the cotangents multiplies."""
        return self.kind in ("gradient", "second")


OUTPUT = TensorName("output", "output")  # of a model that returns one tensor


def way_of(case: str, way: str) -> str:
    """The name of a case that is asked in another way; `case_of` gives the case.

    >>> way_of("typical", "under no_grad")
    'typical, under no_grad'
    """
    return f"{case}, {way}"


def case_of(name: str) -> str:
    """The name of the case itself, in whatever way it was asked."""
    return name.partition(", ")[0]


@dataclass(frozen=True)
class Measure:
    """One number and its budget. It is met if value ≤ budget, so a NaN never meets it.

    Attributes:
        gate: name of the gate that measured it.
        value, budget: the number that was found, and the largest that is allowed. Of an error input, 0 is the error
            that was asked for, 1 another one, and infinity none.
        detail: what was found, and at which element or slice; a report shows it in place of the numbers if `value` is
            infinite.
    """

    gate: str
    value: Rounded
    budget: Rounded
    detail: str = ""

    @property
    def met(self) -> bool:
        """Whether the value is within its budget."""
        return self.value <= self.budget

    @property
    def margin(self) -> float:
        """Value over budget: 0 is perfect, above 1 is red; infinite if the value is NaN, or not met with budget 0."""
        if self.met:
            return self.value / self.budget if self.budget else 0.0
        return self.value / self.budget if self.budget and not math.isnan(self.value) else math.inf


@dataclass(frozen=True)
class Discrepancy:
    """One tensor of one case, compared with the oracle's.

    Attributes:
        case, tensor: names. An error input stands in the place of a case.
        kind: how it is compared: "exact" (must be equal), "null" (the oracle is structurally zero), "remainder"
            (a gradient that cancellation leaves, and float32 holds little of it), "empty" (no elements), "absent"
            (missing, unexpected, or faulty apart from its values), "float32" (must meet float32's budgets although the
            cell's precision is low), "conduct" (not compared: what a call did apart from its numbers) or "rounded"
            (all others).
        dtype, dtype_asked: the dtype found, and the one that the contract asks for; "" if it asks for none.
        measures: the measures, in the order of the gates.
        accepted: names of the canaries that the gates failed to reject.
        weak: names of the canaries that damage a part that rounding, or a flipped unit, leaves undefined.
        left_to: who can tell this tensor from a wrong one, if roundings may change as much here: `FP32`, whose budgets
            it does not meet in a low precision, or `OTHER_WEIGHTS`, with which the case is called too; "" if nobody
            else need.
        rejected: number of canaries with wrong values that the gates rejected; 0 if none was tried.
        closer: whether it is nearer to the oracle than eager at the same precision; None in eager cells, or if the two
            cannot be compared.
    """

    case: str
    tensor: TensorName
    kind: str
    dtype: str
    dtype_asked: str
    measures: tuple[Measure, ...]
    accepted: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    left_to: str = ""
    rejected: int = 0
    closer: bool | None = None


@dataclass(frozen=True)
class Rest:
    """Tensors that every gate accepts and that are far from their budgets; a stored run keeps only this of them.

    Attributes:
        count: number of tensors of all cases.
        margins: the largest margin of any of them, by gate.
        dtypes: the names of the tensors as they are printed, by case and by dtype.
        weak, left: number of those that have weak canaries, and of those that are left to another run.
    """

    count: int
    margins: Mapping[str, Rounded]
    dtypes: Mapping[str, Mapping[str, tuple[str, ...]]]
    weak: int = 0
    left: int = 0


@dataclass(frozen=True)
class Observation:
    """What was observed in a cell.

    Attributes:
        ending: "finished"; "raised" (see error, message and phase); "not proven"; "no oracle" (from the reference, or
            the cell draws other random numbers than it); "invalid" and "random" (from the reference); "crashed",
            "timed out", "out of memory"; "machine failed" and "damaged reference", which say nothing about the model
            and get no verdict.
        phase: the phase in which it ended: reference, import, build, prepare, call, second order, judge,
            error inputs.
        error, message: type of the exception, and one line of text.
        discrepancies: one for each tensor of each case, also if the tensor is right, one for each thing that a call did
            wrong apart from its tensors, and one for each error input.
        facts: proof of the mode, state of the compile cache, and other facts for the record.
        seconds: seconds spent in each phase; those of the reference are for the whole model.
        cases: names of the cases that were called and compared.
        rest: the tensors that are not among `discrepancies`, in a stored run; None if all are there.
        said: the last lines that a process printed on its error stream before it crashed or timed out.
    """

    ending: str
    phase: str = ""
    error: str = ""
    message: str = ""
    discrepancies: tuple[Discrepancy, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    cases: tuple[str, ...] = ()
    rest: Rest | None = None
    said: tuple[str, ...] = ()

    def outputs(self, case: str) -> list[Discrepancy]:
        """The tensors of a case that the model gives: what it returns, puts into its inputs, or writes on purpose."""
        found = [d for d in self.discrepancies if d.case == case and d.kind != "conduct"]
        return [d for d in found if d.tensor.kind in ("output", "put", "after")]
