"""The study of meters: how readings become verdicts, and counts become bounds."""

import importlib

import pytest
from planning import benchmark


@pytest.fixture(name="meters")
def _meters():
    return benchmark("meters")


@pytest.fixture(name="rivals")
def _rivals():
    return benchmark("meter_rivals")


def rival(word):
    return {"verdicts": {"B": word}, "intervals": {}, "reason": ""}


def ours(low, high, reason=""):
    interval = {"middle": (low + high) / 2, "low": low, "high": high, "pairs": 50, "clean": 1.0, "processes": 1}
    return {"verdicts": {}, "intervals": {} if reason else {"B": interval}, "reason": reason}


@pytest.mark.parametrize(
    ("seen", "trials", "bound"),
    [(0, 300, 0.009936), (1, 10, 0.394163), (3, 150, 0.050877), (10, 10, 1.0), (0, 2000, 0.001497)],
)
def test_the_bound_of_a_share_is_clopper_and_pearsons(meters, seen, trials, bound):
    assert meters.upper_bound(seen, trials) == pytest.approx(bound, abs=1e-6)


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ("slower", "slower", "slower"),
        ("slower", "faster", "same"),
        ("slower", "same", "same"),
        ("same", "same", "same"),
        ("slower", "too noisy", "too noisy"),
        ("too noisy", "too noisy", "too noisy"),
    ],
)
def test_a_rivals_difference_counts_where_both_processes_see_it(meters, first, second, together):
    assert meters.verdict([rival(first), rival(second)], "B") == together


@pytest.mark.parametrize(
    ("processes", "together"),
    [
        ([ours(0.88, 0.92), ours(0.90, 0.95)], "slower"),
        ([ours(0.88, 0.92), ours(0.95, 0.99)], "too noisy"),
        ([ours(0.99, 1.01), ours(0.98, 1.02)], "same"),
        ([ours(0.88, 0.92), ours(0.88, 0.92, "control failed")], "too noisy"),
    ],
)
def test_ours_pools_intervals_and_a_failed_control_is_no_verdict(meters, processes, together):
    assert meters.verdict(processes, "B") == together


def test_a_statistic_is_read_with_a_margin_of_three_percent(rivals):
    reading = rivals.read({"A": 1.0, "slow": 1.04, "near": 1.02, "fast": 0.96}, 0.5)
    assert reading.verdicts == {"slow": "slower", "near": "same", "fast": "faster"}
    assert reading.ratios["slow"] == pytest.approx(1 / 1.04)


@pytest.mark.parametrize(
    ("base", "times", "word"),
    [
        ([0.98, 0.99, 1.0, 1.01, 1.02], [1.08, 1.09, 1.10, 1.11, 1.12], "slower"),
        ([0.98, 0.99, 1.0, 1.01, 1.02], [1.0, 1.005, 1.05, 1.07, 1.08], "same"),  # 5 % apart, quartiles overlap
        ([0.998, 0.999, 1.0, 1.001, 1.002], [1.01, 1.011, 1.012, 1.013, 1.014], "same"),  # 1.2 % apart
        ([0.98, 0.99, 1.0, 1.01, 1.02], [1.0, 1.1, 1.3, 1.5, 1.6], "too noisy"),  # its own warning
    ],
)
def test_quartiles_and_warnings_are_heard(rivals, base, times, word):
    measurement = importlib.import_module("torch.utils.benchmark").Measurement
    task = importlib.import_module("torch.utils.benchmark.utils.common").TaskSpec("call()", "pass")
    assert rivals.careful(measurement(1, base, task), measurement(1, times, task)) == word


def test_the_study_goes_between_its_marks(meters, tmp_path, monkeypatch):
    page = tmp_path / "measurement.md"
    monkeypatch.setattr(meters, "PAGE", page)
    meters.write("first")
    page.write_text("before\n" + page.read_text())
    meters.write("second")
    text = page.read_text()
    assert text.startswith("before\n# Measurement\n")
    assert "<!-- study -->\nsecond\n<!-- /study -->\n" in text
    assert "first" not in text
