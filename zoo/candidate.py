"""A replacement for one model: a kernel, a rewritten forward, another build, to be judged in the model's place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zoo.case import NAME, SpecError
from zoo.expect import check_names


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A replacement for the model of one spec.

    A run judges it like a mode that only this model has: with the model's weights and cases, beside the model in eager,
    against the model in float64. So its parameters and buffers must have the names, shapes and dtypes of the model's.

    Attributes:
        name: the name in place of a mode's, as in `merge[fused-amp_bf16-cpu]`; lower-case letters, digits and "_". It
            must not be the name of a mode.
        build: returns the replacement, an `nn.Module` or a function.
        build_at: returns the replacement at a size of the spec's scale; None: it does not exist at other sizes.
        devices: device types that have it, such as "cuda"; empty: all.
        compiles: it calls `torch.compile`, so the compiler is loaded once for all cells.

    >>> Candidate(name="fused", build=lambda: lambda x: 2 * x).build()(3)
    6
    """

    name: str
    build: Callable[[], Any]
    build_at: Callable[[int], Any] | None = None
    devices: tuple[str, ...] = ()
    compiles: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise SpecError(f"candidate name {self.name!r}: want lower-case letters, digits and '_'")
        for field, value in (("build", self.build), ("build_at", self.build_at)):
            if not callable(value) and (field == "build" or value is not None):
                raise SpecError(f"candidate {self.name!r}: {field} must be callable, got {value!r}")
        check_names(f"candidate {self.name!r}: devices", self.devices)
        if not isinstance(self.compiles, bool):
            raise SpecError(f"candidate {self.name!r}: compiles must be True or False, got {self.compiles!r}")
