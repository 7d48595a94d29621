"""The study of meters: how readings become verdicts, and counts become bounds."""

import importlib

import pytest

from benchmarks import meter_rivals, meters
from benchmarks.tasks import Reading, Readings
from conformance.records.measurements import Ratio

SETTING = meters.Setting("2.13.0", "3.11", "a processor", 2, "5.3", meters.BUDGET)


def rival(word):
    return Reading({"B": word}, {}, 0.5)


def ours(low, high, reason=""):
    interval = Ratio((low + high) / 2, low, high, pairs=50)
    return Reading({}, {}, 0.5, {} if reason else {"B": interval}, reason)


@pytest.mark.parametrize(
    ("seen", "trials", "bound"),
    [(0, 300, 0.009936), (1, 10, 0.394163), (3, 150, 0.050877), (10, 10, 1.0), (0, 2000, 0.001497)],
)
def test_the_bound_of_a_share_is_clopper_and_pearsons(seen, trials, bound):
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
def test_a_rivals_difference_counts_if_both_processes_see_it(first, second, together):
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
def test_ours_pools_intervals_and_a_failed_control_is_no_verdict(processes, together):
    assert meters.verdict(processes, "B") == together


def test_a_statistic_is_read_with_a_margin_of_three_percent():
    reading = meter_rivals.read({"A": 1.0, "slow": 1.04, "near": 1.02, "fast": 0.96}, 0.5)
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
def test_quartiles_and_warnings_are_heard(base, times, word):
    measurement = importlib.import_module("torch.utils.benchmark").Measurement
    task = importlib.import_module("torch.utils.benchmark.utils.common").TaskSpec("call()", "pass")
    assert meter_rivals.careful(measurement(1, base, task), measurement(1, times, task)) == word


def trial(number, words, wall=1.0):
    """A trial in which every rule has one verdict on A′ and B in each process."""
    again, slowed = words
    reading = Reading({meters.AGAIN: again, meters.SLOWED: slowed}, {}, seconds=0.5, wall=wall)
    readings = Readings(dict.fromkeys((meters.OURS, *meter_rivals.RULES), reading))
    condition = list(meters.CONDITIONS)[number % 2]
    return meters.Trial(number, condition, "small", SETTING, (readings, readings))


def test_the_table_counts_alarms_finds_and_missing_verdicts():
    words = [("same", "slower"), ("same", "same"), ("faster", "slower"), ("too noisy", "too noisy")]
    text = meters.page([trial(2 * number, pair) for number, pair in enumerate(words)])
    row = next(line for line in text.splitlines() if line.startswith("| best of N"))
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells == ["best of N", "quiet", "1 of 4", "75.1%", "50%", "25% and 25%", "1.00", "2.00"]
    assert not [line for line in text.splitlines() if line.startswith("| best of N") and "busy" in line]


def test_trials_in_the_file_are_not_done_again(tmp_path, monkeypatch):
    done = []

    def one_trial(number, setting):
        done.append((number, setting))
        return trial(number, ("same", "slower"))

    monkeypatch.setattr(meters, "one_trial", one_trial)
    file = tmp_path / "trials.jsonl"
    first = meters.study(SETTING, 2, file)
    assert meters.study(SETTING, 3, file)[:2] == first
    assert done == [(0, SETTING), (1, SETTING), (2, SETTING)]
    assert [t.number for t in meters.study(SETTING, 1, file)] == [0]
    with pytest.raises(SystemExit, match="another setting"):
        meters.study(meters.Setting("2.14.0", "3.11", "a processor", 2, "5.3", meters.BUDGET), 3, file)


def test_the_study_goes_between_its_marks(tmp_path, monkeypatch):
    page = tmp_path / "measurement.md"
    monkeypatch.setattr(meters, "PAGE", page)
    page.write_text("before\n# Measurement\n\n<!-- study -->\n<!-- /study -->\nafter\n")
    meters.write("first")
    meters.write("second")
    assert page.read_text() == "before\n# Measurement\n\n<!-- study -->\nsecond\n<!-- /study -->\nafter\n"
    page.write_text("<!-- study -->\n")
    with pytest.raises(SystemExit, match="has no <!-- study --> … <!-- /study -->"):
        meters.write("first")
