"""Judges models outside the zoo, planted faults, and honest variants.

    python -m benchmarks.outside [--seeds 1] [--parts correct planted honest] [--modes eager scripted] [FILE …]

Three parts:
- correct: the models of the families in this folder. A red cell of one of them is an accusation. Where a mode raises an
  error at a model, it refuses it; these cells are listed apart.
- planted: the same models in modes that damage them. A green cell is a fault that survives. A red cell counts only if
  the undamaged model is green in eager at the same precision and seed; otherwise it tells nothing.
- honest: the same models in modes that compute the same in another way. A red cell is an accusation.

The models of `library.py` come from torchvision, timm and transformers. They are judged only if the file is named.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import children
from conformance.judging.executor import Executor
from conformance.plan import find
from conformance.records.cell import Cell, Observation, Verdict
from conformance.records.plan import Plan, PlannedCell, SpecLocation
from conformance.records.tasks import PlanRequest

FOLDER = Path(__file__).resolve().parent
FAMILIES = """attention recurrent state_space graph transformer_blocks buffers views complex_numbers integer_outputs
    convolutional normalisation losses mixtures second_order""".split()
PLANTED_IN = "faults_value faults_structure faults_state faults_mode faults_second_order honest".split()
LEVELS = ("fp32", "amp_fp16", "amp_bf16")
PARTS = ("correct", "planted", "honest")
RIGHT = ("correct", "undamaged", "honest")
GREEN = ("PASS", "EXPECTED", "UNSUPPORTED")
DEADLINE = 300.0


@dataclass(frozen=True)
class Judged:
    """One cell of the study.

    Attributes:
        kind: "correct", "undamaged", "honest", or the class of the planted fault.
        seed: of the run.
        verdict: what the judge says.
        blind: the fault is planted in a model that is red without it.
    """

    kind: str
    seed: int
    verdict: Verdict
    blind: bool = False

    @property
    def accuses(self) -> bool:
        """Whether a correct model or an honest variant is red."""
        return self.kind in RIGHT and self.outcome == "red"

    @property
    def outcome(self) -> str:
        """Green, red, blind, or refused: the mode raised an error before a result existed."""
        verdict = self.verdict
        if self.blind:
            return "blind"
        if verdict.status in GREEN:
            return "green"
        refused = self.kind == "correct" and verdict.status == "ERROR" and "[eager" not in verdict.cell
        return "refused" if refused else "red"


def main() -> None:
    """Judge the cells and print the tables."""
    options = options_of()
    started = time.monotonic()
    plan, kinds = plan_of(options)
    children.prepare(plan.environment, options.cache)
    models = sorted({planned.cell.model for planned in plan.cells if planned.id in kinds})
    jobs = [(model, seed) for seed in range(options.seeds) for model in models]
    with ThreadPoolExecutor(options.jobs) as threads:
        found: list[Judged] = []
        for done, judged in enumerate(threads.map(lambda job: _judged(plan, kinds, *job), jobs), 1):
            found += judged
            model, seed = jobs[done - 1]
            bad = ", ".join(f"{j.verdict.cell} {j.verdict.status}" for j in judged if j.accuses) or "no accusation"
            print(f"{done}/{len(jobs)} {model}, seed {seed}: {bad}", file=sys.stderr, flush=True)
    print(f"# Outside the zoo\n\n{len(models)} models, {options.seeds} seeds, {len(found)} cells in ", end="")
    print(f"{time.monotonic() - started:.0f} s; torch {plan.environment.torch}, {plan.environment.cpu}.\n")
    print_tables(found)
    if options.json:
        rows = [{"kind": j.kind, "seed": j.seed, "cell": j.verdict.cell, "status": j.verdict.status} for j in found]
        options.json.write_text(json.dumps(rows, indent=1))


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of a command line; None: of this process's own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="files of correct models (default: all families)"
    )
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds (default: 1)")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS, help="what to judge (default: all)")
    parser.add_argument("--modes", nargs="+", default=["eager", "scripted"], help="modes of the correct models")
    parser.add_argument(
        "--precisions", nargs="+", default=LEVELS, choices=LEVELS, help="precisions of the correct models"
    )
    parser.add_argument("--jobs", type=int, default=2, help="models to judge at one time (default: 2)")
    parser.add_argument("--cache", type=Path, help="folder of compiled code (default: that of `conformance run`)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every verdict to this file")
    return parser.parse_args(arguments)


def plan_of(options: argparse.Namespace) -> tuple[Plan, dict[str, str]]:
    """The plan of all sources, and the kind of each cell that is judged, by id."""
    families = [FOLDER / f"{name}.py" for name in FAMILIES]
    named = [file.resolve() for file in options.files] or families
    planting = set(options.parts) & {"planted", "honest"}
    planted_in = [FOLDER / f"{name}.py" for name in PLANTED_IN] if planting else []
    sources = tuple(map(str, dict.fromkeys([*named, *(families if planting else []), *planted_in])))
    plan = children.plan_of(PlanRequest(sources, devices=("cpu",), deadline=DEADLINE))
    kinds: dict[str, str] = {}
    for file in planted_in:
        kinds |= planted_cells(file, options.parts)
    damaged = [planned.cell for planned in plan.cells if kinds.get(planned.id, "honest") != "honest"]
    kinds |= dict.fromkeys((replace(cell, mode="eager").id for cell in damaged), "undamaged")
    homes = {str(file) for file in named}
    if "correct" in options.parts:
        for cell in (planned.cell for planned in plan.cells):
            chosen = cell.mode in options.modes and cell.precision in options.precisions
            if chosen and plan.models[cell.model].location.file in homes:
                kinds[cell.id] = "correct"
    unknown = set(kinds) - {planned.id for planned in plan.cells}
    if unknown:
        sys.exit(f"no such cells: {', '.join(sorted(unknown))}")
    return plan, kinds


def planted_cells(file: Path, parts: Iterable[str]) -> dict[str, str]:
    """The kind of each cell that a file plants, by id; "honest" if the file holds honest variants."""
    module = find.load(SpecLocation(file=str(file)))
    planted = getattr(module, "PLANTED", ()) if "planted" in parts else ()
    honest = getattr(module, "HONEST", ()) if "honest" in parts else ()
    return {Cell(p.model, p.mode, p.precision, "cpu").id: p.kind for p in (*planted, *honest)}


def _judged(plan: Plan, kinds: dict[str, str], model: str, seed: int) -> list[Judged]:
    """All cells of a model under one seed."""
    chosen = [planned for planned in plan.cells if planned.cell.model == model and planned.id in kinds]
    seeded = replace(plan, seed=seed, cells=tuple(chosen))
    with tempfile.TemporaryDirectory() as folder:
        executor = Executor(seeded, Path(folder))
        found = [Judged(kinds[planned.id], seed, _light(executor, planned)) for planned in chosen]
    red = {j.verdict.cell for j in found if j.accuses}
    eager = {planned.id: replace(planned.cell, mode="eager").id for planned in chosen}
    return [j if j.kind in RIGHT else replace(j, blind=eager[j.verdict.cell] in red) for j in found]


def _light(executor: Executor, planned: PlannedCell) -> Verdict:
    """A verdict without its observation."""
    return replace(executor.verdict(planned), observation=Observation("none"))


def print_tables(found: list[Judged]) -> None:
    """Print counts by kind and precision, and every cell that is not as it should be."""
    print(
        "| kind | precision | cells | green | red | refused | blind | what rejects |\n|---|---|---|---|---|---|---|---|"
    )
    for kind in dict.fromkeys(j.kind for j in found):
        for precision in LEVELS:
            cells = [j for j in found if j.kind == kind and f"-{precision}-" in j.verdict.cell]
            outcomes = Counter(j.outcome for j in cells)
            if cells:
                reasons = Counter(
                    (j.verdict.short or j.verdict.status).split(" ")[0] for j in cells if j.outcome == "red"
                )
                by = ", ".join(f"{word} {count}" for word, count in reasons.most_common())
                counts = " | ".join(str(outcomes[word]) for word in ("green", "red", "refused", "blind"))
                print(f"| {kind} | {precision} | {len(cells)} | {counts} | {by} |")
    _list("Accused, though correct", [j for j in found if j.accuses])
    _list("Faults that survive", [j for j in found if j.kind not in RIGHT and j.outcome == "green"])
    _list("Faults in models that are red without them", [j for j in found if j.outcome == "blind"])
    _list("Refused by the mode", [j for j in found if j.outcome == "refused"])


def _list(title: str, cells: list[Judged]) -> None:
    print(f"\n## {title}: {len(cells)}\n")
    for cell, same in _grouped(cells).items():
        seeds = ", ".join(str(j.seed) for j in same)
        print(f"- {cell} ({same[0].kind}, seeds {seeds}): {same[0].verdict.status} {same[0].verdict.text[:200]}")


def _grouped(cells: list[Judged]) -> dict[str, list[Judged]]:
    grouped: dict[str, list[Judged]] = {}
    for judged in cells:
        grouped.setdefault(judged.verdict.cell, []).append(judged)
    return grouped


if __name__ == "__main__":
    main()
