"""Writes the reference of a model to a file, and reads it for each cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conformance.gates.budget import TensorReference
from conformance.gates.distance import Distance, OracleTensor
from conformance.oracle import tensorfile
from conformance.oracle.containers import Container
from conformance.oracle.reference import CaseReference


def save(path: Path, cases: dict[str, CaseReference]) -> None:
    """Write the reference of a model, by case name."""
    tensorfile.save(path, {name: _case_tree(case) for name, case in cases.items()})


def load(path: Path) -> dict[str, CaseReference]:
    """Read what `save` wrote."""
    return {name: _case_reference(tree) for name, tree in tensorfile.load(path).items()}


def _case_tree(case: CaseReference) -> dict[str, Any]:
    tensors = {name: _tensor_tree(known) for name, known in case.tensors.items()}
    return {
        **vars(case),
        "tensors": tensors,
        "container": _container_tree(case.container),
        "shared": sorted(case.shared),
    }


def _container_tree(container: Container) -> dict[str, Any]:
    return {**vars(container), "parts": [_container_tree(part) for part in container.parts]}


def _container(tree: dict[str, Any]) -> Container:
    return Container(tree["kind"], tuple(tree["keys"]), tuple(_container(part) for part in tree["parts"]))


def _tensor_tree(known: TensorReference | None) -> dict[str, Any] | None:
    if known is None:
        return None
    spread = {precision: {**vars(d), "slices": list(d.slices)} for precision, d in known.spread.items()}
    return {**vars(known), "oracle": known.oracle.raw, "spread": spread}


def _case_reference(tree: dict[str, Any]) -> CaseReference:
    tensors = {name: None if saved is None else _tensor_reference(saved) for name, saved in tree["tensors"].items()}
    picks = tree["picks"] if isinstance(tree["picks"], int) else [(draw, row) for draw, row in tree["picks"]]
    shared = frozenset((one, other) for one, other in tree["shared"])
    return CaseReference(picks, tree["scale"], tensors, tree["requires_grad"], _container(tree["container"]), shared)


def _tensor_reference(saved: dict[str, Any]) -> TensorReference:
    spread = {precision: Distance(**{**d, "slices": tuple(d["slices"])}) for precision, d in saved["spread"].items()}
    return TensorReference(**{**saved, "oracle": OracleTensor(saved["oracle"]), "spread": spread})
