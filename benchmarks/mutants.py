"""Breaks the gates in one place at a time, and says which breaks their own tests do not notice.

    python -m benchmarks.mutants [--jobs 2] [PART OF A NAME …]

A mutant turns one comparison of `conformance/gates` round, or that of a measure with its budget, or doubles or halves a
named constant. It is noticed if a test of `tests/conformance/gates` fails, those of `SLOW` left out. A survivor must
stand in `SURVIVORS` with a reason; any other ends the script with exit code 1, as does a row whose mutant is noticed by
now. Each mutant has a process of its own. All take five minutes of a processor's time.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib.util
import io
import multiprocessing
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
FILES = (
    *sorted((ROOT / "conformance" / "gates").glob("[!_]*.py")),
    ROOT / "conformance" / "records" / "cell.py",
)
TESTS = ROOT / "tests" / "conformance" / "gates"
SLOW = TESTS / "test_certainty.py"  # what is foreseen of canaries; it takes longer than all others together
ROUND = {ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt}
CHANGES = {"doubled": 2.0, "halved": 0.5}
FORESEEN = "whether a canary is foreseen or has to be made: the answer is the same, which `SLOW` tests"
SURVIVORS = {  # by the name of a mutant, why no test can notice it, or need not
    **dict.fromkeys(
        (f"budget: SMOOTH_NOISE = 2.0 {change}" for change in CHANGES),
        "only `oracle/reference.py` reads it; `python -m benchmarks.calibrate` shows the false alarms and the power",
    ),
    **dict.fromkeys((f"distance: BLOCK = 2 ** 16 {change}" for change in CHANGES), "only how much is done at once"),
    "distance: 0.0 < rms < math.inf turned round at 1": "an rms is infinite only if float64 overflows",
    **dict.fromkeys(
        (f"budget: sums.{sums}.abs() <= allowed.{sums} turned round" for sums in ("gain", "shift")),
        "sums within their budget are looked at without the farthest draw too, which only makes them smaller",
    ),
    **dict.fromkeys(
        (
            "compare: SURE = 1.0 + 1e-09 doubled",
            "compare: FAR = 2.0 doubled",
            "compare: FAR = 2.0 halved",
            "compare: _most_of_a_sort(flat) > most turned round",
            "compare: square > enough * enough turned round",
            "compare: most.gain > LOST turned round",
            "compare: oracle.norm < limits.max / ROUNDINGS turned round",
        ),
        FORESEEN,
    ),
    **dict.fromkeys(
        (f"compare: {constant} {change}" for constant in ("ROUNDINGS = 8.0", "LOST = 0.5") for change in CHANGES),
        FORESEEN,
    ),
}


@dataclass(frozen=True)
class Mutant:
    """One break: its name, and the module's name and source."""

    name: str
    module: str
    source: str


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every mutant of a file; its name is the file's, and the comparison or the constant, with the change."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for number, node in enumerate(ast.walk(tree)):
        for change, broken in _broken(node):
            changed = copy.deepcopy(tree)
            vars(list(ast.walk(changed))[number]).update(vars(broken))
            yield Mutant(f"{path.stem}: {ast.unparse(node)} {change}", module, ast.unparse(changed))


def _broken(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What a node may become, each with a word for the change."""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            if type(operator) in ROUND:
                turned = copy.deepcopy(node)
                turned.ops[place] = ROUND[type(operator)]()
                yield f"turned round{f' at {place}' if place else ''}", turned
    named = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper()
    if named and isinstance(node, ast.Assign) and _is_number(node.value):
        for change, factor in CHANGES.items():
            scaled = copy.deepcopy(node)
            scaled.value = (
                ast.parse(f"type({ast.unparse(node.value)})(({ast.unparse(node.value)}) * {factor})").body[0].value
            )
            yield change, scaled


def _is_number(value: ast.expr) -> bool:
    return isinstance(value, (ast.Constant, ast.BinOp)) and not isinstance(getattr(value, "value", 0), (str, bytes))


def is_noticed(mutant: Mutant) -> bool:
    """Whether a test fails with a mutant in the place of its module; this process is of no use afterwards."""
    found = importlib.util.find_spec(mutant.module)
    assert found is not None
    module = sys.modules[mutant.module] = importlib.util.module_from_spec(found)
    package, _, name = mutant.module.rpartition(".")
    setattr(sys.modules[package], name, module)
    files = sorted(set(TESTS.glob("test_*.py")) - {SLOW}, key=lambda file: (file.stem != f"test_{name}", file.name))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            exec(compile(mutant.source, str(found.origin), "exec"), vars(module))  # noqa: S102 -- this is the point
        except Exception:  # noqa: BLE001 -- a module that does not even load is noticed
            return True
        options = ("-x", "-q", "--assert=plain", "-p", "no:cacheprovider", f"--rootdir={ROOT}")
        return pytest.main([*options, *map(str, files)]) != 0


def main() -> int:
    """Try the mutants; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    every = [mutant for path in FILES for mutant in mutants_of(path)]
    chosen = [m for m in every if not given.parts or any(part in m.name for part in given.parts)]
    wrong = 0
    with multiprocessing.get_context("fork").Pool(given.jobs, maxtasksperchild=1) as pool:
        for mutant, noticed in zip(chosen, pool.imap(is_noticed, chosen), strict=True):
            reason = SURVIVORS.get(mutant.name, "")
            wrong += noticed == bool(reason)
            print(f"{'noticed ' if noticed else 'survives'}  {mutant.name}  {reason}".rstrip(), flush=True)
    print(f"{len(chosen)} mutants, {wrong} not as listed")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
