"""Reads what runs say of their cells, without what was observed in them: quickly, because several runs are compared.

The sums of a run are checked as everywhere. What was observed is left as text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from conformance.errors import RecordError, UsageError
from conformance.records.cell import Observation
from conformance.records.convert import from_json
from conformance.store import files, run_files


@dataclass(frozen=True, kw_only=True)
class Summary(run_files.Contents):
    """A run whose verdicts have no observations.

    Attributes:
        folder: the run folder.
        observations: the JSON text of each observation, by cell id; empty if it has none.
    """

    folder: Path
    observations: Mapping[str, bytes]

    def dtypes(self, cell: str) -> dict[tuple[str, str], str]:
        """The dtype of each tensor that was compared in a cell, by case and tensor.

        Raises:
            UsageError: what was observed in the cell is no observation.
        """
        text = self.observations.get(cell, b"")
        if not text:
            return {}
        try:
            seen: Observation = from_json(Observation, files.parse(text))
        except RecordError as problem:
            raise UsageError(f"{self.folder / run_files.LINES}: {cell}: {problem}") from None
        dtypes = {(d.case, str(d.tensor)): d.dtype for d in seen.discrepancies if d.kind != "conduct"}
        for case, by_dtype in (seen.rest.dtypes if seen.rest else {}).items():
            dtypes |= {(case, tensor): dtype for dtype, tensors in by_dtype.items() for tensor in tensors}
        return dtypes


def read(folder: Path) -> Summary:
    """The summary of a run.

    Raises:
        UsageError: it is no run folder, or it is damaged; the message names the folder.
    """
    observations: dict[str, bytes] = {}
    contents = run_files.decode(folder, run_files.read_files(folder), observations)
    return Summary(**vars(contents), folder=folder, observations=observations)
