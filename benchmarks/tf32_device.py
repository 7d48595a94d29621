"""The budgets of tf32, tried without a GPU: the zoo on a device that rounds the operands of products, or cuts them.

    python benchmarks/tf32_device.py --seeds 2

Every model is judged in eager at tf32, which must be green, and at fp32 on the same device, which shows where TF32 in
disguise is noticed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from conformance.oracle import reference_file
from conformance.cell.observe import Phases, Run, set_policy
from conformance.oracle.error_text import one_line
from conformance.verdict import judge
from conformance.oracle.rounding import PRODUCTS
from conformance.records import Cell, Observation, Verdict
from conformance.oracle.reference_file import CaseReference
from conformance.plan.find import find
from zoo.spec import Spec

DROPPED = 13  # bits of a float32 that TF32 has not
Rounded = Callable[[torch.Tensor], torch.Tensor]


def nearest(x: torch.Tensor) -> torch.Tensor:
    """To the nearest number of TF32, ties to even; for finite float32."""
    bits = x.contiguous().view(torch.int32)
    half = (1 << (DROPPED - 1)) - 1 + ((bits >> DROPPED) & 1)
    return ((bits + half) & -(1 << DROPPED)).view(torch.float32)


def cut(x: torch.Tensor, dropped: int = DROPPED) -> torch.Tensor:
    """Without the last bits, so towards zero."""
    return (x.contiguous().view(torch.int32) & -(1 << dropped)).view(torch.float32)


class Operands(TorchDispatchMode):
    """A device that rounds float32 operands of matrix products and convolutions."""

    def __init__(self, rounded: Rounded) -> None:
        super().__init__()
        self._rounded = rounded

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        multiplied = PRODUCTS.get(func.overloadpacket.__name__, ())
        args = tuple(
            self._rounded(x) if i in multiplied and x.dtype == torch.float32 else x for i, x in enumerate(args)
        )
        return func(*args, **(kwargs or {}))


class OnDevice(Run):
    """A cell whose calls, and nothing else, run on such a device."""

    rounded: Rounded = staticmethod(nearest)

    def _answers(self, *asked: Any) -> Any:
        with Operands(self.rounded):
            return super()._answers(*asked)


def verdict(spec: Spec, known: dict[str, CaseReference], precision: str, rounded: Rounded, seed: int = 0) -> Verdict:
    """Of an eager cell on a device that rounds operands."""
    run = OnDevice(spec, Cell(spec.name, "eager", precision, "cpu"), seed, Phases(lambda _: None))
    run.rounded = rounded
    expect = [vars(e) for e in spec.expectations if e.concerns("eager", precision, "cpu", torch.__version__)]
    try:
        seen = run.observe(known)
    except RuntimeError as problem:
        seen = Observation("raised", "call", type(problem).__name__, one_line(problem))
    return judge(run.cell.id, seen, expect)


def main() -> None:
    """Judge and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="as for `conformance run` (default: the whole zoo)")
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    set_policy()
    found: dict[str, list[Verdict]] = {"tf32, rounded": [], "tf32, cut": [], "fp32, rounded": []}
    for seed in range(options.seeds):
        for spec, home in find(options.models)[0]:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "reference")
                task = {"model": spec.name, "home": vars(home), "seed": seed, "path": str(path)}
                made = reference_file.make({**task, "precisions": ["fp32", "tf32"]}, lambda _: None)
                if made["ending"] != "ok":
                    continue  # a counterexample without an oracle
                known = reference_file.load(path)
            for kind, verdicts in found.items():
                verdicts.append(verdict(spec, known, kind[:4], cut if kind.endswith("cut") else nearest, seed))
                print(f"seed {seed}  {spec.name:<30} {kind:<14} {verdicts[-1].status} {verdicts[-1].margin or 0:.2f}")
    for kind, verdicts in found.items():
        green = [v for v in verdicts if not v.red]
        worst = max((v.margin or 0 for v in green if v.status == "PASS"), default=0)
        print(
            f"{kind}: {len(verdicts)} cells, {len(verdicts) - len(green)} red, margin of the green at most {worst:.2f}"
        )


if __name__ == "__main__":
    main()
