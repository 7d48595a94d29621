"""Groups the red cells of a run by cause: cells of one model that fail in the same way are one line."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from conformance.one_line import some
from conformance.records.cell import mode_of, model_of
from conformance.records.verdicts import Verdict
from conformance.verdict import failed_gate


@dataclass(frozen=True)
class Cause:
    """Why cells of one model are red.

    Attributes:
        model: name of the model.
        status: their verdict.
        text: what the first of them says.
        said: the last lines that its process printed on its error stream, if it crashed.
        cells: their ids.
        named: these cells in a few words. If they are all cells of the model, or all of one mode, it names that;
            otherwise the first of them.
    """

    model: str
    status: str
    text: str
    cells: tuple[str, ...]
    named: str
    said: tuple[str, ...] = ()


def causes(verdicts: Iterable[Verdict]) -> list[Cause]:
    """The causes of the red verdicts, in their order. Cells that were not judged have none.

    One cause is one model, verdict, gate and tensor, or one reason where no gate has failed.
    """
    found: dict[tuple[str, str, str], list[Verdict]] = {}
    beside: Counter[str] = Counter()  # by model, and by mode of a model
    for verdict in verdicts:
        model = model_of(verdict.cell)
        if verdict.status != "SKIPPED":
            beside.update([model, f"{model}[{mode_of(verdict.cell)}]"])
        if verdict.red and verdict.status != "NOTRUN":
            found.setdefault((model, verdict.status, _reason(verdict)), []).append(verdict)
    return [
        Cause(
            model,
            status,
            same[0].text,
            tuple(v.cell for v in same),
            _name_cells([v.cell for v in same], beside),
            same[0].observation.said,
        )
        for (model, status, _), same in found.items()
    ]


def _name_cells(cells: list[str], beside: Counter[str]) -> str:
    model, modes = model_of(cells[0]), {mode_of(cell) for cell in cells}
    wholes = (model, f"{model}[{modes.pop()}]") if len(modes) == 1 else (model,)
    whole = next((name for name in wholes if len(cells) == beside[name] > 1), None)
    return f"{whole}, all {len(cells)} cells" if whole else some(cells)


def _reason(verdict: Verdict) -> str:
    """Gate and tensor of a failure; otherwise the text of the verdict. Case, error and budget are not part of it."""
    for seen in verdict.observation.discrepancies if verdict.status in ("FAIL", "UNSTABLE") else ():
        failed = failed_gate(seen)
        gates = [failed.gate] if failed else [m.gate for m in seen.measures if not m.met]
        for gate in gates:
            if verdict.text.startswith(f"{gate}  {seen.tensor}, case {seen.case}:"):
                return f"{gate}  {seen.tensor}"
    return verdict.text
