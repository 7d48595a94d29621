"""What a tensor may stray, from how far the probes did: which damage each budget lets pass and which not."""

import math

import pytest
import torch

from conformance.gates import budget
from conformance.axes import PRECISIONS
from conformance.gates.budget import Bounds, allowance
from conformance.gates.distance import Yardstick, farthest

FP32, FP16, BF16 = (PRECISIONS[name] for name in ("fp32", "amp_fp16", "amp_bf16"))


def bounds_of(oracle, noise=4.0, *, kinked=False, scale=1.0):
    """Bounds as eight probes leave them whose every element strays by up to `noise` roundoffs."""
    generator = torch.Generator().manual_seed(0)
    stick = Yardstick(oracle)
    spread = {}
    for name, precision in PRECISIONS.items():
        xi = [torch.rand(oracle.shape, generator=generator, dtype=torch.float64) * 2 - 1 for _ in range(8)]
        spread[name] = farthest(stick.distance(oracle * (1 + noise * precision.unit * x)) for x in xi)
    return Bounds(stick, spread, exact=False, settled={}, kinked=kinked, scale=scale)


def refusing(y, bounds, precision, baseline=None):
    """The gates that say no."""
    beside = None if baseline is None else bounds.yardstick.distance(baseline)
    allowed = allowance(bounds, precision, beside)
    return {m.gate for m in budget.measures(bounds.yardstick.distance(y), bounds.yardstick, allowed) if not m.met}


@pytest.fixture
def oracle():
    return torch.randn(32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(("precision", "dtype"), [(FP32, torch.float32), (FP16, torch.half), (BF16, torch.bfloat16)])
def test_rounding_once_passes_with_room(oracle, precision, dtype):
    bounds = bounds_of(oracle)
    allowed = allowance(bounds, precision, None)
    far = bounds.yardstick.distance(oracle.to(dtype))
    assert max(m.margin for m in budget.measures(far, bounds.yardstick, allowed)) < 0.5


@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=PRECISIONS)
@pytest.mark.parametrize(
    "damage",
    [
        torch.zeros_like,
        torch.neg,
        lambda y: 1.25 * y,
        lambda y: y.roll(1, 0),
        lambda y: y.t(),
        lambda y: y + y.std(),
        lambda y: y.index_fill(0, torch.tensor(3), 0.0),
        lambda y: y.index_fill(1, torch.tensor(0), 0.0),
    ],
)
def test_gross_damage_passes_at_no_precision(oracle, damage, precision):
    assert refusing(damage(oracle), bounds_of(oracle), precision)


def test_a_factor_of_two_roundoffs_is_seen_by_gain_alone(oracle):
    assert refusing(oracle * (1 + 5.0 * FP32.unit), bounds_of(oracle, 1.0), FP32) >= {"gain"}
    for low in (FP16, BF16):
        assert refusing(oracle * (1 + 2.0 * low.unit), bounds_of(oracle), low) == {"gain"}


def test_a_budget_of_a_low_precision_lets_its_own_rounding_pass_and_float32_does_not(oracle):
    bounds = bounds_of(oracle)
    assert refusing(oracle.to(torch.bfloat16), bounds, BF16) == set()
    assert refusing(oracle.to(torch.bfloat16) * 1.01, bounds, FP16) >= {"norm", "gain"}
    assert refusing(oracle.to(torch.bfloat16), bounds, FP32) == {"norm", "slice", "gain", "pointwise"}


def test_probes_that_stray_further_allow_more_and_in_proportion(oracle):
    near, far = (allowance(bounds_of(oracle, noise), BF16, None) for noise in (4.0, 8.0))
    assert far.norm == pytest.approx(2 * near.norm, rel=0.1)
    assert far.point == pytest.approx(2 * near.point, rel=0.1)


def test_probes_that_do_not_stray_leave_one_rounding(oracle):
    allowed = allowance(bounds_of(oracle, 0.0), FP32, None)
    norm = bounds_of(oracle).yardstick.norm
    assert allowed.norm == pytest.approx(budget.NORM_FACTOR * FP32.unit * norm)
    assert allowed.gain == budget.GAIN_FLOOR


def test_a_kink_widens_slices_alone(oracle):
    plain, kinked = (allowance(bounds_of(oracle, kinked=k), FP32, None) for k in (False, True))
    ratio = budget.KINKED_SLICE_FACTOR / budget.SLICE_FACTOR
    assert (kinked.norm, kinked.gain, kinked.point) == (plain.norm, plain.gain, plain.point)
    for wide, narrow in zip(kinked.slices, plain.slices, strict=True):
        torch.testing.assert_close(wide, ratio * narrow)


def test_a_worse_eager_excuses_as_much_and_a_better_one_takes_nothing(oracle):
    bounds = bounds_of(oracle)
    poor = oracle * (1 + 64 * FP32.unit)
    assert refusing(poor, bounds, FP32) != set()
    assert refusing(poor, bounds, FP32, baseline=poor) == set()
    assert refusing(oracle * (1 + 256 * FP32.unit), bounds, FP32, baseline=poor) != set()
    perfect, absent = (allowance(bounds, FP32, b) for b in (bounds.yardstick.distance(oracle), None))
    assert (perfect.norm, perfect.gain, perfect.point) == (absent.norm, absent.gain, absent.point)
    assert all(map(torch.equal, perfect.slices, absent.slices))


def test_a_structural_zero_is_judged_by_size_alone():
    noise = torch.randn(64, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 1e-17
    stick = Yardstick(noise)
    terms = torch.randn(64, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    spread = {name: stick.distance(p.unit * terms) for name, p in PRECISIONS.items()}
    bounds = Bounds(stick, spread, exact=False, settled={}, kinked=False, scale=1.0)
    assert bounds.is_null
    assert refusing(torch.zeros(64), bounds, FP32) == set()
    assert refusing(FP32.unit * terms.flip(0), bounds, FP32) == set()
    assert refusing(20 * FP32.unit * terms, bounds, FP32) == {"norm"}
    assert refusing(20 * FP32.unit * terms, bounds, BF16) == set()


def test_a_zero_oracle_is_null_and_an_ordinary_one_is_not(oracle):
    assert bounds_of(torch.zeros(4, 4, dtype=torch.float64)).is_null
    assert not bounds_of(oracle).is_null
    oracle[5] = 0
    bounds = bounds_of(oracle)
    assert bounds.null_slice(0, 5)
    assert not bounds.null_slice(0, 4)


def test_underflow_of_float16_is_allowed_by_its_quantum_and_less_under_a_scale(oracle):
    faint = oracle * 2.0**-22
    flushed = faint.to(torch.float16)
    assert refusing(flushed, bounds_of(faint), FP16) == set()
    assert refusing(flushed, bounds_of(faint, scale=2.0**12), FP16) != set()
    assert refusing(torch.zeros_like(faint), bounds_of(faint, scale=2.0**12), FP16) != set()


def test_past_the_cap_the_angle_is_asked(oracle):
    bounds = bounds_of(oracle, noise=0.8 / BF16.unit)
    assert allowance(bounds, BF16, None).norm > budget.NORM_CAP * bounds.yardstick.norm
    assert refusing(oracle, bounds, BF16) == set()
    assert "gain" in refusing(torch.zeros_like(oracle), bounds, BF16)
    assert "gain" in refusing(-oracle, bounds, BF16)
    assert math.isinf(allowance(bounds_of(oracle), BF16, None).turn)


def test_eager_that_reaches_float32_in_a_low_cell_is_known(oracle):
    bounds = bounds_of(oracle)
    assert budget.holds_float32(bounds.yardstick.distance(oracle.float()), bounds, BF16)
    assert not budget.holds_float32(bounds.yardstick.distance(oracle.half()), bounds, BF16)
    assert not budget.holds_float32(bounds.yardstick.distance(oracle.bfloat16()), bounds, BF16)
