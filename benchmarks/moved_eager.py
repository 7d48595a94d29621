"""Asks whether runs of eager on moved operands could set budgets, in place of what imitates its kernels.

    python -m benchmarks.moved_eager [SOURCE …]

The perturbed runs imitate what kernels do inside. Here one imitation is off for a correct model, and all are for wrong
kernels and for sources such as timm:test_vit3. Columns: the largest error over budget of the first draw with all; with
those that are left, which a cap has to allow or refuse; with budgets that 8 runs of eager have widened since, on
operands moved by one unit in the last place. Then the CPU seconds of both references and of these runs.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from tabulate import tabulate
from torch import Tensor, nn

from conformance.axes import PRECISIONS, Precision
from conformance.evaluate import evaluation, inputs, weights
from conformance.evaluate.evaluation import question_of
from conformance.float64 import replacements, wide
from conformance.gates.budget import criteria_for
from conformance.gates.compare import measures_of
from conformance.gates.distance import farthest
from conformance.oracle import reference
from conformance.perturb import rounding
from conformance.plan import find
from zoo import Case, Spec

SOURCES = ("attention_fused", "conv_bn", "tests/specs/correct_models/low_precisions.py")
OFF: dict[str, Callable[[], Any]] = {
    "attention": lambda: mock.patch.dict(wide.FORMULAS, {replacements.FUNCTION: replacements.FUNCTION}),
    "resampling": lambda: mock.patch.multiple(rounding, RESAMPLERS=frozenset(), GRIDS={}),
    "partial sums": lambda: mock.patch.multiple(rounding, OF_ROWS=frozenset(), IN_PLACES={}),
    "terms": lambda: mock.patch.object(rounding, "terms", return_value=1),
    "underflow": lambda: mock.patch.object(rounding.Rounding, "_underflown", new=lambda _, tensor: tensor),
}
NEEDED = "attention attention_fused amp_bf16,terms conv_bn fp32,underflow faint_bias amp_fp16"
FP32, FP16, BF16 = (PRECISIONS[name] for name in ("fp32", "amp_fp16", "amp_bf16"))


@dataclass(frozen=True)
class Trial:
    """A model at a precision, the mode that `wrap` makes of it, and a kernel that is wrong in it."""

    spec: Spec
    precision: Precision
    wrap: Callable[[Any], Any] = lambda model: model
    fault: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext

    def reference(self, *off: str) -> Any:
        """The reference of the first case with some imitations switched off, and the seconds that it takes."""
        started, precisions = time.process_time(), [FP32, self.precision]
        with contextlib.ExitStack() as stack:
            for name in off:
                stack.enter_context(OFF[name]())
            (known,) = reference.make_for_timing(self.spec, 0, precisions).values()
        return known, time.process_time() - started

    def run(self, known: Any, moved: int = 0) -> dict[str, Tensor]:
        """What a mode computes; with a seed, what eager does on moved operands."""
        generator, cotangent = torch.Generator().manual_seed(moved), inputs.cotangent
        model = wide.prepared_model(self.spec, 0)

        def move(tensor: Tensor) -> Tensor:
            if not moved or not tensor.is_floating_point():
                return tensor
            sign = torch.randint(2, tensor.shape, generator=generator) * 2 - 1
            return (tensor.double() * (1 + 2 * self.precision.unit * sign)).to(tensor.dtype)

        weights.reset(model, {name: move(tensor) for name, tensor in weights.state_of(model).items()})
        asked = question_of(self.spec, self.spec.cases[0], 0, known.picks, partial(inputs.place, convert=move), model)
        asked = replace(asked, precision=self.precision, scale=known.scale if self.precision.is_scaled else 1.0)
        with mock.patch.object(inputs, "cotangent", new=lambda *args: move(cotangent(*args))), self.fault():
            found = evaluation.evaluate(model if moved else self.wrap(model), model, asked).tensors
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def largest(self, known: Any, run: dict[str, Tensor], runs: Sequence[dict[str, Tensor]] = ()) -> float:
        """The largest error of a run over budgets that some runs widen."""
        worst, low = 0.0, self.precision.name
        for name, tensor in run.items():
            if of := known.tensors.get(name):
                far = [of.oracle.distance(moved[name]) for moved in runs if of.oracle.is_rounded]
                of = replace(of, spread={**of.spread, low: farthest([of.spread[low], *far])})
                held = criteria_for("", name, of, self.precision, dtype="", baseline=None, accurate=False, bitwise=True)
                worst = max(worst, *(measure.margin for measure in measures_of(tensor, held)))
        return worst

    def row(self, *off: str) -> list[Any]:
        """The columns."""
        (full, of_full), (left, of_left), started = self.reference(), self.reference(*off), time.process_time()
        runs, spent, run = [self.run(left, 1 + n) for n in range(8)], time.process_time(), self.run(left)
        found = self.largest(full, self.run(full)), self.largest(left, run), self.largest(left, run, runs)
        return [self.precision.name, *found, of_full, of_left, spent - started]


def narrow_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear layer whose partial sums are rounded to bfloat16."""
    total = bias.bfloat16()
    for k in range(weight.shape[1]):
        total = (total + x[:, k, None] * weight[:, k]).bfloat16()
    return total.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else total.float()


def made(build: Callable[[], Any], *shape: int) -> Spec:
    """The spec of a model with one normal input."""
    case = Case(name="typical", inputs=lambda g: (torch.randn(*shape, generator=g),))
    return Spec(name="made", summary="made", source="this study", build=build, cases=(case,))


def study() -> Iterator[list[Any]]:
    """The rows of correct models, then of wrong kernels; layer norm has both."""
    specs = {spec.name: spec for spec, _ in find.find(SOURCES)[0]}
    for off, name, precision in map(str.split, NEEDED.split(",")):
        yield [f"{off} {name}", *Trial(specs[name], PRECISIONS[precision]).row(off.replace("-", " "))]
    yield ["terms conv_bn, compiled", *Trial(specs["conv_bn"], FP32, torch.compile).row("terms")]
    for width in (100, 1600):
        spec = made(partial(nn.Upsample, (64, width * 5 // 2 + 7), None, "bilinear"), 1, 1, 33, width)
        yield [f"resampling of a width of {width}", *Trial(spec, FP32).row("resampling")]
    for rows in (128, 512, 2048, 8192):
        spec = replace(specs["pooled_norm"], cases=made(nn.Identity, 2, rows // 2, 32).cases)
        yield from ([f"layer norm, {rows} rows", *Trial(spec, low).row(*OFF)] for low in (FP16, BF16))
    wrong = partial(mock.patch.object, nn.functional, "linear", new=narrow_linear)
    for low, terms in ((FP32, 64), (BF16, 256), (BF16, 1024)):
        spec = made(partial(nn.Linear, terms, 8), 16, terms)
        yield [f"sums of {terms} in bfloat16", *Trial(spec, low, fault=wrong).row(*OFF)]
    wrong = partial(mock.patch.object, nn.functional, "conv2d", new=lambda *args: torch.conv2d(*args).roll(1))
    yield ["as AMX", *Trial(made(partial(nn.Conv2d, 8, 8, 3), 8, 8, 10, 10), BF16, fault=wrong).row(*OFF)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", help="models, as for `conformance run` (default: those of the study)")
    torch.set_num_threads(1)
    specs = find.find(sources)[0] if (sources := parser.parse_args().sources) else []
    rows = [[spec.name, *Trial(spec, low).row(*OFF)] for spec, _ in specs for low in (FP16, BF16)] or list(study())
    print(tabulate(rows, ["", "", "with", "without", "moved", "seconds", "", ""], tablefmt="github", floatfmt=".2f"))


if __name__ == "__main__":
    main()
