"""Keeps verdicts from one run to the next: a cell whose every input is as it was need not be judged again.

A verdict depends on what the reference of its model depends on, and on the judge, the plan of the cell, the machine,
the compilers, and the environment variables that torch and they read. A random tenth is judged again all the same; a
verdict that then is another one is red. Only verdicts that are not red are kept, and only of modes of this project.
"""

import contextlib
import hashlib
import json
import os
import random
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from conformance.cache import sources
from conformance.cache.references import KeptReferences
from conformance.errors import StoreError, UsageError
from conformance.judging.executor import Executor
from conformance.process import environment, pool
from conformance.records.cell import KEPT_SINCE, Verdict
from conformance.records.convert import to_json
from conformance.records.plan import Plan
from conformance.records.tasks import FINGERPRINTS, Fingerprints, FingerprintsTask
from conformance.store import files, run_files

KEPT = "kept"  # the field of a document that holds one
SHARE = 0.1  # of the kept verdicts that are judged again
COMPILERS = ("c++", "g++", "gcc", "clang++", "cl", "nvcc", "ptxas")
READ_BY_TORCH = (  # the beginnings of the names of variables that torch, its libraries and compilers read
    "ATEN", "CC", "CPATH", "CPLUS", "CUBLAS", "CUDA", "CUDNN", "CXX", "DNNL", "DYLD_", "GLIBC_", "GOMP_", "KMP_", "LD_",
    "MALLOC_", "MKL_", "NVIDIA_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTHON", "PYTORCH_", "TORCH", "TRITON_",
)  # fmt: skip


@dataclass(frozen=True)
class Kept:
    """A kept verdict, and the day on which it was given, such as "2026-11-29"."""

    day: str
    verdict: Verdict

    @property
    def marked(self) -> Verdict:
        """The verdict, with the day."""
        seen = self.verdict.observation
        return replace(self.verdict, observation=replace(seen, facts={**seen.facts, KEPT_SINCE: self.day}))


class KeptVerdicts:
    """The verdicts that a user's runs keep, for a plan.

    Args:
        plan: the plan.
        executor: of the plan.
        folder: the folder of the references that are kept; theirs is beside it.
    """

    def __init__(self, plan: Plan, executor: Executor, folder: Path) -> None:
        self._plan, self._executor, self._references = plan, executor, folder
        self._folder = folder.with_name(f"{folder.name}-verdicts") / (plan.judge.code or "unknown")
        self._planned = {planned.id: planned for planned in plan.cells}

    def find(self, cells: Collection[str]) -> dict[str, Kept]:
        """The kept verdicts of some cells, by cell id. Their models are built, to see that the weights are the same."""
        known = KeptReferences(self._references, self._plan.environment, self._plan.digests)
        found = {cell: kept for cell, path in self._paths(cells, known) if (kept := _load(path, cell))}
        models = dict.fromkeys(self._planned[cell].cell.model for cell in found)
        same = self._unchanged([*models], known)
        return {cell: kept for cell, kept in found.items() if self._planned[cell].cell.model in same}

    def keep(self, verdicts: Mapping[str, Verdict]) -> None:
        """Keep verdicts that were given now, by cell id. Of a red cell none is kept, and none of an older judge."""
        given = {cell: one for cell, one in verdicts.items() if KEPT_SINCE not in one.observation.facts}
        known = KeptReferences(self._references, self._plan.environment, {})  # as the files are now
        with contextlib.suppress(OSError, StoreError):  # they are judged again
            self._folder.mkdir(parents=True, exist_ok=True)
            for other in self._folder.parent.iterdir():
                if other != self._folder:
                    shutil.rmtree(other, ignore_errors=True)
            for cell, path in self._paths(given, known):
                if given[cell].red:
                    path.unlink(missing_ok=True)
                else:
                    files.write_document(path, KEPT, Kept(self._plan.judge.day, given[cell]))

    def _paths(self, cells: Collection[str], known: KeptReferences) -> Iterator[tuple[str, Path]]:
        """The path of the kept verdict of each cell that may have one, for which the reference of its model is kept."""
        bases: dict[str, str] = {}
        for planned in map(self._planned.__getitem__, cells):
            model, mode = planned.cell.model, planned.cell.mode
            if planned.skip or mode in self._plan.modes or mode in self._plan.models[model].candidates:
                continue
            if model not in bases:
                bases[model] = known.describe(self._executor.reference_task(model))
            if bases[model]:
                asked = json.dumps([bases[model], to_json(planned), self._circumstances])
                yield planned.id, self._folder / f"{hashlib.sha256(asked.encode()).hexdigest()[:32]}.json"

    @cached_property
    def _circumstances(self) -> str:
        """What a verdict depends on beside the model and its reference."""
        plan = self._plan
        names = sorted(name for name in os.environ if name.startswith(READ_BY_TORCH) and name not in environment.OWN)
        variables = {name: sources.content_of_variable(name) for name in names}
        compilers = [sources.content_of_file(Path(path)) for name in COMPILERS if (path := shutil.which(name))]
        machine = replace(plan.environment, executable="")  # which has many names
        return json.dumps([plan.strict, plan.every_tensor, to_json(machine), variables, compilers])

    def _unchanged(self, models: list[str], known: KeptReferences) -> set[str]:
        """The models whose weights and inputs are those of their kept references."""
        count, planned = environment.cores(), self._plan.models
        shares = [{name: planned[name].location for name in models[start::count]} for start in range(count)]
        jobs = {
            str(number): partial(
                pool.result, FINGERPRINTS, FingerprintsTask(share, self._plan.seed), self._plan.deadline
            )
            for number, share in enumerate(filter(None, shares))
        }
        now: dict[str, str] = {}
        for _, result in pool.carry_out(jobs):
            now |= result.found if isinstance(result, Fingerprints) else {}
        return {name for name in models if now.get(name) == known.fingerprint(self._executor.reference_task(name))}


def _load(path: Path, cell: str) -> Kept | None:
    try:
        kept: Kept = files.decode(path, files.read(path, run_files.RECORD_BYTES), KEPT, Kept)
    except (OSError, UsageError):
        return None
    return kept if kept.verdict.cell == cell and not kept.verdict.red else None


def split(kept: Mapping[str, Kept]) -> tuple[dict[str, Kept], dict[str, Kept]]:
    """The kept verdicts to show, and a random tenth to judge again."""
    again = {cell for cell in kept if random.random() < SHARE}  # noqa: S311 -- nobody guesses it
    return {c: k for c, k in kept.items() if c not in again}, {c: k for c, k in kept.items() if c in again}


def contradiction(now: Verdict, kept: Kept) -> Verdict | None:
    """The verdict of a cell that was judged again and that is another one than the kept one; None if it is the same."""
    before = kept.verdict
    if (now.status, now.reason) == (before.status, before.reason):
        return None
    said = f"with the same inputs it was {before.status} on {kept.day}"
    if now.red:
        return replace(now, text=f"{now.text}; {said}")
    return replace(now, status="UNSTABLE", short="UNSTABLE", text=f"{now.status} now; {said}")
