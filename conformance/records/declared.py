"""The record of a divergence that is declared outside the code, in a file that people review."""

from __future__ import annotations

from dataclasses import dataclass


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
