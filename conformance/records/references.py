"""What is known of a reference once a process has made it."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.records.observation import Observation


@dataclass(frozen=True)
class MadeReference:
    """How the making of a model's reference ended.

    Attributes:
        seconds: how long it took.
        refused: the observation of each cell of the model, if there is no reference; None if there is one.
    """

    seconds: float
    refused: Observation | None = None
