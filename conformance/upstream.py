"""Runs the probes of known torch faults, each in a fresh process, and says which of them this torch has.

A fault that is declared and shows is EXPECTED; one that shows undeclared, or no longer shows, is red. The
probes live in the zoo and are read and run by children: this process never imports torch.
"""

from __future__ import annotations

import difflib
import importlib
import os
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tabulate

from conformance import isolation
from conformance.axes import UsageError
from conformance.records import STATUSES
from conformance.table import visible

PACKAGE = "zoo.probes"
READING_DEADLINE = 300.0
HEADERS = ["probe", "at risk", "what is seen", "issue or source", "shows in", "run on"]
INTRODUCTION = """# Probes

Faults of torch that users of scripted, compiled or mixed-precision models meet, each shown by a few lines of
plain torch. `conformance probes` looks for all of them in the installed torch, `conformance probes NAME` for
one. The top of each file says what a user sees and what to do instead.

"Shows in" states what was seen on the versions under "run on". Those between them and after the last were not
run; an open range says that the last one run has the fault.
"""


@dataclass(frozen=True)
class Finding:
    """What came of a probe.

    Attributes:
        probe: its name.
        status: a key of `STATUSES`: EXPECTED, PASS, STALE, FAIL, ERROR, CRASH, TIMEOUT or UNSUPPORTED.
        seen: the symptom, an error, how the process died; "" where torch did right.
        issue: the link, or the source where there is none.
    """

    probe: str
    status: str
    seen: str
    issue: str

    @property
    def red(self) -> bool:
        return STATUSES[self.status].red


def main(names: list[str], *, timeout: float) -> int:
    """Run the probes of those names, or all, and print a table; 1 if any verdict is red, else 0.

    Args:
        names: of probes; empty for all.
        timeout: seconds a probe may take.

    Raises:
        UsageError: no probe has that name, or the probes cannot be read.
    """
    os.environ["CONFORMANCE_PRELOAD"] = "compiler"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of compilers beside each probe
    findings = run(names, timeout)
    rows = [[f"{STATUSES[f.status].glyph} {f.probe}", f.status, visible(f.seen), visible(f.issue)] for f in findings]
    table = tabulate.tabulate(rows, headers=["probe", "verdict", "seen", "issue"], disable_numparse=True)
    print(table)  # noqa: T201 -- this is the interface
    return int(any(finding.red for finding in findings))


def run(names: list[str], timeout: float) -> list[Finding]:
    """Run the probes of those names, or all, one after the other, each in a process and compile cache of its own.

    Raises:
        UsageError: no probe has that name, or the probes cannot be read.
    """
    known = {probe["name"]: probe for probe in _read()}
    for name in names:
        if name not in known:
            near = ", ".join(difflib.get_close_matches(name, known, n=3))
            hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}"
            raise UsageError(f"no probe named {name!r}; {hint}")
    return [judge_probe(known[name], _look(name, timeout)) for name in names or known]


def judge_probe(probe: dict[str, Any], ending: isolation.Ending) -> Finding:
    """Hold what a probe saw against what is declared for this torch.

    Args:
        probe: as `describe` returns it.
        ending: of the process that ran `observe`.
    """
    kind, seen = next(iter(ending.answer.items())) if ending.kind == "answered" else (ending.kind, ending.message)
    if seen == probe["symptom"] and kind in ("saw", "crashed"):
        status = "EXPECTED" if probe["declared"] else "FAIL"
    elif kind == "saw" and not seen:
        status = "STALE" if probe["declared"] else "PASS"
    else:
        status = {
            "saw": "FAIL",
            "raised": "ERROR",
            "unavailable": "UNSUPPORTED",
            "crashed": "CRASH",
            "timed out": "TIMEOUT",
        }[kind]
    if STATUSES[status].red:
        seen = f"{seen or 'not seen'}; declared for this torch: {probe['symptom'] if probe['declared'] else 'nothing'}"
    return Finding(probe["name"], status, seen, probe["issue"] or probe["source"])


def markdown() -> str:
    """The page docs/probes.md, from the declarations alone: nothing is run."""
    rows = [HEADERS, ["---"] * len(HEADERS)]
    for probe in _read():
        number = probe["issue"].rpartition("/")[2]
        rows.append(
            [
                f"[{probe['name']}](../{PACKAGE.replace('.', '/')}/{probe['name']}.py)",
                probe["summary"],
                probe["symptom"],
                f"[pytorch#{number}]({probe['issue']})" if number else probe["source"],
                f"`{probe['torch']}`",
                ", ".join(probe["checked"]),
            ]
        )
    return INTRODUCTION + "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _read() -> list[dict[str, Any]]:
    target, task = f"{__name__}:describe", {"package": PACKAGE}
    try:
        ending = isolation.run(target, task, deadline=READING_DEADLINE)
    except EOFError:  # it imports torch and the zoo before all else, and prints why it could not
        raise UsageError("the fork server does not start; the reason stands above") from None
    if ending.kind != "answered":
        raise UsageError(f"reading the probes of {PACKAGE}: {ending.message}")
    probes: list[dict[str, Any]] = ending.answer
    return probes


def _look(name: str, timeout: float) -> isolation.Ending:
    with tempfile.TemporaryDirectory(prefix="conformance-probe-", ignore_cleanup_errors=True) as cache:
        task = {"home": f"{PACKAGE}.{name}", "cache": cache}
        return isolation.run(f"{__name__}:observe", task, deadline=timeout)


def describe(task: dict[str, Any], enter_phase: Callable[[str], None]) -> list[dict[str, Any]]:
    """Child process: the probes of task["package"] as data; "declared" says whether this torch should show it."""
    import torch  # noqa: PLC0415 -- in the child alone

    from zoo.probe import find  # noqa: PLC0415

    enter_phase("read")
    texts = ("name", "summary", "issue", "source", "symptom", "torch", "checked")
    return [
        {**{key: getattr(probe, key) for key in texts}, "declared": probe.shows_in(torch.__version__)}
        for probe in find(task["package"])
    ]


def observe(task: dict[str, Any], enter_phase: Callable[[str], None]) -> dict[str, str]:
    """Child process: run the probe of task["home"] with an empty compile cache in the folder task["cache"].

    Returns: one item: {"saw": text}, {"raised": text} or {"unavailable": reason}.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = task["cache"]
    import torch  # noqa: PLC0415 -- in the child alone

    from conformance.failures import one_line  # noqa: PLC0415
    from zoo.probe import Unavailable  # noqa: PLC0415

    warnings.simplefilter("ignore")  # deprecations are no faults
    torch.set_num_threads(1)
    probe = importlib.import_module(task["home"]).PROBE
    enter_phase("observe")
    try:
        seen = probe.observe()
    except Unavailable as reason:
        return {"unavailable": str(reason)}
    except Exception as problem:  # noqa: BLE001 -- a probe may raise anything
        return {"raised": f"{type(problem).__name__}: {one_line(problem)}"}
    return {"saw": seen} if isinstance(seen, str) else {"raised": f"TypeError: observe returned {seen!r}"}
