"""What a run plans: its cells, where their specs are, what is expected of them, and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from conformance.records.cell import Cell, SizedModel
from conformance.records.claims import PublishedClaim


@dataclass(frozen=True)
class Expectation:
    """A declared divergence, as the judge sees it. `zoo.Expect` explains the fields."""

    outcome: str
    reason: str
    link: str = ""
    tensor: str = ""
    dtype: str = ""
    error: str = ""
    match: str = ""
    gate: str = ""
    case: str = ""


@dataclass(frozen=True)
class PlannedCell:
    """A cell of a plan.

    Attributes:
        cell: which.
        skip: why it is not run; "" if it is.
        expect: the declared divergences that concern this cell on this torch.
    """

    cell: Cell
    skip: str = ""
    expect: tuple[Expectation, ...] = ()

    @property
    def id(self) -> str:
        """The cell's id."""
        return self.cell.id


@dataclass(frozen=True)
class SpecLocation:
    """The place from which any process can import a spec.

    Attributes:
        module: name of an importable module, or "".
        file: absolute path of a file, or "".
    """

    module: str = ""
    file: str = ""

    @property
    def name(self) -> str:
        """The file or the module."""
        return self.file or self.module


@dataclass(frozen=True)
class Environment:
    """What a verdict may depend on and a reader wants to know."""

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
class Plan:
    """The cells of a run, in order, and all that is needed to run, judge and measure them.

    Attributes:
        seed: of weights, inputs and cotangents.
        deadline: seconds that a cell may take.
        environment: where the plan was made.
        sources: what every child process imports first; a source may register a mode.
        models: by name, the place of each model's spec.
        figures: by name, the figures that can be timed of a model; names of `FIGURES`.
        sizes: by name, the models that are planned at a size of a scale.
        cells: all cells, also those that are skipped.
        compiling_modes: the modes of these cells that call the compiler.
        measure: "" for nothing, "speed", or "bench".
        claims: the published claims that the cells test.
    """

    seed: int
    deadline: float
    environment: Environment
    sources: tuple[SpecLocation, ...]
    models: Mapping[str, SpecLocation]
    figures: Mapping[str, tuple[str, ...]]
    cells: tuple[PlannedCell, ...]
    sizes: Mapping[str, SizedModel] = field(default_factory=dict)
    compiling_modes: tuple[str, ...] = ()
    measure: str = ""
    claims: tuple[PublishedClaim, ...] = ()
