"""The plan of a run: its cells, the locations of their specs, the declared divergences, and the environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from conformance.errors import RecordError
from conformance.records.cell import Cell, SizedModel
from conformance.records.limits import AboveZero, Name, OneOf
from conformance.records.measurements import FIGURES
from conformance.records.own_model import OwnModel

ALL_CASES = "all cases"


def in_words(value: object) -> str:
    """A field of a plan or of an environment, as messages show it."""
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value) or "none"


@dataclass(frozen=True)
class Expectation:
    """A declared divergence, as the judge sees it. `zoo.Expect` explains the fields.

    Attributes:
        probe: it is declared only where this probe shows its fault, see `PROBED`; "" for everywhere.
        symptom: what the probe returns then.
    """

    outcome: str
    reason: str
    link: str = ""
    tensor: str = ""
    dtype: str = ""
    error: str = ""
    match: str = ""
    gate: str = ""
    case: str = ""
    probe: str = ""
    symptom: str = ""


@dataclass(frozen=True)
class PlannedCell:
    """A cell of a plan.

    Attributes:
        cell: the cell.
        skip: the reason why it is not run; "" if it is run.
        expect: the declared divergences that apply to this cell on this torch.
        left_out: the names of its model's cases that it does not judge.
    """

    cell: Cell
    skip: str = ""
    expect: tuple[Expectation, ...] = ()
    left_out: tuple[Name, ...] = ()

    @property
    def id(self) -> str:
        """The cell's id."""
        return self.cell.id


@dataclass(frozen=True)
class SpecLocation:
    """The place from which any process can import a spec.

    Attributes:
        module: name of an importable module; "" if the spec is elsewhere.
        file: absolute path of a Python file; "" if the spec is elsewhere.
        own: a model without a spec, in that module or file, or saved; None if there is a spec.
    """

    module: str = ""
    file: str = ""
    own: OwnModel | None = None

    @property
    def name(self) -> str:
        """The file, the module, or the architecture of a library."""
        return (self.own.saved or self.own.library if self.own else "") or self.file or self.module

    @property
    def is_of_zoo(self) -> bool:
        """Whether it is a spec in a module of the zoo, and so executes code of the zoo alone."""
        return self.module.startswith("zoo.") and not self.file and self.own is None

    @property
    def paths(self) -> tuple[str, ...]:
        """The absolute paths of all files that it names."""
        own = self.own
        return tuple(filter(None, (self.file, *((own.saved, own.call, own.definitions) if own else ()))))

    def moved(self, to: Callable[[str], str]) -> SpecLocation:
        """The same location with other paths; `to` gives the new path of each file."""

        def path(old: str) -> str:
            return to(old) if old else ""

        own = self.own
        if own is not None:
            own = replace(own, saved=path(own.saved), call=path(own.call), definitions=path(own.definitions))
        return replace(self, file=path(self.file), own=own)


@dataclass(frozen=True)
class Judge:
    """The code that judges a run.

    Attributes:
        day: when the run was planned, in UTC, such as "2026-11-28"; "" if it is not known.
        revision: the commit of `conformance` and `zoo`, with a "+" if a file of theirs differs from it; "" if they are
            in no repository.
        code: a digest of all their files.
    """

    day: str = ""
    revision: str = ""
    code: str = ""

    def __str__(self) -> str:
        return f"{self.revision or 'no revision'}, code {self.code or 'unknown'}"


@dataclass(frozen=True)
class Place:
    """Where a spec is written, for a person who looks for it.

    Attributes:
        file: absolute path of its source file on the machine that planned the run.
        line: the line that names it, counted from 1.
    """

    file: str
    line: Annotated[int, AboveZero()]


@dataclass(frozen=True)
class Environment:
    """The machine and the software that a verdict may depend on.

    Attributes:
        torch, python: versions.
        system: operating system and architecture.
        cpu: model name of the processor.
        cpu_capability: the vector instructions that torch uses, such as "AVX512".
        cores: number of logical cores.
        threads_per_cell: number of threads that a cell computes on.
        gpus: name of each CUDA device.
        cuda: CUDA version that torch was built for; "" if it was built without CUDA.
        executable: file name of the Python interpreter.
    """

    torch: str
    python: str
    system: str
    cpu: str
    cpu_capability: str
    cores: int
    threads_per_cell: int
    gpus: tuple[str, ...]
    cuda: str
    executable: str


@dataclass(frozen=True)
class Shard:
    """One part of a plan whose models are split among several runs.

    Attributes:
        index: which part this run judges, from 1.
        parts: the names of the models in each part; each model is in one of them.
    """

    index: Annotated[int, AboveZero()]
    parts: tuple[tuple[Name, ...], ...]

    def __str__(self) -> str:
        return f"{self.index}/{len(self.parts)}"


@dataclass(frozen=True)
class Plan:
    """The cells of a run, in order, and all that is needed to run, judge and measure them.

    Attributes:
        seed: seed of weights, inputs and cotangents.
        deadline: seconds that a cell may take.
        environment: the environment in which the plan was made.
        modes: the location of the source that registers each mode from outside, by the mode's name.
        models: the location of each model's spec, by the model's name.
        figures: the figures that can be timed of each model, by the model's name; keys of `FIGURES`.
        cells: all cells in order, also those that are skipped.
        sizes: the models that are planned at a size of a scale, by name.
        compiling_modes: the modes of these cells that call the compiler.
        candidates: the names of each model's candidates, by the model's name; such a name stands in place of a mode.
        measure: "" for nothing, "speed", or "bench".
        timed: the precisions in which each model is timed, by its name; None: every model in all of them.
        digests: the digest of each source file that the planning process imported, by path; see `cache.sources`.
        written: where each model's spec is written, by the model's name, as far as it is known.
        shard: which part of the cells this run judges; None: all of them.
        wrong_on_purpose: the names of the counterexamples.
        every_tensor: what was measured of every tensor is stored, not only of those near their budgets.
        working: the size at which each model is timed, by device and by the model's name, as far as its spec has one.
        assumed: the contracts that were assumed of each model without a spec, a line each, by the model's name.
        judge: the code that judges them.
    """

    seed: int
    deadline: Annotated[float, AboveZero()]
    environment: Environment
    modes: Mapping[str, SpecLocation]
    models: Mapping[str, SpecLocation]
    figures: Mapping[str, tuple[Annotated[str, OneOf(tuple(FIGURES))], ...]]
    cells: tuple[PlannedCell, ...]
    sizes: Mapping[str, SizedModel] = field(default_factory=dict)
    compiling_modes: tuple[str, ...] = ()
    candidates: Mapping[str, tuple[Name, ...]] = field(default_factory=dict)
    measure: Annotated[str, OneOf(("", "speed", "bench"))] = ""
    timed: Mapping[str, tuple[Name, ...]] | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    written: Mapping[str, Place] = field(default_factory=dict)
    shard: Shard | None = None
    wrong_on_purpose: tuple[Name, ...] = ()
    every_tensor: bool = False
    working: Mapping[str, Mapping[str, SizedModel]] = field(default_factory=dict)
    assumed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    judge: Judge = field(default_factory=Judge)

    def working_size(self, cell: Cell) -> SizedModel | None:
        """The size at which a cell is timed; None for that of its model's first case."""
        return self.working.get(cell.device, {}).get(cell.model)

    def is_timed(self, model: str, precision: str) -> bool:
        """Whether the cells of a model in a precision are timed, if they pass."""
        return self.timed is None or precision in self.timed.get(model, ())

    @property
    def depth(self) -> str:
        """Which cases the cells judge, in words."""
        modes = dict.fromkeys(one.cell.mode for one in self.cells if one.left_out)
        return f"{' and '.join(modes)} at the first case" if modes else ALL_CASES

    @property
    def compiles_for(self) -> tuple[str, ...]:
        """The device types for which cells are compiled."""
        devices = (one.cell.device for one in self.cells if not one.skip and one.cell.mode in self.compiling_modes)
        return tuple(dict.fromkeys(devices))

    @property
    def own_cells(self) -> tuple[PlannedCell, ...]:
        """The cells that this run judges: those of its shard, or all."""
        if self.shard is None:
            return self.cells
        own = set(self.shard.parts[self.shard.index - 1])
        return tuple(planned for planned in self.cells if planned.cell.model in own)

    def check(self) -> None:
        """Refuse a plan whose parts contradict each other.

        Raises:
            RecordError: a cell is planned twice, its model has no location or no figures, or the shards do not hold
                each model once.
        """
        known: set[str] = set()
        for planned in self.cells:
            model = planned.cell.model
            if planned.id in known:
                raise RecordError(f"Plan.cells: {planned.id} is planned twice")
            if model not in self.models or not self.figures.get(model):
                raise RecordError(f"Plan.cells: {planned.id}: the plan has no location or no figures of its model")
            known.add(planned.id)
        if self.shard is not None:
            held = sorted(model for part in self.shard.parts for model in part)
            if held != sorted(self.models) or self.shard.index > len(self.shard.parts):
                raise RecordError("Plan.shard: its parts do not hold each model once, or it is none of them")


# The record of a divergence that is declared outside the code, in a file that people review.


@dataclass(frozen=True)
class Declared:
    """A declared divergence of a model. `zoo.Expect` explains the fields behind the first."""

    model: str
    outcome: str
    reason: str = ""
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
    probe: str = ""
