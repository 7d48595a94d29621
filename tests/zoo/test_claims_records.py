"""Every claim of the zoo can be measured: its baseline exists, and both have the same scale."""

import pytest

import zoo

CLAIMS = [(name, claim) for name in zoo.list_models() for claim in zoo.get_spec(name).claims]
IDS = [f"{name}-{claim.quantity}-{claim.factor}" for name, claim in CLAIMS]


def _claim(name, factor):
    (found,) = [claim for claim in zoo.get_spec(name).claims if claim.factor == factor]
    return found


def _ends(claim):
    """Return mode and precision of the model, then mode and precision of its baseline."""
    return claim.mode, claim.precision, claim.baseline_mode, claim.baseline_precision


def test_the_claims_and_their_factors():
    assert sorted((name, claim.quantity, claim.factor) for name, claim in CLAIMS) == [
        ("attention_fused", "peak", 10.0),
        ("batch_gather_scripted", "forward", 1.1),
        ("batch_gather_vectorised", "forward", 100.0),
        ("folded_conv_bn", "forward", 1.3),
        ("fused_conv_bn", "peak", 1.72),
        ("mlp", "step", 1.21),
        ("mlp", "step", 1.51),
        ("mlp", "step", 2.0),
        ("rms_norm_native", "gradient", 1.075),
        ("row_sum", "forward", 100.0),
        ("row_sum_unbind", "forward", 1.3),
    ]


@pytest.mark.parametrize(("name", "claim"), CLAIMS, ids=IDS)
def test_model_and_baseline_have_the_same_scale(name, claim):
    scale, baseline = zoo.get_spec(name).scale, zoo.get_spec(claim.baseline or name).scale
    assert (scale.size_name, scale.sizes) == (baseline.size_name, baseline.sizes)
    assert all(size > 0 for size in claim.sizes)


@pytest.mark.parametrize(("name", "claim"), CLAIMS, ids=IDS)
def test_a_claim_names_its_source_and_machine(name, claim):
    assert claim.text == " ".join(claim.text.split())
    assert "not named" in claim.source or "NVIDIA" in claim.source, f"{name}: on which machine?"


def test_sums_over_rows_are_claimed_at_the_size_of_the_source():
    for name, factor in [("row_sum", 100.0), ("row_sum_unbind", 1.3)]:
        claim = _claim(name, factor)
        assert (claim.baseline, claim.sizes, claim.device) == ("row_sum_sliced", (500,), "")
        assert _ends(claim) == ("eager", "fp32", "eager", "fp32")


def test_the_scripted_loop_is_compared_with_the_eager_one():
    claim = _claim("batch_gather_scripted", 1.1)
    assert claim.baseline == "batch_gather_loop"
    assert _ends(claim) == ("scripted", "fp32", "eager", "fp32")


def test_the_fused_peak_is_the_ratio_of_two_published_peaks():
    claim = _claim("fused_conv_bn", 1.72)
    assert round(2.68 / 1.56, 2) == claim.factor
    assert claim.baseline == "conv_bn"
    assert "RTX 3070" in claim.source


def test_mixed_precision_and_compilation_are_claims_about_a_gpu():
    claims = {claim.factor: claim for claim in zoo.get_spec("mlp").claims}
    assert _ends(claims[2.0]) == ("eager", "amp_fp16", "eager", "fp32")
    assert _ends(claims[1.51]) == ("compiled", "amp_fp16", "eager", "amp_fp16")
    assert _ends(claims[1.21]) == ("compiled", "fp32", "eager", "fp32")
    assert all(claim.device == "cuda" and not claim.baseline for claim in claims.values())


def test_the_smallest_gain_of_rms_norm_is_seven_percent_of_the_time():
    assert round(1 / (1 - 0.07), 3) == _claim("rms_norm_native", 1.075).factor
