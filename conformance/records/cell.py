"""Records of a cell of the matrix, and of a model at a size."""

from dataclasses import dataclass
from typing import Annotated

from conformance.records.convert import ABOVE_ZERO, Name


@dataclass(frozen=True)
class Cell:
    """One square of the matrix: a model in one mode, precision and device, with all cases of the model.

    `model` is a name such as "merge", or "merge@64" at a size of its scale; the others are in `conformance.axes`.
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

    @classmethod
    def parse(cls, name: str) -> "SizedModel | None":
        """The model and its size; None if the name has no size.

        >>> SizedModel.parse("merge@64").size, SizedModel.parse("merge")
        (64, None)
        """
        model, at, size = name.partition("@")
        return cls(model, int(size)) if at and size.isdecimal() else None
