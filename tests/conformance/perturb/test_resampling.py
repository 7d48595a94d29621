"""Interpolation from its coefficients: they are torch's own, and perturbing them covers float32's kernels."""

from functools import partial
from itertools import product

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 -- its usual name
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.axes import PRECISIONS
from conformance.evaluate.inputs import seed_generator
from conformance.perturb.ops import rule_of
from conformance.perturb.resampling import Axis, coefficients, resample
from conformance.perturb.rounding import Rounding


class Compared(TorchDispatchMode):
    """Compares every interpolation, forward and backward, with the one from coefficients."""

    def __init__(self):
        super().__init__()
        self.gaps = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if rule_of(func, {}).kernel:
            ours = resample(func, args, kwargs or {}, lambda t: t, lambda t: t)
            self.gaps[func] = float((ours - result).abs().max())
        return result


CASES = [
    (mode, dims, {"align_corners": align, **size})
    for mode, dims in (("linear", 1), ("bilinear", 2), ("trilinear", 3), ("bicubic", 2))
    for align in (False, True)
    for size in ({"size": (7, 4, 3)[:dims]}, {"size": (1, 12, 12)[:dims]}, {"scale_factor": (1.7, 2.0, 0.6)[:dims]})
] + [
    (mode, 2, {"align_corners": False, "antialias": True, **size})
    for mode in ("bilinear", "bicubic")
    for size in ({"size": (3, 9)}, {"scale_factor": (0.5, 1.7)})
]
CASES += [(mode, d, {"size": (7, 4, 3)[:d]}) for mode in ("nearest", "nearest-exact") for d in (1, 2, 3)]


@pytest.mark.parametrize(("mode", "dims", "options"), CASES)
def test_the_coefficients_are_those_of_torch(mode, dims, options):
    x = torch.randn(2, 3, *(5, 4, 6)[:dims], generator=seed_generator("x"), dtype=torch.float64).requires_grad_()
    with Compared() as compared:
        F.interpolate(x, mode=mode, **options).sin().sum().backward()
    assert len(compared.gaps) == 2  # forward and backward
    assert max(compared.gaps.values()) < 1e-12


WITH_SCALES = [({"mode": mode}, dims) for mode in ("nearest", "nearest-exact") for dims in (1, 2, 3)]
WITH_SCALES += [({"mode": mode}, dims) for dims, mode in enumerate(("linear", "bilinear", "trilinear"), start=1)]
WITH_SCALES += [({"mode": "bicubic"}, 2), ({"mode": "bilinear", "antialias": True}, 2)]


@pytest.mark.parametrize(("options", "dims"), WITH_SCALES)
def test_the_scale_of_an_axis_counts_where_it_counts_for_the_kernel(options, dims):
    """Lengths 1 to 7 by scales that keep, double or change them, with both orders in memory."""
    for length, scale, other in product((1, 2, 3, 5, 7), (0.75, 1.1, 1.3, 2.0, 2.2), (1.3, 2.0)):
        x = torch.randn(2, 3, *(length, 4, 3)[:dims], generator=seed_generator("x"), dtype=torch.float64)
        if length * scale < 1:
            continue
        for order in (torch.contiguous_format, {2: torch.channels_last, 3: torch.channels_last_3d}.get(dims)):
            if order is None:
                continue
            leaf = x.to(memory_format=order).requires_grad_()
            with Compared() as compared:
                F.interpolate(leaf, scale_factor=(scale, other, 1.1)[:dims], **options).sin().sum().backward()
            assert max(compared.gaps.values()) < 1e-12, (length, scale, other, order)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_where_float32_takes_another_pixel_the_place_is_unsettled(mode):
    other = 0
    for length, size in product(range(1, 40), range(1, 130)):
        x = torch.arange(float(length)).view(1, 1, -1)
        one, wide = (F.interpolate(t, size=size, mode=mode)[0, 0] for t in (x, x.double()))
        assert (Axis(length, size).is_unsettled(mode) | (one.double() == wide)).all(), (length, size)
        other += int((one.double() != wide).sum())
    assert other  # it happens


def perturbed(function):
    """What a function gives in eight perturbed runs."""
    runs = []
    for run in range(8):
        with Rounding(PRECISIONS["fp32"], seed_generator("run", run)):
            runs.append(function())
    return runs


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_a_place_far_from_the_corner_is_perturbed_as_far_as_float32_moves_it(mode):
    def resized(dtype=torch.float64):
        return F.interpolate(x.to(dtype), size=(64, 257), mode=mode).double()

    x = torch.randn(1, 1, 33, 100, generator=seed_generator("x"), dtype=torch.float64)
    truth = resized()
    single, *runs = (
        float((found - truth).norm() / truth.norm()) for found in (resized(torch.float32), *perturbed(resized))
    )
    assert single < max(runs) < 20 * single
    assert max(runs) > 40 * PRECISIONS["fp32"].unit  # the operands alone account for less than ten


def test_nearest_is_exact_unless_a_place_lies_on_a_border():
    x = torch.randn(1, 1, 6, generator=seed_generator("x"), dtype=torch.float64)
    for size, moved in ((12, False), (74, True), (9, False)):
        resized = partial(F.interpolate, x, size=size, mode="nearest")
        borders = {i for i in range(1, size) if i * 6 % size == 0}
        changed = {int(i) for run in perturbed(resized) for i in (run != resized()).nonzero()[:, 2]}
        assert bool(changed) is moved
        assert changed <= borders


def test_places_that_float32_represents_are_not_perturbed():
    doubled = coefficients("linear", Axis(6, 12), lambda t: t * 2)
    assert torch.equal(doubled, coefficients("linear", Axis(6, 12), lambda t: t))
    assert not torch.equal(
        coefficients("linear", Axis(6, 11), lambda t: t * 1.01), coefficients("linear", Axis(6, 11), lambda t: t)
    )


def test_an_infinite_input_stays_where_it_is():
    x = torch.zeros(1, 1, 4, dtype=torch.float64)
    x[..., 0] = float("inf")
    for found in perturbed(lambda: F.interpolate(x, size=8, mode="linear")):
        assert found.isfinite()[..., 4:].all()


def test_a_grid_near_zero_is_perturbed_as_one_beside_it():
    x = torch.randn(1, 1, 65, 257, generator=seed_generator("x"), dtype=torch.float64)
    grid = torch.rand(1, 4, 5, 2, generator=seed_generator("grid"), dtype=torch.float64) * 1e-3
    grid = grid.float().double()
    single = F.grid_sample(x.float(), grid.float(), align_corners=False).double()
    truth = F.grid_sample(x, grid, align_corners=False)
    for found in perturbed(lambda: F.grid_sample(x, grid, align_corners=False)):
        assert float((single - truth).norm()) < 2 * float((found - truth).norm())
