"""The share of a limit and the choice of a ceiling, on numbers; the measurement, by its form alone."""

import pytest

from conformance.measure import ceilings
from conformance.axes import PRECISIONS
from conformance.measure.ceilings import Rival, observe
from conformance.figures.roofline import byte_rate, share

RATES = [[16, 5.0], [64, 9.0], [256, 7.0], [1024, 2.0]]


def test_share_is_the_larger_of_the_two_limits():
    assert share(flops=30, least_bytes=4, seconds=10, flop_rate=6, byte_rate=1) == 0.5  # 5 s to multiply, 4 to move
    assert share(flops=6, least_bytes=4, seconds=10, flop_rate=6, byte_rate=1) == 0.4
    assert share(flops=0, least_bytes=4, seconds=2, flop_rate=6, byte_rate=1) == 2.0  # the byte model is wrong
    assert share(flops=0, least_bytes=0, seconds=2, flop_rate=6, byte_rate=1) == 0.0


@pytest.mark.parametrize("wrong", ["seconds", "flop_rate", "byte_rate"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_share_wants_time_and_rates_above_zero(wrong, value):
    given = {"flops": 1, "least_bytes": 1, "seconds": 1.0, "flop_rate": 1.0, "byte_rate": 1.0, wrong: value}
    with pytest.raises(ValueError, match="share: seconds, flop_rate and byte_rate must be above 0, got"):
        share(**given)


@pytest.mark.parametrize("wrong", ["flops", "least_bytes"])
def test_share_wants_no_negative_work(wrong):
    given = {"flops": 1, "least_bytes": 1, "seconds": 1.0, "flop_rate": 1.0, "byte_rate": 1.0, wrong: -1}
    with pytest.raises(ValueError, match="share: flops and least_bytes must not be negative, got"):
        share(**given)


@pytest.mark.parametrize(
    ("least_bytes", "rate"),
    [
        (0, 9.0),  # smaller than all: the best there is
        (16, 9.0),  # the small size is slowed by the cost of a call
        (63, 9.0),
        (64, 9.0),
        (255, 9.0),  # the size below, in a cache that is no slower
        (256, 7.0),
        (1023, 7.0),
        (1024, 2.0),
        (10**9, 2.0),
    ],
)
def test_the_ceiling_is_that_of_the_size_below_or_of_any_larger(least_bytes, rate):
    assert byte_rate(RATES, least_bytes) == rate


def test_without_rates_there_is_no_ceiling():
    with pytest.raises(ValueError, match="byte_rate: rates must hold at least one size, got none"):
        byte_rate([], 1)


def test_sizes_reach_several_times_the_last_cache():
    assert ceilings._sizes(2**16) == [2**14, 2**16, 2**18]
    assert ceilings._sizes(1) == [2**14]
    assert ceilings._sizes(2**25)[-1] == 2**28


def test_the_best_sample_counts(monkeypatch):
    seconds = iter([9.0, 9.0, 4.0, 5.0, 2.0, 1.0, 8.0, 8.0])  # two to warm up, then pairs
    moments = iter([0.0, 0.1, 0.9, 1.1])
    monkeypatch.setattr(ceilings, "BURST", 1.0)
    monkeypatch.setattr(ceilings, "_seconds", lambda *_: next(seconds))
    monkeypatch.setattr(ceilings.time, "perf_counter", lambda: next(moments))
    monkeypatch.setattr(ceilings.tf32, "switch", lambda _: None)
    assert ceilings._best(Rival(PRECISIONS["fp32"], [(8.0, None), (1.0, None)]), "cpu") == 4.0


def test_the_measurement_has_a_rate_for_each_precision_and_size(monkeypatch):
    monkeypatch.setattr(ceilings, "SECONDS", 0.01)
    monkeypatch.setattr(ceilings, "BURST", 0.001)
    monkeypatch.setattr(ceilings, "SIDES", {"cpu": (16, 32)})
    monkeypatch.setattr(ceilings, "_last_cache", lambda _: 2**14)
    monkeypatch.setattr(ceilings, "set_policy", lambda: None)  # it would change this process for good
    switched = []
    monkeypatch.setattr(ceilings.tf32, "switch", lambda precision: switched.append(precision.name))
    phases = []
    seen = observe({"device": "cpu", "precisions": ["tf32", "amp_bf16"]}, phases.append)
    assert phases == ["prepare", "measure"]
    assert switched[:5] == ["fp32", "tf32", "amp_bf16", "fp32", "tf32"]  # to make the products, then burst by burst
    assert all(rate > 0 for rate in seen["flop_rates"].values())
    assert all(rate > 0 for rate in seen["flop_rates"].values())
    assert [size for size, _ in seen["byte_rates"]] == [2**14, 2**16]
    assert all(rate > 0 for _, rate in seen["byte_rates"])


def test_the_size_of_the_last_cache_is_read_or_guessed(monkeypatch, tmp_path):
    for name, size in (("index0", "32K"), ("index3", "1024K")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "size").write_text(size + "\n")
    monkeypatch.setattr(ceilings, "CPU_CACHES", tmp_path)
    assert ceilings._last_cache("cpu") == 2**20
    monkeypatch.setattr(ceilings, "CPU_CACHES", tmp_path / "absent")
    assert ceilings._last_cache("cpu") == 2**26
