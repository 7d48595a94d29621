"""How often meters see a difference where there is none, and how often they miss one of 10 %.

`python benchmarks/meters.py [--trials 300] [--json FILE] [--write]` asks our meter and its rivals the same questions
about the same programs, half of the times with two busy loops beside, and prints the study as Markdown; `--write`
puts it between the marks in docs/measurement.md. With `--json FILE` each trial is kept as it ends, one on a line, and
an interrupted study goes on where it stopped. It needs `pip install pytest-benchmark`. A trial takes some 10 s.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import math
import os
import statistics
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from meter_rivals import RULES  # noqa: E402 -- needs the path above
from meter_trial import AGAIN, NETWORKS, OURS, SLOWED  # noqa: E402
from tabulate import tabulate  # noqa: E402

from conformance.run import child  # noqa: E402
from conformance.figures.ratio import FASTER, NOISY, SAME, SLOWER, Ratio, pooled  # noqa: E402

PAGE = HERE.parent / "docs" / "measurement.md"
OPENING, CLOSING = "<!-- study -->", "<!-- /study -->"
STUB = f"# Measurement\n\n{OPENING}\n{CLOSING}\n"
BUDGET, PROCESSES = 0.75, 2  # seconds for each program in each process
DEADLINE = 600.0  # of a process that may have to wait for the machine
CONDITIONS = {"quiet": 0, "two busy loops": 2}
WIDTH = 120

OUR_RULE = """rounds of single calls of A, A′, B and the two controls; the 99 % interval of the median ratio within a
round, widened to hold that of both processes, lies beyond 3 %. No verdict where it holds 3 %, or where a control fails.
Sampling ends early where all intervals are narrow."""

TEXT = """
Measured by `python benchmarks/meters.py` with torch {torch}, pytest-benchmark {plugin}, Python {python}, on one thread
of: {cpu}, {cores} cores.

{table}

- *false alarms*: trials in which two copies of one program were called different. *at most*: the 95 % upper bound of
  their share (Clopper and Pearson).
- *finds 10 %*: share of the trials in which a program with a tenth more work was called slower.
- *no verdict*: share of the trials in which the meter said that it cannot tell, of the copies and of the slower
  program. What was neither found nor left without a verdict was called the same, or faster.
- *seconds a side*: of timed calls of one program in both processes, the median over the trials. *in all*: all the
  seconds of the meter in both processes; ours times two controls besides the three programs.

What the first process alone says, as where a meter is used in one process:

{alone}

A trial builds three copies of one network in each of two fresh processes: A, A′, and B, which does a tenth more work: a
counted loop behind each call, its length chosen while nothing disturbs. A call is forward and backward,
in half of the trials of {small}, in the other half of {wide}.
In an order drawn by lot, every meter compares A with A′ and A with B, with a budget of {budget} s for each program in
each process; only pytest-benchmark may take longer, since it counts its rounds beforehand by its fastest call. Memory
of a random size is taken before each network, so that trials differ in where weights lie. In half of the trials two
endless loops of Python run beside. A meter decides as follows:

{rules}

A rival's difference counts where both processes see it in the same direction; where either has no verdict, there is
none. The second table shows what that changes. A false alarm may be of either direction.
"""


def main() -> None:
    """Run the trials that are missing, and print or write the page."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the trials here, and go on with those in it")
    parser.add_argument("--write", action="store_true", help=f"to {PAGE.relative_to(HERE.parent)}")
    options = parser.parse_args()
    if importlib.util.find_spec("pytest_benchmark") is None:
        sys.exit("the study compares with pytest-benchmark, which is not installed: pip install pytest-benchmark")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path[:2], os.environ.get("PYTHONPATH", "")]))
    os.environ["OMP_NUM_THREADS"] = "1"
    page = _page(study(options.trials, options.json))
    if options.write:
        write(page)
    else:
        print(page)


def study(count: int, file: Path | None) -> list[dict[str, Any]]:
    """Trials 0 to count − 1; those in the file are taken from it, the others are added to it."""
    setting = _setting()
    lines = file.read_text(encoding="utf-8").splitlines() if file and file.exists() else []
    trials = [trial for trial in map(json.loads, lines) if trial["trial"] < count]
    if any(trial["setting"] != setting for trial in trials):
        sys.exit(f"{file}: holds trials of another setting than {setting}")
    known, started = {trial["trial"] for trial in trials}, time.monotonic()
    for number in [n for n in range(count) if n not in known]:
        trials.append({**one_trial(number), "setting": setting})
        if file:
            with file.open("a", encoding="utf-8") as kept:
                kept.write(json.dumps(trials[-1]) + "\n")
        print(f"{len(trials)} of {count} trials, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return trials


def _setting() -> dict[str, Any]:
    seen = _answer("conformance.plan.matrix:probe", {})
    chosen = {key: seen[key] for key in ("torch", "python", "cpu", "cores")}
    return {**chosen, "plugin": importlib.metadata.version("pytest-benchmark"), "budget": BUDGET}


def _answer(target: str, task: dict[str, Any]) -> Any:
    ending = child.run(target, task, deadline=DEADLINE)
    if ending.kind != "answered":
        sys.exit(f"{target}: {ending.kind} in {ending.phase}: {ending.message}")
    return ending.answer


def one_trial(number: int) -> dict[str, Any]:
    """One trial: conditions and programs take turns."""
    condition = list(CONDITIONS)[number % 2]
    task = {"program": list(NETWORKS)[number // 2 % 2], "budget": BUDGET, "busy": CONDITIONS[condition]}
    processes = [_answer("meter_trial:observe", {**task, "seed": PROCESSES * number + n}) for n in range(PROCESSES)]
    return {"trial": number, "condition": condition, **task, "processes": processes}


def verdict(processes: list[dict[str, Any]], side: str) -> str:
    """What the readings of one meter in all processes say together."""
    if any(seen["reason"] for seen in processes):
        return NOISY
    if processes[0]["intervals"]:
        return pooled([Ratio.from_json(seen["intervals"][side]) for seen in processes]).verdict
    words = {seen["verdicts"][side] for seen in processes}
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


def _page(trials: list[dict[str, Any]]) -> str:
    return TEXT.format(
        **trials[0]["setting"],
        table=_table(trials, slice(None)),
        alone=_table(trials, slice(1)),
        rules="\n".join(_item(f"{name}: {rule}") for name, rule in {OURS: OUR_RULE, **RULES}.items()),
        **{name: _described(*network) for name, network in NETWORKS.items()},
    )


def _described(rows: int, widths: tuple[int, ...]) -> str:
    return f"`mlp{widths}` on {rows} rows"


def _item(text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)


def _table(trials: list[dict[str, Any]], processes: slice) -> str:
    rows = []
    for condition in CONDITIONS:
        chosen = [trial["processes"][processes] for trial in trials if trial["condition"] == condition]
        names = (OURS, *RULES) if chosen else ()
        rows += [_row(name, condition, [[p[name] for p in trial] for trial in chosen]) for name in names]
    header = ["meter", "machine", "false alarms", "at most", "finds 10 %", "no verdict", "seconds a side", "in all"]
    align = ("left", "left", *["right"] * 6)
    return tabulate(rows, header, tablefmt="github", colalign=align, disable_numparse=True)


def _row(name: str, condition: str, trials: list[list[dict[str, Any]]]) -> list[str]:
    count = len(trials)
    again, slowed = ([verdict(processes, side) for processes in trials] for side in (AGAIN, SLOWED))
    alarms = sum(word in (FASTER, SLOWER) for word in again)
    unsure = " and ".join(f"{words.count(NOISY) / count:.0%}" for words in (again, slowed))
    seconds = [statistics.median(sum(p[key] for p in processes) for processes in trials) for key in ("seconds", "wall")]
    shares = [f"{alarms} of {count}", f"{upper_bound(alarms, count):.1%}", f"{slowed.count(SLOWER) / count:.0%}"]
    return [name, condition, *shares, unsure, *(f"{s:.2f}" for s in seconds)]


def write(text: str) -> None:
    """Put the study between the marks of the page."""
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else STUB
    before, opening, rest = page.partition(OPENING)
    _, closing, after = rest.partition(CLOSING)
    if not (opening and closing):
        sys.exit(f"{PAGE} has no {OPENING} … {CLOSING}")
    PAGE.write_text(f"{before}{opening}\n{text}\n{closing}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
