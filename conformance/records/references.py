"""What is known of a reference once a process has made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from conformance.records.observation import Observation

KEPT = "kept reference"  # in the seconds of an observation, in place of "reference"


@dataclass(frozen=True)
class MadeReference:
    """How the making of a model's reference ended.

    Attributes:
        seconds: how long it took.
        refused: the observation of each cell of the model, if there is no reference; None if there is one.
        files: the content of the files that it depends on, in a few letters, by path.
        variables: the same of the environment variables, by name.
        fingerprint: the fingerprint of the model and its inputs.
        kept: an earlier run made it.
    """

    seconds: float
    refused: Observation | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    kept: bool = False
