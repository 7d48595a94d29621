"""What each measure sees, and what it is blind to."""

import math

import pytest
import torch

from conformance.gates.distance import Distance, Yardstick, dropped_bits_share, farthest, flat_reals

SHAPE = (8, 16, 4)


@pytest.fixture
def oracle():
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def stick(oracle):
    return Yardstick(oracle)


def test_the_oracle_is_no_distance_from_itself(stick, oracle):
    far = stick.distance(oracle)
    assert (far.absolute, far.point, far.gain, far.turn) == (0.0, 0.0, 0.0, pytest.approx(0.0, abs=1e-15))
    assert all(not s.any() for s in far.slices)


@pytest.mark.parametrize("factor", [1.25, 1.01, 1 + 1e-6, 0.5, 0.0, -1.0])
def test_a_factor_is_the_same_in_norm_and_gain(stick, oracle, factor):
    far = stick.distance(factor * oracle)
    assert far.gain == pytest.approx(abs(factor - 1), rel=1e-9)
    assert far.absolute / stick.norm == pytest.approx(abs(factor - 1), rel=1e-9)


def test_roundings_average_out_in_gain_and_not_in_norm(stick, oracle):
    noise = torch.rand(SHAPE, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 2 - 1
    far = stick.distance(oracle * (1 + 1e-3 * noise))
    assert far.absolute / stick.norm > 5e-4
    assert far.gain < 1e-4


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_zeroed_row_is_seen_whole_in_its_slice(stick, oracle, axis):
    damaged = oracle.clone()
    damaged.select(axis, 2).zero_()
    far = stick.distance(damaged)
    relative = far.slices[axis] / stick.slice_norms[axis]
    assert relative[2] == pytest.approx(1.0)
    assert int(relative.count_nonzero()) == 1
    assert far.absolute == pytest.approx(float(stick.slice_norms[axis][2]))


def test_the_pointwise_measure_names_the_element(stick, oracle):
    damaged = oracle.clone()
    damaged[3, 7, 1] += stick.rms
    far = stick.distance(damaged)
    assert stick.index(far.worst) == (3, 7, 1)
    assert far.point == pytest.approx(stick.rms / (abs(float(oracle[3, 7, 1])) + stick.rms))


def test_the_angle_sees_direction_and_not_size(stick, oracle):
    assert stick.distance(3 * oracle).turn == pytest.approx(0.0, abs=1e-12)
    assert stick.distance(-oracle).turn == pytest.approx(2.0)
    assert math.isnan(stick.distance(torch.zeros(SHAPE)).turn)


def test_axes_of_one_and_slices_of_one_element_are_no_slices():
    assert Yardstick(torch.ones(5)).axes == ()
    assert Yardstick(torch.ones(1, 5)).axes == ()
    assert Yardstick(torch.ones(5, 1, 2)).axes == (0, 2)
    assert Yardstick(torch.tensor(1.0)).axes == ()


def test_elements_not_finite_on_either_side_are_left_to_the_class_gate(oracle):
    oracle[0, 0, 0] = math.inf
    oracle[1, 1, 1] = math.nan
    stick = Yardstick(oracle)
    y = oracle.clone()
    y[2, 2, 2] = math.nan
    far = stick.distance(y)
    assert (far.absolute, far.point, far.gain) == (0.0, 0.0, 0.0)
    assert math.isfinite(stick.norm)
    y[3, 3, 3] += 1
    assert stick.distance(y).absolute == pytest.approx(1.0)


def test_zero_dimensions_and_a_zero_oracle():
    stick = Yardstick(torch.tensor(2.0, dtype=torch.float64))
    assert stick.distance(torch.tensor(2.5)).absolute == 0.5
    assert stick.index(0) == ()
    nothing = Yardstick(torch.zeros(3, 3, dtype=torch.float64))
    assert nothing.distance(torch.zeros(3, 3)).point == 0.0
    assert nothing.distance(torch.full((3, 3), 1e-30)).point == math.inf


def test_complex_numbers_are_pairs(oracle):
    z = torch.complex(oracle, oracle.flip(0))
    stick = Yardstick(z)
    assert stick.norm == pytest.approx(float(z.abs().square().sum().sqrt()))
    turned = stick.distance(z * 1j)
    assert turned.absolute == pytest.approx(math.sqrt(2) * stick.norm)
    assert len(stick.index(turned.worst)) == len(SHAPE)
    assert torch.equal(flat_reals(z.conj())[..., 1], -z.imag)


def test_farthest_takes_each_measure_from_whom_strayed_most():
    one = Distance(1.0, (torch.tensor([1.0, 5.0]),), 0.3, 0.1)
    two = Distance(2.0, (torch.tensor([4.0, 2.0]),), 0.2, 0.4)
    worst = farthest(iter([one, two]))
    assert (worst.absolute, worst.point, worst.gain) == (2.0, 0.3, 0.4)
    assert worst.slices[0].tolist() == [4.0, 5.0]


@pytest.mark.parametrize(("dtype", "bits"), [(torch.bfloat16, 16), (torch.float16, 13)])
def test_a_trip_through_fewer_bits_is_seen_whole(stick, oracle, dtype, bits):
    assert dropped_bits_share(oracle.to(dtype).float(), stick, bits, 2) == 1.0
    assert dropped_bits_share(oracle.float(), stick, bits, 2) < 0.01
    half = oracle.float()
    half[:4] = half[:4].to(dtype).float()
    assert dropped_bits_share(half, stick, bits, 2) == pytest.approx(0.5, abs=0.01)


def test_bits_tell_nothing_where_the_oracle_has_none():
    short = torch.tensor([1.0, 0.5, 3.0, 0.1], dtype=torch.float64)
    assert math.isnan(dropped_bits_share(short.float(), Yardstick(short), 16, 2))
