"""Runs the samples of torch's own tests, and prints as JSON which ops round. Their import freezes flags: a program.

An op moves numbers if float32 and float64 give the same result for the same float32 numbers.

    unlisted: ops that did so in every call, and of which the table does not say so; but for views made in place
    untrue: ops of which the table says so, and that rounded
    rounding: ops that rounded and have no row, which is what an op without a row is taken to do
    smooth: functions of one number with a kink of which the watch of kinks sees nothing
"""

import json
import random
import re
import sys
from collections import defaultdict
from functools import partial
from itertools import islice

import torch

from conformance.evaluate.custom_ops import OpMode, Unwatched, leaves_of, map_leaves
from conformance.evaluate.inputs import has_fractions
from conformance.perturb.kinks import KinkWatch
from conformance.perturb.ops import OPS, rule_of

SAMPLES, CALLS = 8, 6  # of each function, and of each op
ENOUGH = 12  # different numbers in the results of an op, of each call
STEP, BEND = 1e-3, 0.05  # between points, and a change of slope between them that is none of a smooth function
SINGLE = {torch.float64: torch.float32, torch.complex128: torch.complex64}
DOUBLE = {single: double for double, single in SINGLE.items()}


def single(leaf):
    """A number or tensor a little nearer to zero, with numbers that float32 holds: none is one or a half any more."""
    if isinstance(leaf, torch.Tensor):
        leaf = leaf.detach().clone()
        return leaf.mul_(1 - torch.rand(leaf.shape) / 4).to(SINGLE[leaf.dtype]) if leaf.dtype in SINGLE else leaf
    return torch.tensor(leaf * random.uniform(0.75, 1.0)).item() if isinstance(leaf, float) else leaf


def double(leaf):
    return leaf.to(DOUBLE.get(leaf.dtype, leaf.dtype), copy=True) if isinstance(leaf, torch.Tensor) else leaf


class Repeated(OpMode):
    """Repeats calls that compute from finite numbers in float32 and float64."""

    def __init__(self):
        super().__init__()
        self.rounded, self.sizes = defaultdict(list), defaultdict(int)
        self.moved, self.untrue = set(), set()  # the latter although the table says that they move

    def run_op(self, func, args, kwargs):
        with Unwatched(), torch.no_grad():
            fractions = [leaf for leaf in leaves_of((args, kwargs)) if has_fractions(leaf)]
            drawn = torch.Tag.nondeterministic_seeded in func.tags or re.search("empty|resize", func.name())
            finite = all(leaf.layout == torch.strided and leaf.isfinite().all() for leaf in fractions)
            if fractions and finite and not drawn and len(self.rounded[func]) < CALLS:
                self.repeat(func, *map_leaves(single, (args, kwargs)))
        return func(*args, **kwargs)

    def repeat(self, func, args, kwargs):
        wide, claimed = map_leaves(double, (args, kwargs)), rule_of(func, kwargs).moves(func, args, kwargs)
        try:
            pairs = list(zip(leaves_of(func(*args, **kwargs)), leaves_of(func(*wide[0], **wide[1])), strict=True))
        except (RuntimeError, TypeError, IndexError):  # no kernel for float32, or for a dtype that an argument names
            return
        tensors = [(a.to(b.dtype), b) for a, b in pairs if isinstance(a, torch.Tensor)]
        rounded = not all(bool(((a == b) | a.isnan() & b.isnan()).all()) for a, b in tensors)
        self.rounded[func].append(rounded)
        self.sizes[func] += sum(len(b.unique()) for _, b in tensors)
        self.moved |= {func} if claimed else set()
        self.untrue |= {func} if claimed and rounded else set()


def run(function, sample):
    """The function and its gradients, with cotangents of many digits."""
    given = (sample.input, sample.args, sample.kwargs)
    outputs = leaves_of(function(sample.input, *sample.args, **sample.kwargs))
    inputs, outputs = (
        [t for t in leaves if has_fractions(t) and t.requires_grad] for leaves in (leaves_of(given), outputs)
    )
    if outputs and inputs:
        torch.autograd.grad(outputs, inputs, [torch.randn_like(t) for t in outputs], allow_unused=True)


def bends(function):
    """Whether a function of one number has a kink or a jump, and none of its neighbours has one too: so no pole."""
    found = function(torch.arange(-4.0 + STEP / 3, 4.0, STEP, dtype=torch.float64))
    if not isinstance(found, torch.Tensor) or found.is_complex():
        return False
    smooth = found.to(torch.float64).diff(n=2).abs() / STEP < BEND
    return bool((smooth[:-6] & smooth[1:-5] & ~smooth[3:-3] & smooth[5:-1] & smooth[6:]).any())


def names(funcs):
    return {func.overloadpacket.__name__.rstrip("_") for func in funcs}


def main():
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415
    from torch.testing._internal.opinfo.core import UnaryUfuncInfo  # noqa: PLC0415

    random.seed(0)
    torch.manual_seed(0)
    mode, smooth = Repeated(), set()
    for info in op_db:
        if not {torch.float32, torch.float64} <= set(info.dtypes):
            continue
        samples = info.sample_inputs("cpu", torch.float64, requires_grad=info.supports_autograd)
        try:
            for sample in islice(samples, SAMPLES):
                with mode:
                    run(info.op, sample)
        except Exception:  # noqa: BLE001 -- a sample that needs a library, or has no gradient
            pass
        if isinstance(info, UnaryUfuncInfo) and info.supports_autograd:
            x = torch.linspace(-2.0, 2.0, 7, dtype=torch.float64, requires_grad=True)
            function = partial(info.op, **info.sample_kwargs("cpu", torch.float64, x)[0])
            with KinkWatch() as watch:
                function(x * 1.1)
            smooth |= {info.name} if not watch.kinked and bends(function) else set()
    rounding = {func for func, rounded in mode.rounded.items() if any(rounded)}
    listed = {func for func in mode.rounded if torch.Tag.inplace_view in func.tags} | mode.moved
    unlisted = {func for func in mode.rounded if func not in listed | rounding and mode.sizes[func] >= ENOUGH}
    found = {"unlisted": names(unlisted) - names(rounding), "untrue": names(mode.untrue)}
    found |= {"rounding": names(rounding) - set(OPS), "smooth": smooth}
    sys.stdout.write(json.dumps({kind: sorted(ops) for kind, ops in found.items()}))


if __name__ == "__main__":
    main()
