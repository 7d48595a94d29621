"""Plays runs on a cluster from the recorded seconds of a stored run: how long they take, and what they cost.

    python -m benchmarks.simulate [RUN] [--models 10000 ...] [--nodes 100 ...] [--judges 16] [--life HOURS] [--seed 0]

RUN was judged by one judge with one core, with `--fresh`. Without it, the zoo is judged on the CPU, as long as
`conformance/store/zoo_seconds.json` tells. With --models, so many are drawn from its models by the seed, each at a pace
of its own, as if it were another one.

The order of the cells is that of a run, and `on_ray.Work` tells which node gets which. A reference is made on each node
that judges a cell of its model; the other judges of the node wait for it. The first compiled cell of a model on a node
takes as long as the longest one of that model, because the node has no compiled code of it yet. One process stores all
verdicts, one after another, and a judge gets its next cell after that. A node dies after a random time; what its judges
were doing is lost, and another one takes its place. More models than --whole are judged whole, each by one judge.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
from collections import deque
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from tabulate import tabulate

from benchmarks import children
from conformance.commands import judging
from conformance.commands.on_ray import LOOK_SECONDS, Work
from conformance.records.cell import model_of
from conformance.records.plan import Plan, PlannedCell
from conformance.records.tasks import PlanRequest
from conformance.store import durations, run_files

HOUR = 3600.0
DIES = "dies"  # in the place of a job
HEADS = ("models", "nodes", "seconds", "hours", "core hours", "used", "writer busy", "deaths", "given up")


@dataclass(frozen=True)
class Job:
    """What a judge is given: a cell, or all cells of a model."""

    reference: float  # seconds of the reference of its model, which its node needs first
    seconds: float  # of the job itself
    cold: float | None = None  # the same if its node has not compiled its model yet; None if it does not compile
    records: int = 1  # that it gives


Jobs = tuple[Plan, dict[str, Job]]  # a plan, and the jobs of its cells by id


@dataclass(frozen=True)
class Cluster:
    """The machines, and the seconds that they take beside the jobs."""

    nodes: int
    judges: int = 1  # of each node; each holds a core
    record: float = 0.002  # of the process that stores the verdicts, for each
    life: float = math.inf  # of a node, on average; they are exponential
    start: float = 2.0  # of a judge
    compiler: float = 5.0  # of a judge, before its first compiled cell
    handing: float = 0.055  # of a job, beside those of its record
    back: float = 120.0  # from the death of a node until another one is in its place


@dataclass
class Played:
    """How a run went: seconds until the last record, deaths of nodes, and jobs whose judges died too often."""

    seconds: float = 0.0
    deaths: int = 0
    given_up: int = 0


def of_run(contents: run_files.Contents) -> Jobs:
    """The plan of a run, and the cells that have a verdict."""
    plan = contents.plan
    found: dict[str, Job] = {}
    for cells in _by_model(plan, contents.verdicts).values():
        verdicts = {one.id: contents.verdicts[one.id] for one in cells if not one.skip}
        reference = max((one.observation.seconds.get("reference", 0.0) for one in verdicts.values()), default=0.0)
        compiled = {one.id for one in cells if one.cell.mode in plan.compiling_modes}
        cold = max((one.seconds for name, one in verdicts.items() if name in compiled), default=None)
        found |= {one.id: Job(0.0, 0.0) for one in cells}
        for name, one in verdicts.items():
            found[name] = Job(reference, one.seconds, cold if name in compiled else None)
    return plan, found


def of_the_zoo() -> Jobs:
    """The plan of the zoo, and its cells. All that compile a model take as long as each other, cold or not."""
    plan, known, found = children.plan_of(PlanRequest(devices=("cpu",))), durations.of_the_zoo(), {}
    for one in (one for one in plan.cells if one.cell.model in known):
        model, compiles = known[one.cell.model], one.cell.mode in plan.compiling_modes
        seconds = (model.compiled if compiles else model.cell) or 0.0
        found[one.id] = Job(0.0, 0.0) if one.skip else Job(model.reference, seconds, seconds if compiles else None)
    return plan, found


def _by_model(plan: Plan, known: Container[str]) -> dict[str, list[PlannedCell]]:
    cells: dict[str, list[PlannedCell]] = {}
    for one in plan.cells:
        if one.id in known:
            cells.setdefault(one.cell.model, []).append(one)
    return cells


def whole(plan: Plan, jobs: Mapping[str, Job], handing: float) -> Jobs:
    """A plan whose first cell of each model stands for all of them; and its jobs."""
    firsts, found = [], {}
    for first, *others in _by_model(plan, jobs).values():
        own = [jobs[one.id] for one in (first, *others)]
        seconds = sum(job.seconds for job in own) + handing * len(others)
        found[first.id] = Job(max(job.reference for job in own), seconds, records=len(own))
        firsts.append(first)
    return replace(plan, cells=tuple(firsts)), found


def drawn(plan: Plan, jobs: Mapping[str, Job], models: int, seed: int) -> Jobs:
    """A plan of so many models, each a copy of one that takes 0.5 to 1.5 times as long; and its jobs."""
    cells, copies, chance = _by_model(plan, jobs), [], random.Random(seed)  # noqa: S311 -- no secret
    found: dict[str, Job] = {}
    for number, name in enumerate(chance.choices(sorted(cells), k=models)):
        pace = chance.uniform(0.5, 1.5)  # equal models would all end at once
        for one in cells[name]:
            job, copy = jobs[one.id], replace(one, cell=replace(one.cell, model=f"{name}_{number}"))
            cold = None if job.cold is None else pace * job.cold
            found[copy.id] = replace(job, reference=pace * job.reference, seconds=pace * job.seconds, cold=cold)
            copies.append(copy)
    return replace(plan, cells=tuple(copies)), found


def order_of(plan: Plan, jobs: Mapping[str, Job], nodes: int) -> list[str]:
    """The ids of the jobs of a plan in the order in which so many nodes take them."""
    expected = {}
    for first, *others in _by_model(plan, jobs).values():
        expected[first.id] = jobs[first.id].reference + jobs[first.id].seconds
        expected |= {one.id: jobs[one.id].seconds for one in others}
    return judging.order(plan, expected, nodes)


class Session:
    """Jobs that are judged in the order of ids. A node in the place of a dead one has its name and the next life."""

    def __init__(self, order: Sequence[str], jobs: Mapping[str, Job], cluster: Cluster, seed: int = 0) -> None:
        self._jobs, self._cluster, self._left = jobs, cluster, len(order)
        self._work, self._chance = Work(order), random.Random(seed)  # noqa: S311 -- no secret
        self._lives = dict.fromkeys(map(str, range(cluster.nodes)), 0)
        self._events: list[tuple[float, int, str, int, str]] = []  # when, a number, node, its life, job
        self._numbers, self._idle = count(), deque[tuple[str, int]]()
        self._ready: dict[str, dict[str, float]] = {}  # when a node has the references of its models
        self._compiled: dict[str, set[str]] = {}  # models that a node has compiled
        self._unprepared: dict[str, int] = {}  # judges of a node that have not compiled
        self._judged: dict[str, set[str]] = {}  # jobs that the judges of a node have
        self._played = Played()

    def play(self) -> Played:
        """Judge all jobs."""
        for node in self._lives:
            self._begin(node, 0.0)
        while self._left:
            now, _, node, life, job = heapq.heappop(self._events)
            if self._lives[node] == life:
                (self._die if job == DIES else self._hear)(node, now, job)
                while self._work and self._idle:
                    self._assign(*self._idle.popleft(), max(now, self._played.seconds))
        return self._played

    def _begin(self, node: str, now: float) -> None:
        """Start the judges of a node: one, and the others once it has been seen that the node is fit."""
        cluster = self._cluster
        self._ready[node], self._compiled[node], self._judged[node] = {}, set(), set()
        self._unprepared[node] = cluster.judges
        for judge in range(cluster.judges):
            self._add(now + cluster.start + (judge > 0) * (LOOK_SECONDS + cluster.start), node, "")
        if cluster.life < math.inf:
            self._add(now + self._chance.expovariate(1 / cluster.life), node, DIES)

    def _add(self, when: float, node: str, job: str) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), node, self._lives[node], job))

    def _die(self, node: str, now: float, _: str) -> None:
        self._work.forget(node)
        given_up = [self._work.put_back(job) for job in sorted(self._judged[node])].count(False)
        self._left -= given_up
        self._played.given_up += given_up
        self._played.deaths += 1
        self._lives[node] += 1
        self._begin(node, now + self._cluster.back)

    def _hear(self, node: str, now: float, job: str) -> None:
        """Store the verdicts of a job, if there was one; then its judge is idle."""
        if job:
            self._played.seconds = max(self._played.seconds, now) + self._jobs[job].records * self._cluster.record
            self._judged[node].remove(job)
            self._left -= 1
        self._idle.append((node, self._lives[node]))

    def _assign(self, node: str, life: int, now: float) -> None:
        if self._lives[node] == life:
            name = self._work.take(node)
            job, model, begins = self._jobs[name], model_of(name), now + self._cluster.handing
            begins = max(begins, self._ready[node].setdefault(model, begins + job.reference))
            if job.cold is not None and self._unprepared[node]:
                self._unprepared[node] -= 1
                begins += self._cluster.compiler
            cold = job.cold is not None and model not in self._compiled[node]
            self._compiled[node].update([model] * cold)
            self._judged[node].add(name)
            self._add(begins + (job.cold or 0.0 if cold else job.seconds), node, name)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", metavar="RUN", help="the folder of a stored run")
    parser.add_argument("--models", type=int, nargs="+", default=[0], help="so many are drawn; 0: those of the run")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--judges", type=int, default=1, help="of each node (default: 1)")
    parser.add_argument("--record", type=float, default=Cluster.record, help="seconds to store one (default: 0.002)")
    parser.add_argument("--life", type=float, default=math.inf, help="mean hours of a node (default: it never dies)")
    parser.add_argument("--whole", type=int, default=1000, help="more models are judged whole (default: 1000)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    recorded = of_run(run_files.read(options.run)) if options.run else of_the_zoo()
    rows = [_row(options, recorded, models, nodes) for models in options.models for nodes in options.nodes]
    print(tabulate(rows, HEADS, floatfmt=("", "", ".1f", ".2f", ".2f", ".0%", ".0%")))


def _row(options: argparse.Namespace, recorded: Jobs, models: int, nodes: int) -> tuple[object, ...]:
    cluster = Cluster(nodes, options.judges, options.record, options.life * HOUR)
    plan, jobs = whole(*recorded, cluster.handing) if models > options.whole else recorded
    plan, jobs = drawn(plan, jobs, models, options.seed) if models else (plan, jobs)
    played = Session(order_of(plan, jobs, nodes), jobs, cluster, options.seed).play()
    held = played.seconds * nodes * options.judges
    references = {model_of(name): job.reference for name, job in jobs.items()}
    used = sum(references.values()) + sum(job.seconds for job in jobs.values())
    stored = sum(job.records for job in jobs.values()) * cluster.record
    times = played.seconds, played.seconds / HOUR, held / HOUR, used / held, stored / played.seconds
    return len(references), nodes, *times, played.deaths, played.given_up


if __name__ == "__main__":
    main()
