"""A cell of the matrix: its name, what was observed in it before it is judged, and the verdict on it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from conformance.records.convert import ABOVE_ZERO, Name, Rounded, one_of


@dataclass(frozen=True)
class Cell:
    """One square of the matrix: a model in one mode, precision and device, with all cases of the model.

    `model` is a name such as "merge", "merge@64" at a size of its scale, or "merge@rows=3,n=1" at a shape of its
    family; the others are in `conformance.axes`.
    """

    model: Name
    mode: Name
    precision: Name
    device: Name

    @property
    def id(self) -> str:
        """The cell's name in every table, record and message.

        >>> Cell("merge", "eager", "fp32", "cpu").id
        'merge[eager-fp32-cpu]'
        """
        return f"{self.model}[{self.mode}-{self.precision}-{self.device}]"


def model_of(cell_id: str) -> str:
    """The model in a cell's id.

    >>> model_of("merge@64[eager-fp32-cpu]")
    'merge@64'
    """
    return cell_id.partition("[")[0]


def mode_of(cell_id: str) -> str:
    """The mode in a cell's id.

    >>> mode_of("merge@64[eager-fp32-cpu]")
    'eager'
    """
    return cell_id.partition("[")[2].partition("-")[0]


@dataclass(frozen=True)
class SizedModel:
    """A model, without the size in its name, at a size of its scale; `size_name` is such as "width", or ""."""

    model: Name
    size: Annotated[int, ABOVE_ZERO]
    size_name: str = ""

    @property
    def name(self) -> str:
        """The name of the model at that size, as in a spec, a plan and on the command line.

        >>> SizedModel("merge", 64).name
        'merge@64'
        """
        return f"{self.model}@{self.size}"


@dataclass(frozen=True)
class Shape:
    """A model, without the sizes in its name, at sizes of its family; `least` are the smallest that these may be."""

    model: Name
    sizes: Mapping[str, int]
    least: Mapping[str, int]

    @property
    def sizes_text(self) -> str:
        """The sizes, as in the name of the model."""
        return ",".join(f"{name}={size}" for name, size in self.sizes.items())

    @property
    def name(self) -> str:
        """The name of the model at these sizes, as in a spec, a plan and on the command line.

        >>> Shape("softmax", {"rows": 3, "n": 1}, {"rows": 1, "n": 1}).name
        'softmax@rows=3,n=1'
        """
        return f"{self.model}@{self.sizes_text}"

    def smaller(self) -> "Iterator[Shape]":
        """The same with one size made smaller: it is at or near the smallest, or nearer by a power of two.

        >>> [one.sizes["n"] for one in Shape("softmax", {"n": 16}, {"n": 1}).smaller()]
        [1, 2, 3, 5, 8, 9, 12, 14, 15]
        """
        for name, size in self.sizes.items():
            least = self.least[name]
            steps = [2**power for power in range((size - least).bit_length())]
            tries = {least, *(least + step for step in steps), *(size - step for step in steps)}
            for other in sorted(tries - {size}):
                yield replace(self, sizes={**self.sizes, name: other})


# What was observed in a cell, before it is judged: measures, tensors, and how the cell ended.

RAISES = "raises"  # the gate of the error inputs
PROBED = "shows "  # begins the fact that a probe shows its fault on this machine, or does not; see `Expectation`
ASKED_OTHERWISE = "refused when asked otherwise"  # the fact that names the ways in which a call may raise an error
STOPPED = "gradients stopped"  # the fact that names the leaves of whose gradients a part is stopped on purpose
HOOKED = "gradients hooked"  # the fact of a model whose hooks change its gradients
PLACE_OF = "place of "  # begins the facts that say where in the model a fault begins, by the gate that found it
NODE = "node"  # the fact that tells which node of a cluster has judged
SMALLEST = "; smallest shape with this verdict: "  # ends the text of a red verdict at a shape, before a command
KEPT_SINCE = "kept since"  # the fact that tells the day on which the verdict was given, if an earlier run gave it
UNCLAIMED = "transforms not claimed"  # the fact that says what they do, of a model in eager
LEFT_ASIDE = "left aside"  # the fact of a cell whose model returns other things than tensors
DRAWN_OTHERWISE = "drawn otherwise"  # the fact that tells after which change the random numbers are not the oracle's
AS_MADE_ANEW = "as made anew"  # the fact that a mode is wrong at other attributes, and has kept nothing
OTHER_WEIGHTS, OTHER_SETTINGS = "with other weights", "with other numbers in its attributes"
FEWER_ROWS, MORE_ROWS = "with a row less", "with a row more"
FP32, FP32_REDRAWN = "fp32", f"fp32 {OTHER_WEIGHTS}"  # who judges what a cell cannot
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


@dataclass(frozen=True, slots=True)  # a run may have a hundred thousand
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


@dataclass(frozen=True, slots=True)  # a run may have a hundred thousand
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
            it does not meet in a low precision, or `FP32_REDRAWN`, with which the case is called too; "" if nobody
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


# Verdicts: the table of statuses, and the record of one cell's verdict.


@dataclass(frozen=True)
class Status:
    """The status of a verdict: its sign in the table, whether it is red, and its meaning."""

    glyph: str
    red: bool
    meaning: str


STATUSES = {
    "PASS": Status("✓", False, "every gate held, and the mode is proven"),
    "EXPECTED": Status("≠", False, "a declared divergence happened exactly as declared"),
    "UNSUPPORTED": Status(
        "–", False, "the spec declares that the mode cannot take this model, and it raised that error"
    ),
    "FAIL": Status("✗", True, "a gate rejects a tensor"),
    "STALE": Status("✗", True, "a declared divergence no longer happens"),
    "ERROR": Status("✗", True, "the mode or the model raised an exception"),
    "CRASH": Status("✗", True, "the process died"),
    "TIMEOUT": Status("✗", True, "the process passed its deadline"),
    "OOM": Status("✗", True, "the process ran out of memory"),
    "VOID": Status("✗", True, "it finished, but not in the mode, precision or device of the cell"),
    "UNSTABLE": Status("✗", True, "two identical calls differ"),
    "INCONCLUSIVE": Status("?", True, "the checks could not have caught a wrong result, or there is no oracle"),
    "INVALID": Status("✗", True, "the spec itself is wrong; the model was not judged"),
    "SKIPPED": Status("·", False, "the device is absent, and nobody asked for it by name"),
    "NOTRUN": Status("·", True, "the cell is planned and has no verdict; the run is incomplete"),
}


@dataclass(frozen=True)
class Verdict:
    """The verdict on one cell.

    Attributes:
        cell: id of the cell.
        status: a key of `STATUSES`.
        text: one line: the gate, the tensor, the error and its budget, or another reason.
        margin: the worst value over its budget; None if nothing was measured.
        short: the text that the table shows next to the sign.
        reason, link: reason and link of the declared divergence that applied.
        notes: remarks that a report shows unless the cell is red.
        seconds: wall time of the cell, its process included.
    """

    cell: str
    status: Annotated[str, one_of(STATUSES)]
    text: str = ""
    margin: Rounded | None = None
    short: str = ""
    reason: str = ""
    link: str = ""
    notes: tuple[str, ...] = ()
    seconds: Rounded = 0.0
    observation: Observation = field(default_factory=lambda: Observation("none"))

    def __repr__(self) -> str:
        """The cell, its verdict, and what the table shows of it; what was observed is far too long to print.

        >>> Verdict("merge[eager-fp32-cpu]", "PASS", margin=0.0712)
        <Verdict merge[eager-fp32-cpu] PASS 0.071>
        """
        measured = "" if self.margin is None else f"{self.margin:.2g}"
        return f"<Verdict {' '.join(dict.fromkeys(filter(None, [self.cell, self.status, self.short or measured])))}>"

    @property
    def red(self) -> bool:
        """Whether the cell fails the run."""
        return STATUSES[self.status].red
