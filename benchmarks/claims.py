"""Measures again what the sources of the zoo say that its models gain, and prints the page docs/claims.md.

    python -m benchmarks.claims > docs/claims.md

Every model is judged at every size first. If baseline and variant pass, they are timed side by side in three processes,
or their bytes are counted in three. A whole training is judged by its first steps, then run from begin to end, three
times in turns with its baseline; `--pictures FOLDER` draws what it has learnt. The exit code is 1 if a cell is red, and
otherwise 0, also if no claim holds.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import zoo
from benchmarks import children
from benchmarks.checkerboard import DEADLINE
from benchmarks.tasks import TRAIN, Training, TrainingTask
from conformance.axes import DEVICES
from conformance.figures import speed
from conformance.figures.meter import pooled_ratio
from conformance.figures.speed import footprint
from conformance.judging.executor import Executor
from conformance.plan.matrix import why_absent
from conformance.process import pool
from conformance.records.cell import Cell, SizedModel, Verdict
from conformance.records.measurements import FASTER, FIGURES, NOISY, SLOWER, Ratio, Reason
from conformance.records.plan import Plan, PlannedCell
from conformance.records.tasks import PlanRequest
from conformance.show import matrix
from conformance.show.text import ratio_text
from zoo.claim import Claim

PROCESSES = 3  # a gain must show in each of them
WHOLE = {"fit_checkerboard": "side"}  # what a size of the training measures
STEPS = 500  # of a whole training; float64 cannot follow so many, so the oracle judges the first ones
SHARE = 0.8  # share of the published gain that counts as reproduced
REPRODUCED, WEAKER = "reproduced", "weaker"
QUANTITIES = {**FIGURES, "saved": "bytes saved for backward", "peak": "peak bytes of forward and backward"}
INTRODUCTION = f"""# Claims of the sources, measured again

`python -m benchmarks.claims > docs/claims.md` writes this page. The spec of a model of the zoo makes each claim. The
script judges the model and its baseline at every size first, and measures only cells that pass.

{{header}}

A figure is how many times faster the model is than the baseline, or how many times fewer bytes it needs: ▲ a gain, ▼ a
loss, = the same within 3 %, ~ too noisy to say. A time is the median of alternating calls. The brackets hold the hull
of the 99 % intervals of three processes. Bytes are counted, and three processes agree on them. A whole training has
{STEPS} steps; its brackets hold the ratios of three pairs of trainings, and the losses are those before the last step.

At a size, a claim is *reproduced* if the whole interval is at or above 1 + {SHARE} · (published factor − 1). It is
*weaker* if there is a smaller gain. Over the sizes that have a clear answer:

- *reproduced*, *weaker*: at every size.
- *size-dependent*: the sizes disagree, and at least one has a gain.
- *not reproduced*: no size has a gain.
- *no figure*: no size has a clear answer.
- *needs CUDA*: the claim is about CUDA, and the machine above has none.

A published factor holds for the machine and the sizes of its source. A verdict holds for those of this page.

| claim | published | measured | verdict |
| --- | --- | --- | --- |
"""


@dataclass(eq=False)
class Replica:
    """A claim on a device.

    Attributes:
        model: the model whose spec makes the claim.
        claim: what it claims.
        size_name: what a size measures, such as "width".
        sizes: the sizes to measure at.
        device: "cpu" or "cuda".
        measured: the gain, or the reason why there is none, by size; empty if the device is absent.
        learnt: the losses of whole trainings, by size.
    """

    model: str
    claim: Claim
    size_name: str
    sizes: tuple[int, ...]
    device: str
    measured: dict[int, Ratio | Reason] = field(default_factory=dict)
    learnt: dict[int, str] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether it is about a training from begin to end, which is judged at no size."""
        return self.claim.quantity == "fit"

    def judged(self, size: int) -> tuple[Cell, Cell]:
        """The cells whose verdicts the figure at a size needs."""
        return self.pair(0 if self.is_whole else size)

    def pair(self, size: int = 0) -> tuple[Cell, Cell]:
        """The cells of baseline and variant at a size; 0: at no size."""
        claim = self.claim
        names = (SizedModel(name, size).name if size else name for name in (claim.baseline or self.model, self.model))
        return (
            Cell(next(names), claim.baseline_mode, claim.baseline_precision, self.device),
            Cell(next(names), claim.mode, claim.precision, self.device),
        )

    @property
    def verdict(self) -> str:
        """The verdict over all sizes, as on the page."""
        if not self.measured:
            return "needs CUDA"
        words = {word(found, self.claim.factor) for found in self.measured.values() if isinstance(found, Ratio)}
        words.discard(NOISY)
        if not words:
            return "no figure"
        if words.isdisjoint({REPRODUCED, WEAKER}):
            return "not reproduced"
        return words.pop() if len(words) == 1 else "size-dependent"


def main() -> int:
    """Judge, measure and print the page; returns 1 if a cell is red, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="for what whole trainings draw; needs Pillow")
    pictures = parser.parse_args().pictures
    if pictures and not importlib.util.find_spec("PIL"):
        parser.error("--pictures needs Pillow")
    here = [device for device in DEVICES if not why_absent(device)]
    replicas = all_replicas(here)
    present = [replica for replica in replicas if replica.device in here]
    plan = _plan(present)
    children.prepare(plan.environment, compiles_for=plan.compiles_for)
    verdicts = {}
    with tempfile.TemporaryDirectory() as folder:
        executor = Executor(plan, Path(folder))
        for name, verdict in pool.carry_out({p.id: partial(executor.verdict, p) for p in plan.cells}):
            verdicts[name] = verdict
            print(matrix.line(verdict), file=sys.stderr, flush=True)
        _measure(present, plan, executor, verdicts)
        _train(present, plan, verdicts, pictures)
    print(page(matrix.header(plan), replicas), end="")
    return int(any(verdict.red for verdict in verdicts.values()))


def all_replicas(here: Sequence[str]) -> list[Replica]:
    """Every claim of the zoo on its device, or on each device that is here."""
    return [
        Replica(spec.name, claim, spec.scale.size_name if spec.scale else WHOLE[spec.name], sizes, device)
        for spec in map(zoo.get_spec, zoo.list_models())
        for claim in spec.claims
        if (sizes := claim.sizes or (spec.scale.sizes if spec.scale else ()))
        for device in ([claim.device] if claim.device else here)
    ]


def _plan(replicas: Sequence[Replica]) -> Plan:
    """The plan of all cells that the claims compare, from a plan of their models at no size."""
    cells = [cell for replica in replicas for cell in replica.pair()]
    models, modes, precisions = (
        tuple(dict.fromkeys(getattr(cell, axis) for cell in cells)) for axis in ("model", "mode", "precision")
    )
    whole = children.plan_of(PlanRequest(models, modes, precisions))
    known = {planned.cell: planned for planned in whole.cells}
    pairs = [(replica.pair(), replica.judged(size)) for replica in replicas for size in replica.sizes]
    sized = {new: old for olds, news in pairs for old, new in zip(olds, news, strict=True)}
    return replace(
        whole,
        models={new.model: replace(whole.models[old.model], working={}) for new, old in sized.items()},
        cells=tuple(replace(known[old], cell=new) for new, old in sized.items()),
    )


def _measure(replicas: Sequence[Replica], plan: Plan, executor: Executor, verdicts: Mapping[str, Verdict]) -> None:
    """Measure all claims at all their sizes."""
    cells = {planned.cell: planned for planned in plan.cells}
    jobs = {}
    for replica in [replica for replica in replicas if not replica.is_whole]:
        for size in replica.sizes:
            pair, quantity = [cells[cell] for cell in replica.pair(size)], replica.claim.quantity
            name = f"{quantity} {pair[1].id} against {pair[0].id}"
            work = partial(_gain, plan, executor, verdicts, pair, quantity)
            jobs[replica, size] = {f"{name} #{index}": partial(work, index) for index in range(PROCESSES)}
    results: dict[str, Ratio | Reason] = {}
    for name, found in pool.measure(speed.in_batches(jobs.values())):
        results[name] = found
        print(name, found if isinstance(found, Reason) else ratio_text(found), file=sys.stderr, flush=True)
    for (replica, size), names in jobs.items():
        replica.measured[size] = pooled([results[name] for name in names])


def _train(replicas: Sequence[Replica], plan: Plan, verdicts: Mapping[str, Verdict], pictures: Path | None) -> None:
    """Run all whole trainings at all their sizes."""
    cells = {planned.cell: planned for planned in plan.cells}
    for replica in [replica for replica in replicas if replica.is_whole]:
        for size in replica.sizes:
            reason = _red([cells[cell] for cell in replica.judged(size)], verdicts)
            found, learnt = (reason, "") if reason else whole_gain(replica, size, pictures)
            replica.measured[size], replica.learnt[size] = found, learnt
            print(replica.pair(size)[1].id, found if isinstance(found, Reason) else ratio_text(found), file=sys.stderr)


def _red(pair: Sequence[PlannedCell], verdicts: Mapping[str, Verdict]) -> Reason | None:
    """The verdict for which a pair of cells is not measured; None if both pass."""
    red = [planned.id for planned in pair if speed.why_not(planned.id, planned, verdicts)]
    return Reason(verdicts[red[0]].status, red[0]) if red else None


def whole_gain(replica: Replica, size: int, pictures: Path | None) -> tuple[Ratio | Reason, str]:
    """How many times faster a whole training is than its baseline, from pairs run in turns, and the losses of both."""
    pairs: list[list[Training]] = []
    for index in range(PROCESSES):
        pairs.append([])
        for cell in replica.pair():
            name = f"{cell.model}-{cell.mode}-{cell.precision}-{size}.png"
            picture = str(pictures.resolve() / name) if pictures and not index else ""
            task = TrainingTask(cell.device, cell.mode, cell.precision, size, STEPS, picture)
            found = pool.result(TRAIN, task, DEADLINE)
            if isinstance(found, Reason):
                return found, ""
            pairs[-1].append(found)
    ratios = [(one.first + one.rest) / (other.first + other.rest) for one, other in pairs]
    baseline, variant = (statistics.median(one.loss for one in found) for found in zip(*pairs, strict=True))
    ratio = Ratio(statistics.median(ratios), min(ratios), max(ratios), pairs=PROCESSES, processes=PROCESSES)
    return ratio, f", loss {variant:.4f} against {baseline:.4f}"


def _gain(  # noqa: PLR0913 -- all that a process is told
    plan: Plan,
    executor: Executor,
    verdicts: Mapping[str, Verdict],
    pair: Sequence[PlannedCell],
    quantity: str,
    process_index: int,
) -> Ratio | Reason:
    """How many times faster the variant is in one process, or how many times fewer bytes it needs there."""
    if reason := _red(pair, verdicts):
        return reason
    if quantity in FIGURES:
        timing = speed.time_once(plan, pair, executor, quantity, process_index=process_index)
        if isinstance(timing, Reason):
            return timing
        timed = timing.cells[pair[1].id]
        return timed.reason or timed.ratios[pair[0].id]
    counts = []
    for planned in pair:
        seen = footprint(plan, planned.cell)
        count = None if isinstance(seen, Reason) else seen.count(quantity)
        if not count:
            return seen if isinstance(seen, Reason) else seen.why_not(quantity)
        counts.append(count)
    gain = counts[0] / counts[1]
    return Ratio(gain, gain, gain, pairs=1)


def pooled(results: Sequence[Ratio | Reason]) -> Ratio | Reason:
    """The gain of all processes; if one has none, its reason."""
    reason = next((found for found in results if isinstance(found, Reason)), None)
    return reason or pooled_ratio([found for found in results if isinstance(found, Ratio)])


def word(ratio: Ratio, factor: float) -> str:
    """The word that compares a ratio with a published factor: the whole interval must be near it or above."""
    if ratio.verdict != FASTER:
        return "worse" if ratio.verdict == SLOWER else ratio.verdict
    return REPRODUCED if ratio.low >= 1 + SHARE * (factor - 1) else WEAKER


def page(header: str, replicas: Sequence[Replica]) -> str:
    """The page in Markdown: the rule, a table, and why figures are missing.

    Args:
        header: the machine and the versions, on one line.
        replicas: the claims with their measurements, in the order of the table.
    """
    notes = {
        f"- `{replica.pair(size)[1].id}`: {' '.join(str(found).split())}\n": None
        for replica in replicas
        for size, found in replica.measured.items()
        if isinstance(found, Reason)
    }
    below = f"\nWhy figures are missing:\n\n{''.join(notes)}" if notes else ""
    return f"{INTRODUCTION.format(header=header)}{''.join(map(_row, replicas))}{below}"


def _row(replica: Replica) -> str:
    claim = replica.claim
    baseline, variant = (f"`{cell.model}[{cell.mode}-{cell.precision}]`" for cell in replica.pair())
    measured = [
        f"{size}: {_figure(found, claim.factor)}{replica.learnt.get(size, '')}"
        for size, found in replica.measured.items()
    ]
    columns = [
        f"{claim.text}<br>{variant} against {baseline}, {QUANTITIES[claim.quantity]}",
        f"{claim.factor:g}×: {claim.source}",
        "<br>".join([f"on {replica.device}, by {replica.size_name}", *measured] if measured else []),
        replica.verdict,
    ]
    return f"| {' | '.join(columns)} |\n"


def _figure(found: Ratio | Reason, factor: float) -> str:
    """One size as text: ratio, interval if there is one, and word; without a ratio, the short reason."""
    if isinstance(found, Reason):
        return found.short
    text = ratio_text(found)
    return f"{text.partition(' ')[0] if found.low == found.high else text} {word(found, factor)}"


if __name__ == "__main__":
    sys.exit(main())
