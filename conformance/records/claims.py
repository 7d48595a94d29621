"""The record of a published claim."""

from __future__ import annotations

from dataclasses import dataclass, replace

from conformance.records.cell import Cell, SizedModel
from conformance.records.measurements import FIGURES


@dataclass(frozen=True)
class PublishedClaim:
    """A claim of a model on one device. `zoo.Claim` explains the fields that are not listed.

    Attributes:
        model: the model whose spec makes the claim.
        size_name: the name of a size, such as "width".
        sizes: the sizes to measure at.
        baseline: name of the model compared with, which may be the same.
        device: "cpu" or "cuda".
    """

    model: str
    size_name: str
    sizes: tuple[int, ...]
    text: str
    source: str
    factor: float
    quantity: str
    baseline: str
    mode: str
    precision: str
    baseline_mode: str
    baseline_precision: str
    device: str

    @property
    def is_timed(self) -> bool:
        """Whether the claim is about time. Otherwise it is about bytes."""
        return self.quantity in FIGURES

    def baseline_cell(self, size: int = 0) -> Cell:
        """The cell that the variant is compared with, at a size; 0: at no size."""
        return _sized(Cell(self.baseline, self.baseline_mode, self.baseline_precision, self.device), size)

    def variant_cell(self, size: int = 0) -> Cell:
        """The cell that the claim is about, at a size; 0: at no size."""
        return _sized(Cell(self.model, self.mode, self.precision, self.device), size)


def _sized(cell: Cell, size: int) -> Cell:
    return replace(cell, model=SizedModel(cell.model, size).name) if size else cell
