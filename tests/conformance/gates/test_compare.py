"""A candidate of a low precision whose numbers are float32's."""

from dataclasses import replace

import pytest
import torch
from harness.references import criteria_of, reference_of

from conformance.axes import PRECISIONS
from conformance.gates.compare import compare

BF16 = PRECISIONS["amp_bf16"]


@pytest.fixture
def blurred():
    """A tensor that roundings of bfloat16 may change by half of its size, but not those of float32."""
    oracle = torch.randn(32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    reference = reference_of(oracle, noise=0.4 / BF16.unit)
    low = replace(reference.spread["amp_bf16"], gain=0.5)
    return replace(reference_of(oracle), spread={**reference_of(oracle).spread, "amp_bf16": low})


@pytest.mark.parametrize(("error", "left_to"), [(2.0**-24, ""), (2.0**-6, "fp32")])
def test_float32s_numbers_have_passed_gates_with_power_and_others_have_not(blurred, error, left_to):
    noise = torch.rand(32, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64) - 0.5
    found = compare((blurred.oracle.raw * (1 + error * noise)).float(), criteria_of(blurred, "amp_bf16"), None, "")
    assert all(measure.met for measure in found.measures)
    assert found.left_to == left_to
    assert found.accepted == ()
    assert found.rejected >= 3
