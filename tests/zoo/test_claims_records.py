"""Every claim of the zoo can be measured: its baseline exists, and both have the same scale."""

import pytest

import zoo

CLAIMS = [(name, claim) for name in zoo.list_models() for claim in zoo.get_spec(name).claims]
IDS = [f"{name}-{claim.quantity}-{claim.factor}" for name, claim in CLAIMS]


def _claim(name, factor):
    (found,) = [claim for claim in zoo.get_spec(name).claims if claim.factor == factor]
    return found


@pytest.mark.parametrize(("name", "claim"), CLAIMS, ids=IDS)
def test_model_and_baseline_have_the_same_scale(name, claim):
    scale, baseline = zoo.get_spec(name).scale, zoo.get_spec(claim.baseline or name).scale
    assert (scale.size_name, scale.sizes) == (baseline.size_name, baseline.sizes)
    assert all(size > 0 for size in claim.sizes)


@pytest.mark.parametrize(("name", "claim"), CLAIMS, ids=IDS)
def test_a_claim_names_its_source_and_machine(name, claim):
    assert claim.text == " ".join(claim.text.split())
    assert "not named" in claim.source or "NVIDIA" in claim.source, f"{name}: on which machine?"


def test_the_fused_peak_is_the_ratio_of_two_published_peaks():
    claim = _claim("fused_conv_bn", 1.72)
    assert round(2.68 / 1.56, 2) == claim.factor
    assert "RTX 3070" in claim.source


def test_the_smallest_gain_of_rms_norm_is_seven_percent_of_the_time():
    assert round(1 / (1 - 0.07), 3) == _claim("rms_norm_native", 1.075).factor
