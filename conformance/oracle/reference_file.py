"""Writes the reference of a model to a file, and reads it for each cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from conformance.errors import DamagedReferenceError
from conformance.evaluate.containers import Container
from conformance.evaluate.inputs import Picks
from conformance.gates.budget import TensorReference
from conformance.gates.distance import Distance, Figures, OracleTensor
from conformance.gates.sums import Redraws, Rounded, Sums
from conformance.oracle import tensorfile
from conformance.oracle.redraw import Redraw
from conformance.oracle.reference import CaseReference


def save(path: Path, cases: dict[str, CaseReference]) -> None:
    """Write the reference of a model, by case name.

    Raises:
        OSError: it cannot be written.
    """
    tensorfile.save(path, {name: _case_tree(case) for name, case in cases.items()})


def load(path: Path, precision: str = "") -> dict[str, CaseReference]:
    """Read what `save` wrote.

    Args:
        path: path of the file.
        precision: name of the only precision that is asked for; what only others need is not read. "": all.

    Raises:
        DamagedReferenceError: it is not there, cannot be read, or is damaged.
    """
    try:
        saved = tensorfile.open_tensors(path)
        return {name: _case_reference(_for_precision(tree, precision)) for name, tree in saved.items()}
    except (OSError, ValueError) as problem:
        raise DamagedReferenceError(str(problem)) from problem


def _for_precision(case: dict[str, Any], precision: str) -> dict[str, Any]:
    """The part of a case that cells of a precision need. All of them need the budgets of float32."""
    if not precision:
        return case
    tensors = {name: known and _tensor_for_precision(known, precision) for name, known in case["tensors"].items()}
    changed = [[redraw, _for_precision(there, precision)] for redraw, there in case["changed"]]
    judged = [[redraw, there] for redraw, there in changed if _is_judged(there, precision)]
    return {**case, "tensors": tensors, "changed": judged}


def _tensor_for_precision(known: dict[str, Any], precision: str) -> dict[str, Any]:
    needed, redraws = ("fp32", precision), known["redraws"]
    parts = {part: _choose(known[part], needed) for part in ("spread", "settled", "strayed")}
    rounded = _choose(redraws["rounded"], needed) if redraws else {}
    return {**known, **parts, "redraws": {**redraws, "rounded": rounded} if rounded else None}


def _choose(by_precision: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in by_precision.items() if name in names}


def _is_judged(case: dict[str, Any], precision: str) -> bool:
    return all(known is None or precision in known["spread"] for known in case["tensors"].values())


def _case_tree(case: CaseReference) -> dict[str, Any]:
    return {
        **vars(case),
        "tensors": {name: _tensor_tree(known) for name, known in case.tensors.items()},
        "container": _container_tree(case.container),
        "shared": sorted(case.shared),
        "redraws": [vars(redraw) for redraw in case.redraws],
        "changed": [[vars(redraw), _case_tree(there)] for redraw, there in case.changed],
    }


def _container_tree(container: Container) -> dict[str, Any]:
    return {**vars(container), "parts": [_container_tree(part) for part in container.parts]}


def _container(tree: dict[str, Any]) -> Container:
    return Container(tree["kind"], tuple(tree["keys"]), tuple(_container(part) for part in tree["parts"]))


def _tensor_tree(known: TensorReference | None) -> dict[str, Any] | None:
    if known is None:
        return None
    spread = {precision: {**vars(d), "slices": list(d.slices)} for precision, d in known.spread.items()}
    redraws = None if known.redraws is None else _redraws_tree(known.redraws)
    strayed = {precision: vars(sums) for precision, sums in known.strayed.items()}
    oracle = {"raw": known.oracle.raw, "figures": vars(known.oracle.figures)}
    return {**vars(known), "oracle": oracle, "spread": spread, "strayed": strayed, "redraws": redraws}


def _redraws_tree(redraws: Redraws) -> dict[str, Any]:
    """Few large tensors, because each tensor of a file takes time to read."""

    def rows(r: Rounded) -> torch.Tensor:
        return torch.stack([r.squares, r.crowding, *vars(r.bias).values(), *vars(r.noise).values()])

    rounded = {precision: [r.draws, r.runs, rows(r)] for precision, r in redraws.rounded.items()}
    return {"truths": torch.stack(redraws.truths), "rounded": rounded}


def _redraws(saved: dict[str, Any]) -> Redraws:
    rounded = {
        precision: Rounded(draws, runs, rows[0], rows[1], Sums(rows[2], rows[3]), Sums(rows[4], rows[5]))
        for precision, (draws, runs, rows) in saved["rounded"].items()
    }
    return Redraws(tuple(saved["truths"]), rounded)


def _case_reference(tree: dict[str, Any]) -> CaseReference:
    tensors = {name: None if saved is None else _tensor_reference(saved) for name, saved in tree["tensors"].items()}
    return CaseReference(
        **{
            **tree,
            "picks": _picks(tree["picks"]),
            "tensors": tensors,
            "container": _container(tree["container"]),
            "shared": frozenset((one, other) for one, other in tree["shared"]),
            "redraws": tuple(map(_redraw, tree["redraws"])),
            "assumed": tuple(tree["assumed"]),
            "changed": tuple((_redraw(redraw), _case_reference(there)) for redraw, there in tree["changed"]),
        }
    )


def _picks(saved: Any) -> Picks:
    return saved if isinstance(saved, int) else [(draw, row) for draw, row in saved]


def _redraw(saved: dict[str, Any]) -> Redraw:
    return Redraw(**{**saved, "picks": _picks(saved["picks"]), "kept": tuple(saved["kept"])})


def _tensor_reference(stored: dict[str, Any]) -> TensorReference:
    saved = tensorfile.read(stored)
    spread = {precision: Distance(**{**d, "slices": tuple(d["slices"])}) for precision, d in saved["spread"].items()}
    redraws = None if saved["redraws"] is None else _redraws(saved["redraws"])
    strayed = {precision: Sums(**sums) for precision, sums in saved["strayed"].items()}
    figures = saved["oracle"]["figures"]
    oracle = OracleTensor(saved["oracle"]["raw"], Figures(**{**figures, "slice_norms": tuple(figures["slice_norms"])}))
    return TensorReference(**{**saved, "oracle": oracle, "spread": spread, "strayed": strayed, "redraws": redraws})
