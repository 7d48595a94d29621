"""Autocast inside a forward: a region that is on, and an island where it is off."""

from contextlib import nullcontext

import pytest
import torch

import zoo
from zoo.models.autocast_regions import RegionMLP, squared_distances

AMBIENT = [None, torch.float16, torch.bfloat16]
FINE = 1 + 2**-9  # float16 and float32 represent it; bfloat16 rounds it to 1


def ambient(dtype):
    """Return the autocast context of a caller; None: without autocast."""
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)


def test_the_region_has_the_same_bits_for_every_caller():
    torch.manual_seed(0)
    model, x = RegionMLP(16, 32, 8), torch.randn(6, 16)
    results = []
    for dtype in AMBIENT:
        with ambient(dtype):
            y = model(x)
        assert y.dtype == torch.float16
        gradients = torch.autograd.grad(y, list(model.parameters()), torch.ones_like(y))
        assert {g.dtype for g in gradients} == {torch.float32}
        results.append((y, *gradients))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize(("caller", "found"), [(None, torch.bfloat16), (torch.float16, torch.float16)])
def test_a_region_without_a_dtype_takes_that_of_its_caller(caller, found):
    with ambient(caller), torch.autocast("cpu"):
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == found


@pytest.mark.parametrize("dtype", AMBIENT)
def test_the_island_is_as_exact_as_float32(dtype):
    x, y = torch.full((2, 4), FINE), torch.ones(3, 4)
    with ambient(dtype):
        found = squared_distances(x, y)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.full((2, 3), 4 * 2.0**-18))


def test_the_island_casts_low_precision_inputs_up():
    x, y = torch.full((2, 4), 128.0, dtype=torch.float16), torch.zeros(3, 4, dtype=torch.float16)
    assert squared_distances(x, y).tolist() == [[65536.0] * 3] * 2  # beyond float16's largest number


def test_a_scripted_region_does_not_stop_the_autocast_of_its_caller():
    region, x = torch.jit.script(zoo.create_model("autocast_region")), torch.ones(2, 16)
    island, far = torch.jit.script(squared_distances), torch.full((2, 4), FINE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert [region(x).dtype for _ in range(4)][-1] == torch.bfloat16
        distances = [island(far, far) for _ in range(4)][-1]
    assert distances.abs().max() > 2.0**-10  # from a product in bfloat16; it is zero in float32


@pytest.mark.parametrize("scripted", [False, True])
def test_bad_input_gets_one_line(scripted):
    model, distances = RegionMLP(16, 32, 8), squared_distances
    if scripted:
        model, distances = torch.jit.script(model), torch.jit.script(distances)
    wrong_value, wrong_type = (torch.jit.Error,) * 2 if scripted else (ValueError, TypeError)
    with pytest.raises(wrong_value, match=r"RegionMLP: x must have trailing size 16, got shape \[2, 3\]"):
        model(torch.ones(2, 3))
    with pytest.raises(wrong_type, match=r"RegionMLP: x must have a floating dtype, got"):
        model(torch.ones(2, 16, dtype=torch.int64))
    with pytest.raises(wrong_value, match=r"must have shapes \(n, d\) and \(m, d\), got \[2, 3\] and \[2, 4\]"):
        distances(torch.ones(2, 3), torch.ones(2, 4))
    with pytest.raises(wrong_type, match=r"squared_distances: x and y must have one floating dtype, got"):
        distances(torch.ones(2, 3), torch.ones(2, 3).double())


def test_what_is_no_tensor_or_no_size_is_named():
    with pytest.raises(TypeError, match="RegionMLP: x must be a tensor, got list"):
        RegionMLP(16, 32, 8)([1.0])
    with pytest.raises(ValueError, match="RegionMLP: hidden_features must be at least 1, got -3"):
        RegionMLP(16, -3, 8)
    with pytest.raises(TypeError, match="squared_distances: y must be a tensor, got None"):
        squared_distances(torch.ones(2, 3), None)
