"""Counts how often meters see a difference between equal programs, and how often they miss one of 10 %.

    python -m benchmarks.meters [--trials 300] [--json FILE] [--write]

Our meter and its rivals get the same programs, in half of the trials with two busy loops at the same time. It prints
the study as Markdown; `--write` puts it between the marks in docs/measurement.md. With `--json FILE`, each trial is
kept when it ends, one on a line, and an interrupted study continues where it stopped. It needs
`pip install pytest-benchmark`. A trial takes some 10 s.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import math
import statistics
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from benchmarks import children
from benchmarks.meter_rivals import RULES
from benchmarks.meter_trial import AGAIN, NETWORKS, OURS, SLOWED
from benchmarks.tasks import METERS, MeterTask, Reading, Readings
from conformance.figures.meter import pooled_ratio
from conformance.records.convert import from_json, to_json
from conformance.records.measurements import FASTER, NOISY, SAME, SLOWER
from conformance.records.plan import Environment

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "measurement.md"
OPENING, CLOSING = "<!-- study -->", "<!-- /study -->"
BUDGET, PROCESSES = 0.75, 2  # seconds for each program in each process
DEADLINE = 600.0  # of a process
CONDITIONS = {"quiet": 0, "two busy loops": 2}
WIDTH = 120

OUR_RULE = """rounds of single calls of A, A′, B and the two controls. A difference is reported if the 99 % interval of
the median ratio within a round, widened to cover both processes, is completely beyond 3 %. There is no verdict if the
interval contains a limit of 3 %, or if a control fails. Sampling ends early if all intervals are narrow."""

TEXT = """
Measured by `python -m benchmarks.meters` with torch {torch}, pytest-benchmark {plugin}, Python {python}, on one thread
of: {cpu}, {cores} cores.

{table}

- *false alarms*: trials in which two copies of one program were called different. *at most*: the 95 % upper bound of
  their share (Clopper and Pearson).
- *finds 10 %*: share of the trials in which a program with a tenth more work was called slower.
- *no verdict*: share of the trials in which the meter said that it cannot tell: first for the copies, then for the
  slower program. In all other trials the meter called the slower program the same, or faster.
- *seconds a side*: seconds of timed calls of one program in both processes, the median over the trials. *in all*: all
  seconds of the meter in both processes. Our meter times two controls besides the three programs.

The results of the first process alone, as if each meter were used in one process:

{alone}

A trial builds three copies of one network in each of two fresh processes: A, A′, and B. B does a tenth more work: a
counted loop runs after each call. The length of the loop is chosen while nothing disturbs the machine. A call is
forward and backward, in half of the trials of {small}, in the other half of
{wide}.

In random order, every meter compares A with A′ and A with B. The budget is {budget} s for each program in each process.
Only pytest-benchmark may take longer, because it fixes the number of its rounds beforehand, by its fastest call. Before
each network, memory of a random size is allocated, so that the trials differ in the addresses of the weights. In half
of the trials, two endless loops of Python run at the same time. A meter decides as follows:

{rules}

A difference found by another meter counts if both processes see it in the same direction. If either process has no
verdict, there is none. The second table shows what that changes. A false alarm may be in either direction.
"""


@dataclass(frozen=True)
class Setting:
    """What all trials of a file have in common."""

    torch: str
    python: str
    cpu: str
    cores: int
    plugin: str
    budget: float


@dataclass(frozen=True)
class Trial:
    """One trial: its number, its condition, the network of its programs, and the readings of each process."""

    number: int
    condition: str
    program: str
    setting: Setting
    processes: tuple[Readings, ...]


def main() -> None:
    """Run the trials that are missing, and print or write the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=300, help="how many (default: 300)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the trials here, and continue with those in it")
    parser.add_argument("--write", action="store_true", help=f"write to {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    if importlib.util.find_spec("pytest_benchmark") is None:
        sys.exit("the study compares with pytest-benchmark, which is not installed: pip install pytest-benchmark")
    here = children.observe_environment()
    children.prepare(here, compiles_for=())
    text = page(study(setting_of(here), options.trials, options.json))
    if options.write:
        write(text)
    else:
        print(text)


def setting_of(here: Environment) -> Setting:
    """The setting of a study in an environment."""
    plugin = importlib.metadata.version("pytest-benchmark")
    return Setting(here.torch, here.python, here.cpu, here.cores, plugin, BUDGET)


def study(setting: Setting, count: int, file: Path | None) -> list[Trial]:
    """Trials 0 to count − 1. Those in the file are taken from it, the others are added to it."""
    lines = file.read_text(encoding="utf-8").splitlines() if file and file.exists() else []
    stored = [from_json(Trial, json.loads(line)) for line in lines]
    trials = [trial for trial in stored if trial.number < count]
    if any(trial.setting != setting for trial in trials):
        sys.exit(f"{file}: holds trials of another setting than {setting}")
    known, started = {trial.number for trial in trials}, time.monotonic()
    for number in [n for n in range(count) if n not in known]:
        trials.append(one_trial(number, setting))
        if file:
            with file.open("a", encoding="utf-8") as kept:
                kept.write(json.dumps(to_json(trials[-1])) + "\n")
        print(f"{len(trials)} of {count} trials, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return trials


def one_trial(number: int, setting: Setting) -> Trial:
    """Do one trial. Conditions and networks take turns."""
    condition = list(CONDITIONS)[number % 2]
    program = list(NETWORKS)[number // 2 % 2]
    tasks = [MeterTask(program, BUDGET, CONDITIONS[condition], PROCESSES * number + n) for n in range(PROCESSES)]
    processes = tuple(children.result_of(METERS, task, DEADLINE) for task in tasks)
    return Trial(number, condition, program, setting, processes)


def verdict(processes: Sequence[Reading], side: str) -> str:
    """The verdict that the readings of one rule in all processes give together."""
    if any(seen.reason for seen in processes):
        return NOISY
    if processes[0].intervals:
        return pooled_ratio([seen.intervals[side] for seen in processes]).verdict
    words = {seen.verdicts[side] for seen in processes}
    return words.pop() if len(words) == 1 else NOISY if NOISY in words else SAME


def upper_bound(seen: int, trials: int, confidence: float = 0.95) -> float:
    """Clopper and Pearson's one-sided bound of a share: seldom would so few be seen if it were higher.

    Args:
        seen: how often it happened.
        trials: how often it could have happened, at least once.
        confidence: that the share is not above the bound.
    """
    if seen == trials:
        return 1.0
    ways = [math.log(math.comb(trials, k)) for k in range(seen + 1)]
    low, high = 0.0, 1.0
    for _ in range(50):
        p = (low + high) / 2
        chance = sum(math.exp(w + k * math.log(p) + (trials - k) * math.log1p(-p)) for k, w in enumerate(ways))
        low, high = (p, high) if chance > 1 - confidence else (low, p)
    return high


def page(trials: Sequence[Trial]) -> str:
    """The study as Markdown."""
    return TEXT.format(
        **vars(trials[0].setting),
        table=_table(trials, slice(None)),
        alone=_table(trials, slice(1)),
        rules=rules(),
        **{name: _described(*network) for name, network in NETWORKS.items()},
    )


def rules() -> str:
    """How each meter decides, as a list."""
    return "\n".join(
        textwrap.fill(f"{name}: {rule}", WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
        for name, rule in {OURS: OUR_RULE, **RULES}.items()
    )


def _described(rows: int, widths: tuple[int, ...]) -> str:
    return f"`mlp{widths}` on {rows} rows"


def _table(trials: Sequence[Trial], processes: slice) -> str:
    rows = []
    for condition in CONDITIONS:
        chosen = [trial.processes[processes] for trial in trials if trial.condition == condition]
        names = (OURS, *RULES) if chosen else ()
        rows += [_row(name, condition, [[p.by_rule[name] for p in trial] for trial in chosen]) for name in names]
    header = ["meter", "machine", "false alarms", "at most", "finds 10 %", "no verdict", "seconds a side", "in all"]
    align = ("left", "left", *["right"] * 6)
    return tabulate(rows, header, tablefmt="github", colalign=align, disable_numparse=True)


def _row(name: str, condition: str, trials: Sequence[Sequence[Reading]]) -> list[str]:
    count = len(trials)
    again, slowed = ([verdict(processes, side) for processes in trials] for side in (AGAIN, SLOWED))
    alarms = sum(word in (FASTER, SLOWER) for word in again)
    unsure = " and ".join(f"{words.count(NOISY) / count:.0%}" for words in (again, slowed))
    a_side = statistics.median(sum(reading.seconds for reading in processes) for processes in trials)
    in_all = statistics.median(sum(reading.wall for reading in processes) for processes in trials)
    shares = [f"{alarms} of {count}", f"{upper_bound(alarms, count):.1%}", f"{slowed.count(SLOWER) / count:.0%}"]
    return [name, condition, *shares, unsure, f"{a_side:.2f}", f"{in_all:.2f}"]


def write(text: str) -> None:
    """Put the study between the marks of the page."""
    before, opening, rest = PAGE.read_text(encoding="utf-8").partition(OPENING)
    _, closing, after = rest.partition(CLOSING)
    if not (opening and closing):
        sys.exit(f"{PAGE} has no {OPENING} … {CLOSING}")
    PAGE.write_text(f"{before}{opening}\n{text}\n{closing}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
