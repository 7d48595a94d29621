"""The table of ops says of each what torch does: which ops move numbers, and where those with a kink bend or jump."""

import json
import os
import subprocess
import sys

import pytest
import torch
from harness.sources import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from conformance.perturb.ops import OPS, ROWS, always, rule_of
from conformance.torch_versions import DEFAULT

BY_CHANCE = {  # ops that round, but nothing in the samples
    "_histogramdd_bin_edges": "the edges are whole numbers, halves and quarters",
    "adaptive_max_pool3d_backward": "no windows overlap, so it adds nothing up",
    "histogram": "the edges are whole numbers, halves and quarters",
    "max_pool2d_with_indices_backward": "no windows overlap, so it adds nothing up",
    "softshrink": "it subtracts a half",
}
# exact; but of an operand that a fused kernel has not rounded, others digits
CANCELS = {"floor_divide", "fmod", "frac"}
SMOOTH = {
    "bfloat16": "a cast: every precision rounds here anyway",
    "half": "a cast: every precision rounds here anyway",
    "sgn": "the gradient of abs, whose kink is seen",
    "nn.functional.softplus": "with the threshold 0.2 of its sample; with 20 it jumps by 2e-9",
}


def test_an_op_has_one_row():
    backwards = sum(bool(rule.kernel) for rule in OPS.values()) // 2
    assert sum(len(names.split()) for names, _ in ROWS) + backwards == len(OPS)


@pytest.mark.skipif(Version(torch.__version__) < Version(DEFAULT), reason="older versions lack some ops")
def test_the_ops_of_the_table_are_torchs():
    assert [name for name in OPS if not hasattr(torch.ops.aten, name) and not hasattr(torch.ops.aten, f"{name}_")] == []


def overloads():
    """Every overload of every ATen op."""
    names = (name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    for name in sorted(names):
        packet, _, overload = name.partition(".")
        if hasattr(torch.ops.aten, packet):
            yield getattr(getattr(torch.ops.aten, packet), overload or "default")


def test_views_and_copies_of_views_move_numbers():
    views = [op for op in overloads() if op.is_view or torch.Tag.view_copy in op.tags]
    assert len(views) > 100
    assert [op for op in views if rule_of(op, {}).moves is not always] == []


@pytest.mark.slow
def test_ops_that_move_numbers_have_a_row_that_says_so_and_no_others():
    pytest.importorskip("expecttest")  # which torch's own tests import
    program = ROOT / "tests" / "harness" / "op_samples.py"
    command = [sys.executable, "-W", "ignore", program]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, stdout=subprocess.PIPE)
    found = json.loads(done.stdout)
    without_row = ", ".join(found["rounding"])
    print(f"ops of the samples that round and have no row, which says as much: {without_row}")  # noqa: T201 -- to read
    assert len(found["rounding"]) > 100
    assert set(found["untrue"]) == set()
    described = {name for name, rule in OPS.items() if rule.tabulates or rule.picks}
    assert set(found["unlisted"]) - described <= {*BY_CHANCE, *CANCELS}
    assert set(found["smooth"]) <= set(SMOOTH)


# Kinks against a search for them: where the slope of a function of one number changes at once.

STEP = 1 / 512
CURVED, KINKED = 0.03, 0.05  # changes of slope between neighbours: at most, at least
POINTS = torch.arange(-4.0, 4.0, STEP, dtype=torch.float64) + 1e-4
slopes, limits = st.floats(-0.75, 0.75), st.floats(-3.0, 3.0)
intervals = st.tuples(limits, limits).map(sorted).filter(lambda ends: ends[1] - ends[0] > 4 * STEP)
scales = st.sampled_from([0.5, 1.0, 2.0])
ARGUMENTS = {
    **dict.fromkeys("abs angle ceil floor frac hardsigmoid hardswish relu sign special_i0e trunc".split(), st.just(())),
    **dict.fromkeys(("clamp", "hardtanh"), intervals),
    **dict.fromkeys(("clamp_max", "clamp_min", "fmax", "fmin", "maximum", "minimum"), st.tuples(limits)),
    **dict.fromkeys(("hardshrink", "softshrink"), st.tuples(st.floats(0.1, 3.0))),
    **dict.fromkeys(("leaky_relu", "_prelu_kernel"), st.tuples(slopes)),
    "elu": st.tuples(scales, st.just(1.0), scales),
    "rrelu_with_noise": st.tuples(st.just(torch.zeros_like(POINTS)), slopes, slopes, st.just(False)),
    "round": st.just(()),
    "threshold": st.tuples(limits, limits),
    "grid_sampler_2d": st.booleans(),
}
TENSORS = ("_prelu_kernel", "fmax", "fmin", "maximum", "minimum")  # of which the other operand is a tensor
IMAGE = torch.tensor([1.0, -1.0, 2.0, -2.0, 1.0, -1.0], dtype=torch.float64).expand(1, 1, 3, 6)


def test_every_kink_is_searched_for():
    listed = {name for name, rule in OPS.items() if rule.gaps or rule.jump}
    assert listed - {"grid_sampler_3d"} == set(ARGUMENTS)


@pytest.mark.parametrize("name", ARGUMENTS)
@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_the_gaps_change_their_sign_where_the_op_bends_and_nowhere_else(name, data):
    drawn, points, rule = data.draw(ARGUMENTS[name]), POINTS, OPS[name]
    if name == "grid_sampler_2d":
        points = POINTS[POINTS.abs() < 0.99]
        grid = torch.stack([points, torch.full_like(points, 0.1)], -1).view(1, 1, -1, 2)
        args = (IMAGE, grid, 0, 0, drawn)
    else:
        args = (points, *(torch.full_like(points, x) if name in TENSORS else x for x in drawn))
    values = getattr(torch.ops.aten, name)(*args).flatten()
    gaps = [rule.jump(*args)] if rule.jump else rule.gaps(*args)
    gaps = [gap[..., 0].flatten() if name == "grid_sampler_2d" else gap for gap in gaps]
    claimed = torch.zeros(len(points) - 1, dtype=torch.bool)
    for gap in gaps:
        claimed |= gap[1:].sign() != gap[:-1].sign()
    bends = values.diff(n=2).abs() / STEP
    beside = claimed[1:] | claimed[:-1]
    assert float(bends[~beside].max()) < CURVED
    if name in ("frac", "trunc"):  # between -1 and 1 they do not jump, but the watch takes zero for a border as well
        claimed &= points[1:].abs() > STEP
    inside = claimed[1:-1]
    assert bool((torch.maximum(bends[1:], bends[:-1])[inside] > KINKED).all())
