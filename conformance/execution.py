"""Runs cells one after the other, each in its own process, the reference of a model before its cells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

from conformance import isolation, machine
from conformance.axes import PRECISIONS
from conformance.judge import judge
from conformance.records import Cell, Observation, Verdict

REFERENCE_DEADLINE_FACTOR = 2  # the probes run a model some fifty times


class Execution:
    """Judges the cells of a plan, never while a measurement goes on.

    Args:
        plan: what `plan.make` returned.
        folder: for the references, one file for each model; those found there are used.
    """

    def __init__(self, plan: dict[str, Any], folder: Path) -> None:
        self._plan = plan
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._references: dict[str, Observation | Path] = {}
        self._seconds: dict[str, float] = {}
        self._making = Lock()

    def verdict(self, planned: dict[str, Any]) -> Verdict:
        """Run one planned cell and judge it."""
        cell = Cell.of(planned)
        if planned["skip"]:
            return Verdict(cell.id, "SKIPPED", planned["skip"], short="skipped")
        with machine.shared():
            return self._judged(cell, planned["expect"])

    def _judged(self, cell: Cell, expect: list[dict[str, Any]]) -> Verdict:
        reference = self.reference(cell.model)
        if isinstance(reference, Observation):
            return judge(cell.id, reference, expect)
        task = {"cell": vars(cell), "reference": str(reference), **self._common(cell.model)}
        ending = isolation.run("conformance.cell:observe", task, deadline=self._plan["deadline"])
        seen = _observation(ending)
        seen = replace(seen, seconds={"reference": self._seconds.get(cell.model, 0.0), **seen.seconds})
        verdict = judge(cell.id, seen, expect)
        return Verdict(**{**vars(verdict), "seconds": ending.seconds})

    def _common(self, model: str) -> dict[str, Any]:
        home, homes = self._plan["models"][model], self._plan["homes"]
        return {"home": home, "homes": homes, "seed": self._plan["seed"]}

    def reference(self, model: str) -> Observation | Path:
        """The reference's file, or what to say of every cell where there is none."""
        with self._making:
            return self._made(model)

    def _made(self, model: str) -> Observation | Path:
        path = self._folder / f"{model}.reference"
        if model not in self._references and path.exists():
            self._references[model] = path
        if model not in self._references:
            wanted = {cell["precision"] for cell in self._plan["cells"]} | {"fp32"}
            precisions = [name for name in PRECISIONS if name in wanted]
            task = {"model": model, "precisions": precisions, "path": str(path), **self._common(model)}
            deadline = REFERENCE_DEADLINE_FACTOR * self._plan["deadline"]
            ending = isolation.run("conformance.reference:make", task, deadline=deadline)
            self._seconds[model] = round(ending.seconds, 4)
            if ending.kind == "answered" and ending.answer["ending"] == "ok":
                self._references[model] = path
            elif ending.kind == "answered":
                self._references[model] = Observation(ending.answer["ending"], message=ending.answer["message"])
            else:
                self._references[model] = Observation(ending.kind, "reference", message=ending.message)
        return self._references[model]


def _observation(ending: isolation.Ending) -> Observation:
    if ending.kind == "answered":
        return Observation.from_json(ending.answer)
    return Observation(ending.kind, ending.phase, message=ending.message)
