"""The plan of a run: its cells, the locations of their specs, the declared divergences, and the environment."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from conformance.errors import RecordError
from conformance.records.cell import Cell, Shape, SizedModel
from conformance.records.convert import ABOVE_ZERO, Name, one_of
from conformance.records.measurements import FIGURES
from zoo.expect import Expect

ALL_CASES = "all cases"


def in_words(value: object) -> str:
    """A field of a plan or of an environment, as messages show it."""
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value) or "none"


def say_set(variables: tuple[str, ...]) -> str:
    """That variables are set; "" if there are none.

    >>> say_set(("CC", "CXX"))
    'CC and CXX are set'
    """
    return f"{' and '.join(variables)} {'are' if len(variables) > 1 else 'is'} set" if variables else ""


@dataclass(frozen=True)
class PlannedCell:
    """A cell of a plan.

    Attributes:
        skip: the reason why it is not run; "" if it is run.
        expect: the declared divergences that apply to this cell on this torch.
        left_out: the names of its model's cases that it does not judge.
        plain: each case is asked in one way alone: nothing changes between calls.
    """

    cell: Cell
    skip: str = ""
    expect: tuple[Expect, ...] = ()
    left_out: tuple[Name, ...] = ()
    plain: bool = False

    @property
    def id(self) -> str:
        """The cell's id."""
        return self.cell.id


TRAINING = {None: "", True: "train", False: "eval"}  # the words for an argument `train`


@dataclass(frozen=True)
class OtherModel:
    """A model beside one without a spec: its reference, or a candidate in its place.

    Attributes:
        source: its name as a source of a run, such as "package.module:Net"; a path is absolute.
        takes_weights: it gets the weights of the model; otherwise it is saved, and must have them.
        trusted: its file may run code when it is opened.
    """

    source: str
    takes_weights: bool
    trusted: bool = False

    @classmethod
    def named(cls, source: str) -> "OtherModel":
        """The model that a person names."""
        place, colon, thing = source.partition(":")
        if not Path(place).is_file():
            return cls(source, takes_weights=True)
        return cls(f"{Path(place).resolve()}{colon}{thing}", takes_weights=place.endswith(".py"))

    @property
    def path(self) -> str:
        """The absolute path in its name; "" if there is none."""
        place = self.source.partition(":")[0]
        return place if Path(place).is_absolute() else ""

    def moved(self, to: Callable[[str], str]) -> "OtherModel":
        """The same model with another path in its name."""
        return replace(self, source=to(self.path) + self.source[len(self.path) :]) if self.path else self


@dataclass(frozen=True)
class OwnModel:
    """A model without a spec, as any process can get it.

    Attributes:
        thing: its name in the module or file of its location, such as "Net"; "" if it is saved, or of a library.
        saved: absolute path of a saved model; "" if it is none.
        trusted: this file may run code when it is opened.
        library: the name of an architecture of a library, such as "timm:convnext_atto"; "" if it is none.
        inputs: the inputs as a person describes them, such as "2,3,64,64"; see `own.spec`. Empty if `call` has
            them, or for those that fit the architecture of a library.
        call: path of the file with the arguments of one call, and with the declared divergences; "" if `inputs`
            describes them.
        definitions: path of the file with what a saved model needs of the caller's main module; "" for nothing.
        training: the mode to put it into, "train" or "eval"; "" for its own.
        reference: the model that it must compute the same as; None: itself, in float64.
        candidate: the model that is judged beside it, in a column of its own.
        without: the built-in modes and precisions that it does not exist in.
        dtype: the narrowest dtype of its floating parameters, or of its inputs if it has none.
        constants: names of the inputs that get no gradient.
        mutates: names of the inputs and parameters that it changes.
        changes_state: what else its call changes, in words of `zoo.states.STATES`.
    """

    name: str = ""
    thing: str = ""
    saved: str = ""
    trusted: bool = False
    library: str = ""
    inputs: tuple[str, ...] = ()
    call: str = ""
    definitions: str = ""
    training: Annotated[str, one_of(("", "train", "eval"))] = ""
    reference: OtherModel | None = None
    candidate: OtherModel | None = None
    without: tuple[str, ...] = ()
    dtype: Annotated[str, one_of(("float32", "float16", "bfloat16"))] = "float32"
    differentiable: bool = True
    constants: tuple[str, ...] = ()
    mutates: tuple[str, ...] = ()
    changes_state: tuple[str, ...] = ()

    @property
    def others(self) -> tuple[OtherModel, ...]:
        """The models beside it."""
        return tuple(filter(None, (self.reference, self.candidate)))


NOTHING_GIVEN = OwnModel()


@dataclass(frozen=True)
class Part:
    """A part of a model: its forward up to the end of a module inside.

    Attributes:
        model, case: the names of the model and of its case; "" for the first.
        name: the name of the part, as that of a model.
        done: the modules that have returned when it ends, and are in no other of them; the last one is where it ends.
        light: its reference has outputs and first derivatives of the first draw alone, and is not checked.
    """

    model: str
    case: str
    name: Name
    done: tuple[str, ...]
    light: bool = False


@dataclass(frozen=True)
class SpecLocation:
    """The place from which any process can import a spec: a module, or the absolute path of a Python file.

    `own` is a model without a spec, in that module or file, or saved; `part` is a part of the model.
    """

    module: str = ""
    file: str = ""
    own: OwnModel | None = None
    part: Part | None = None

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
        own = self.own or NOTHING_GIVEN
        paths = (self.file, own.saved, own.call, own.definitions, *(other.path for other in own.others))
        return tuple(filter(None, paths))

    @property
    def executed(self) -> tuple[str, ...]:
        """The names of all code that it executes: its own, its files, and the models beside it."""
        others = (self.own or NOTHING_GIVEN).others
        return (self.name, *self.paths, *(other.source for other in others if not other.path))

    @property
    def needs_trust(self) -> bool:
        """Whether it opens files that may run code then: those it trusts, and the arguments that `check` has stored."""
        own = self.own or NOTHING_GIVEN
        return own.trusted or bool(own.call) or any(other.trusted for other in own.others)

    def moved(self, to: Callable[[str], str]) -> "SpecLocation":
        """The same location with other paths; `to` gives the new path of each file."""

        def path(old: str) -> str:
            return to(old) if old else ""

        own = self.own
        if own is not None:
            own = replace(own, saved=path(own.saved), call=path(own.call), definitions=path(own.definitions))
            reference, candidate = (other and other.moved(to) for other in (own.reference, own.candidate))
            own = replace(own, reference=reference, candidate=candidate)
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

    The absolute path of its source file on the machine that planned the run, and the line that names it, from 1.
    """

    file: str
    line: Annotated[int, ABOVE_ZERO]


@dataclass(frozen=True)
class Environment:
    """The machine and the software that a verdict may depend on.

    Attributes:
        system: operating system and architecture.
        cpu: model name of the processor.
        cpu_capability: the vector instructions that torch uses, such as "AVX512".
        cores: number of logical cores.
        gpus: name of each CUDA device.
        cuda: CUDA version that torch was built for; "" if it was built without CUDA.
        executable: file name of the Python interpreter.
        variables: names of the environment variables that are set and change what compilers do.
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
    variables: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shard:
    """One part of a whole plan, whose cells are split among several runs.

    Attributes:
        index: its number, from 1.
        count: how many parts there are.
        places: where each of its cells stands in the whole plan, from 0, in order.
        cells: number of cells of the whole plan.
        precisions: those of the whole plan, for which references are made, so that all shards make the same.
        whole: a digest of the whole plan, the same for all its shards.
    """

    index: Annotated[int, ABOVE_ZERO]
    count: Annotated[int, ABOVE_ZERO]
    places: tuple[int, ...]
    cells: Annotated[int, ABOVE_ZERO]
    precisions: tuple[Name, ...]
    whole: str

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


@dataclass(frozen=True)
class PlannedModel:
    """A model of a plan.

    Attributes:
        figures: the figures that can be timed of it; keys of `FIGURES`.
        size: its size, if it is planned at one of its scale.
        shape: its shape, if it is planned at one of its family.
        working: the size at which it is timed, by device, as far as its spec has one.
        timed: the precisions in which it is timed; None: all of them.
        candidates: the names of its candidates; such a name stands in place of a mode.
        written: where its spec is written, if that is known.
        assumed: the contracts that were assumed of it if it has no spec, a line each.
    """

    location: SpecLocation
    figures: tuple[Annotated[str, one_of(FIGURES)], ...]
    size: SizedModel | None = None
    shape: Shape | None = None
    working: Mapping[str, SizedModel] = field(default_factory=dict)
    timed: tuple[Name, ...] | None = None
    candidates: tuple[Name, ...] = ()
    written: Place | None = None
    assumed: tuple[str, ...] = ()
    wrong_on_purpose: bool = False


@dataclass(frozen=True)
class Plan:
    """The cells of a run, in order, and all that is needed to run, judge and measure them.

    Attributes:
        seed: seed of weights, inputs and cotangents.
        deadline: seconds that a cell may take.
        modes: the location of the source that registers each mode from outside, by the mode's name.
        models: the models of the cells, by name.
        cells: all cells in order, also those that are skipped.
        compiling_modes: the modes of these cells that call the compiler.
        symptoms: what a probe returns where its fault shows, by its name, for all on which declared divergences hang.
        gpus: the numbers of the GPUs that its processes use in turn, as torch counts those that are visible.
        measure: "" for nothing, "speed", or "bench".
        digests: what tells the content of each source file that the planning process imported, and of each saved
            model, by path; see `cache.sources`.
        shard: the part of a whole plan that this is; None: it is whole.
        shapeless: the models that were asked for at drawn shapes, and have no family to draw from.
        lacks: the shards that were missing when it was joined, such as "shards 3,5-9 of 12"; "" if none was.
        every_tensor: what was measured of every tensor is stored, not only of those near their budgets.
        strict: a mode without a proof is red, and so is a graph break that no spec declares.
        command: the words after `conformance` that a person typed; empty if nobody did.
    """

    seed: int
    deadline: Annotated[float, ABOVE_ZERO]
    environment: Environment
    modes: Mapping[str, SpecLocation]
    models: Mapping[str, PlannedModel]
    cells: tuple[PlannedCell, ...]
    compiling_modes: tuple[str, ...] = ()
    symptoms: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[int, ...] = ()
    measure: Annotated[str, one_of(("", "speed", "bench"))] = ""
    digests: Mapping[str, str] = field(default_factory=dict)
    shard: Shard | None = None
    shapeless: tuple[Name, ...] = ()
    lacks: str = ""
    every_tensor: bool = False
    strict: bool = False
    judge: Judge = field(default_factory=Judge)
    command: tuple[str, ...] = ()

    def working_size(self, cell: Cell) -> SizedModel | None:
        """The size at which a cell is timed; None for that of its model's first case."""
        return self.models[cell.model].working.get(cell.device)

    def is_timed(self, cell: Cell) -> bool:
        """Whether a cell is timed, if it passes."""
        timed = self.models[cell.model].timed
        return timed is None or cell.precision in timed

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
    def is_empty_shard(self) -> bool:
        """Whether it is a shard for which the others leave no cells."""
        return self.shard is not None and not self.cells

    def with_cells(self, cells: Sequence[PlannedCell]) -> "Plan":
        """The plan with these of its cells alone, and what they need."""
        models, modes = ({getattr(one.cell, axis) for one in cells} for axis in ("model", "mode"))
        probes = {expected.probe for one in cells for expected in one.expect}
        return replace(
            self,
            cells=tuple(cells),
            models={name: model for name, model in self.models.items() if name in models},
            modes={name: place for name, place in self.modes.items() if name in modes},
            compiling_modes=tuple(name for name in self.compiling_modes if name in modes),
            symptoms={name: symptom for name, symptom in self.symptoms.items() if name in probes},
        )

    def check(self) -> None:
        """Refuse a plan whose parts contradict each other.

        Raises RecordError if the environment has no such GPU, a cell is planned twice, its model is not planned or has
        no figures, the symptom of a probe is missing, or its shard does not say where each cell stands in the whole.
        """
        if any(not 0 <= number < len(self.environment.gpus) for number in self.gpus):
            raise RecordError("Plan.gpus: the environment has no such GPU")
        known: set[str] = set()
        for planned in self.cells:
            model = planned.cell.model
            if planned.id in known:
                raise RecordError(f"Plan.cells: {planned.id} is planned twice")
            if model not in self.models or not self.models[model].figures:
                raise RecordError(f"Plan.cells: {planned.id}: the plan lacks its model, or what can be timed of it")
            if any(expected.probe and expected.probe not in self.symptoms for expected in planned.expect):
                raise RecordError(f"Plan.cells: {planned.id}: the plan lacks the symptom of a probe")
            known.add(planned.id)
        shard = self.shard
        if shard is not None:
            is_part = shard.index <= shard.count and len(shard.places) == len(self.cells)
            if not is_part or list(shard.places) != sorted({*shard.places} & {*range(shard.cells)}):
                raise RecordError("Plan.shard: it is no part of the whole, or does not say where its cells stand there")


LONGEST = 60  # characters of a name that is made of another text


def name_from(text: str) -> str:
    """The name of a model that a person calls otherwise: lower-case letters, digits and "_".

    >>> name_from("ResNet18"), name_from("my-net.v2"), name_from("3d")
    ('res_net18', 'my_net_v2', 'model_3d')
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text).lower()
    name = re.sub(r"[^a-z0-9]+", "_", words)[:LONGEST].strip("_")
    return name if name[:1].isalpha() else f"model_{name}".strip("_")
