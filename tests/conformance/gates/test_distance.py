"""What each measure sees, and what it is blind to."""

import math

import pytest
import torch

from conformance.gates.distance import BLOCK, Distance, OracleTensor, farthest, flat_reals, same_bytes
from conformance.gates.dropped_bits import dropped_bits_shares

SHAPE = (8, 16, 4)


@pytest.fixture
def oracle():
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def measured(oracle):
    return OracleTensor(oracle)


@pytest.mark.parametrize("factor", [1.25, 1.01, 1 + 1e-6, 0.5, 0.0, -1.0])
def test_a_factor_is_the_same_in_norm_and_gain(measured, oracle, factor):
    far = measured.distance(factor * oracle)
    assert far.gain == pytest.approx(abs(factor - 1), rel=1e-9)
    assert far.absolute / measured.norm == pytest.approx(abs(factor - 1), rel=1e-9)


def test_roundings_average_out_in_gain_and_not_in_norm(measured, oracle):
    noise = torch.rand(SHAPE, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 2 - 1
    far, none = measured.distance(oracle * (1 + 1e-3 * noise)), measured.distance(oracle)
    assert far.absolute / measured.norm > 5e-4
    assert far.gain < 1e-4
    assert (none.absolute, none.point, none.gain, none.cosine_gap) == (0.0, 0.0, 0.0, pytest.approx(0.0, abs=1e-15))
    assert all(not s.any() for s in none.slices)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_zeroed_row_is_seen_whole_in_its_slice(measured, oracle, axis):
    damaged = oracle.clone()
    damaged.select(axis, 2).zero_()
    far = measured.distance(damaged)
    relative = far.slices[axis] / measured.slice_norms[axis]
    assert relative[2] == pytest.approx(1.0)
    assert int(relative.count_nonzero()) == 1
    assert far.absolute == pytest.approx(float(measured.slice_norms[axis][2]))


def test_the_pointwise_measure_names_the_element(measured, oracle):
    damaged = oracle.clone()
    damaged[3, 7, 1] += measured.rms
    far = measured.distance(damaged)
    assert measured.index(far.worst) == (3, 7, 1)
    assert far.point == pytest.approx(measured.rms / (abs(float(oracle[3, 7, 1])) + measured.rms))


@pytest.mark.parametrize(
    ("factor", "gap", "apart"),
    [
        (3, 0.0, 1e-12),
        (-1, 2.0, 1e-6),
        (0, 1.0, 0.0),  # of no direction: neither right nor wrong
        (0.75 * 2**-22, 1.0, 0.0),  # shorter than the roundings of float64
        (1.5 * 2**-22, 0.0, 1e-2),
        (1e-6, 0.0, 1e-3),
    ],
)
def test_the_angle_sees_direction_and_not_size(measured, oracle, factor, gap, apart):
    assert measured.distance(factor * oracle).cosine_gap == pytest.approx(gap, abs=apart)


def test_axes_of_one_and_slices_of_one_element_are_no_slices():
    axes = {shape: OracleTensor(torch.ones(shape)).axes for shape in ((5,), (1, 5), (5, 1, 2), ())}
    assert axes == {(5,): (), (1, 5): (), (5, 1, 2): (0, 2), (): ()}


def test_elements_not_finite_on_either_side_are_left_to_the_class_gate(oracle):
    oracle[0, 0, 0] = math.inf
    oracle[1, 1, 1] = math.nan
    measured = OracleTensor(oracle)
    y = oracle.clone()
    y[2, 2, 2] = math.nan
    far = measured.distance(y)
    assert (far.absolute, far.point, far.gain) == (0.0, 0.0, 0.0)
    assert math.isfinite(measured.norm)
    y[3, 3, 3] += 1
    assert measured.distance(y).absolute == pytest.approx(1.0)


def test_zero_dimensions_and_a_zero_oracle():
    measured = OracleTensor(torch.tensor(2.0, dtype=torch.float64))
    assert measured.distance(torch.tensor(2.5)).absolute == 0.5
    assert measured.index(0) == ()
    nothing = OracleTensor(torch.zeros(3, 3, dtype=torch.float64))
    assert nothing.distance(torch.zeros(3, 3)).point == 0.0
    assert nothing.distance(torch.full((3, 3), 1e-30)).point == math.inf


def test_complex_numbers_are_pairs(oracle):
    z = torch.complex(oracle, oracle.flip(0))
    measured = OracleTensor(z)
    assert measured.norm == pytest.approx(float(z.abs().square().sum().sqrt()))
    turned = measured.distance(z * 1j)
    assert turned.absolute == pytest.approx(math.sqrt(2) * measured.norm)
    assert len(measured.index(turned.worst)) == len(SHAPE)
    assert torch.equal(flat_reals(z.conj())[..., 1], -z.imag)


def test_farthest_takes_each_measure_from_whom_strayed_most():
    one = Distance(1.0, (torch.tensor([1.0, 5.0]),), 0.3, 0.1)
    two = Distance(2.0, (torch.tensor([4.0, 2.0]),), 0.2, 0.4)
    worst = farthest(iter([one, two]))
    assert (worst.absolute, worst.point, worst.gain) == (2.0, 0.3, 0.4)
    assert worst.slices[0].tolist() == [4.0, 5.0]


@pytest.mark.parametrize(("dtype", "bits"), [(torch.bfloat16, 16), (torch.float16, 13)])
def test_a_trip_through_fewer_bits_is_seen_whole(measured, oracle, dtype, bits):
    assert dropped_bits_shares(oracle.to(dtype).float(), measured, (bits,), 2) == (1.0,)
    assert max(dropped_bits_shares(oracle.float(), measured, (13, 16), 2)) < 0.01
    half = oracle.float()
    half[:4] = half[:4].to(dtype).float()
    assert dropped_bits_shares(half, measured, (bits,), 2) == pytest.approx((0.5,), abs=0.01)


def test_zeros_went_through_no_narrower_dtype_and_bits_tell_nothing_where_the_oracle_has_none():
    oracle = torch.randn(100, dtype=torch.float64)
    found = oracle.float().where(torch.arange(100) > 90, 0.0)
    assert dropped_bits_shares(found, OracleTensor(oracle), (16,), 2) == (0.0,)
    assert math.isnan(*dropped_bits_shares(torch.zeros(100), OracleTensor(oracle), (16,), 2))
    short = torch.tensor([1.0, 0.5, 3.0, 0.1], dtype=torch.float64)
    assert math.isnan(*dropped_bits_shares(short.float(), OracleTensor(short), (16,), 2))


def test_one_element_may_have_any_stride():
    one = torch.tensor(2.0).expand(1, 1)
    assert one.stride() == (0, 0)
    assert same_bytes(one, torch.full((1, 1), 2.0))
    assert not same_bytes(one, torch.full((1, 1), 3.0))


@pytest.mark.parametrize(
    "shape", [(3 * BLOCK + 5,), (3, BLOCK + 7), (1, 5, BLOCK // 2), (700, 11, 3, 7), (2, 2, BLOCK), (BLOCK, 3)]
)
@pytest.mark.parametrize("broken", [False, True])
def test_a_large_tensor_is_measured_in_blocks_as_in_one(shape, broken):
    generator = torch.Generator().manual_seed(2)
    oracle = torch.randn(shape, generator=generator, dtype=torch.float64)
    y = oracle * (1 + 1e-3 * torch.randn(shape, generator=generator, dtype=torch.float64))
    at = oracle.numel() - 3
    y.view(-1)[at] += 9.0
    if broken:
        y.view(-1)[1], y.view(-1)[-1], oracle.view(-1)[0] = math.nan, math.inf, math.inf
    measured, gap = OracleTensor(oracle), (y - oracle).nan_to_num(0.0, 0.0, 0.0)
    values = oracle.nan_to_num(0.0, 0.0, 0.0)
    far = measured.distance(y)
    assert far.absolute == pytest.approx(float(gap.norm()))
    assert far.gain == pytest.approx(abs(float((gap * values).sum())) / measured.norm**2)
    assert far.point == pytest.approx(float((gap.abs() / (values.abs() + measured.rms)).max()))
    assert far.worst == at
    for axis, found, norms in zip(measured.axes, far.slices, measured.slice_norms, strict=True):
        others = [a for a in range(len(shape)) if a != axis]
        torch.testing.assert_close(found, gap.square().sum(others).sqrt())
        torch.testing.assert_close(norms, values.square().sum(others).sqrt())


def test_bits_tell_nothing_in_an_element_below_a_4096th_of_the_rms():
    found = []
    for size in (0.75, 1.5):
        oracle = torch.ones(1024, dtype=torch.float64)
        oracle[:4] = size * 2**-12 * (1 + 0.1 * torch.arange(1.0, 5.0).double())
        found += dropped_bits_shares(oracle.bfloat16().float(), OracleTensor(oracle), (16,), 2)
    assert math.isnan(found[0])
    assert found[1] == 1.0
