"""Tests the budgets of tf32 without a GPU: the zoo on a simulated device that rounds or cuts the operands of products.

    python -m benchmarks.tf32_device --seeds 2 [MODEL …]

Every model is judged in eager mode at tf32, which must pass, and at fp32 on the same device. The latter shows which
models notice that their float32 products are TF32 in fact.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from conformance.cell.observe import make_reference, observation_of
from conformance.cell.policy import set_policy
from conformance.cell.session import CellSession
from conformance.evaluate.error_text import one_line
from conformance.oracle import reference_file
from conformance.oracle.reference_file import CaseReference
from conformance.perturb.ops import rule_of
from conformance.plan.find import find
from conformance.process.child_side import ChildProcess
from conformance.records.cell import Cell, Observation, Verdict
from conformance.records.plan import SpecLocation
from conformance.records.tasks import ReferenceTask
from conformance.verdict import judge
from zoo import internals
from zoo.spec import Spec

DROPPED = 13  # bits of a float32 that TF32 does not have
Rounded = Callable[[torch.Tensor], torch.Tensor]


def nearest(x: torch.Tensor) -> torch.Tensor:
    """Round finite float32 numbers to the nearest number of TF32, ties to even."""
    bits = x.contiguous().view(torch.int32)
    half = (1 << (DROPPED - 1)) - 1 + ((bits >> DROPPED) & 1)
    return ((bits + half) & -(1 << DROPPED)).view(torch.float32)


def cut(x: torch.Tensor, dropped: int = DROPPED) -> torch.Tensor:
    """Cut off the last bits, so round towards zero."""
    return (x.contiguous().view(torch.int32) & -(1 << dropped)).view(torch.float32)


KINDS: dict[str, tuple[str, Rounded]] = {  # precision of the cell, and what the device does
    "tf32, rounded": ("tf32", nearest),
    "tf32, cut": ("tf32", cut),
    "fp32, rounded": ("fp32", nearest),
}


class Operands(internals.TorchDispatchMode):
    """A device that rounds float32 operands of matrix products and convolutions.

    Args:
        rounded: how it rounds.
    """

    def __init__(self, rounded: Rounded) -> None:
        super().__init__()
        self._rounded = rounded

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run an operator on rounded operands."""
        multiplied = rule_of(func, {}).products
        args = tuple(
            self._rounded(x) if i in multiplied and x.dtype == torch.float32 else x for i, x in enumerate(args)
        )
        return func(*args, **(kwargs or {}))


def verdict(spec: Spec, known: dict[str, CaseReference], precision: str, rounded: Rounded, seed: int = 0) -> Verdict:
    """The verdict on an eager cell whose calls, and nothing else, run on a device that rounds operands."""
    cell = Cell(spec.name, "eager", precision, "cpu")
    session = CellSession(spec, cell, seed, references=known, around_calls=partial(Operands, rounded))
    declared = [e for e in spec.expectations if e.concerns("eager", precision, "cpu", torch.__version__)]
    try:
        seen = observation_of(session)
    except RuntimeError as problem:
        seen = Observation("raised", "call", type(problem).__name__, one_line(problem))
    return judge(cell.id, seen, declared)


def references(spec: Spec, location: SpecLocation, seed: int) -> dict[str, CaseReference] | None:
    """What is known of the cases of a model; None if it has no oracle."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "reference")
        task = ReferenceTask(spec.name, location, seed, ("fp32", "tf32"), str(path))
        if make_reference(task, ChildProcess()).ending != "ok":
            return None
        return reference_file.load(path)


def main() -> None:
    """Judge, and print each verdict and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="as for `conformance run` (default: the whole zoo)")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds (default: 1)")
    options = parser.parse_args()
    set_policy()
    found: dict[str, list[Verdict]] = {kind: [] for kind in KINDS}
    for seed in range(options.seeds):
        for spec, location in find(options.models)[0]:
            known = references(spec, location, seed)
            if known is None:
                continue  # a counterexample without an oracle
            for kind, (precision, rounded) in KINDS.items():
                seen = verdict(spec, known, precision, rounded, seed)
                found[kind].append(seen)
                print(f"seed {seed}  {spec.name:<30} {kind:<14} {seen.status} {seen.margin or 0:.2f}")
    _print_counts(found)


def _print_counts(found: Mapping[str, list[Verdict]]) -> None:
    for kind, verdicts in found.items():
        green = [v for v in verdicts if not v.red]
        worst = max((v.margin or 0 for v in green if v.status == "PASS"), default=0)
        counts = f"{len(verdicts)} cells, {len(verdicts) - len(green)} red"
        print(f"{kind}: {counts}, largest margin of the cells that pass {worst:.2f}")


if __name__ == "__main__":
    main()
