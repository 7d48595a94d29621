"""The rivals of our meter: what each measures, and the verdict to which its documentation leads a careful user.

Each takes the programs by name, the baseline first, and the seconds that one program may take. It times one program
after the other. Several rules may read one measurement; each rule is a row of the study.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from torch.utils.benchmark import Measurement, Timer

from benchmarks.tasks import Reading
from conformance.records.measurements import FASTER, MARGIN, NOISY, SAME, SLOWER

Programs = Mapping[str, Callable[[], Any]]

PERCENT = round(100 * (MARGIN - 1))
TORCH, TORCH_CAREFUL = "torch.utils.benchmark, medians", "torch.utils.benchmark, quartiles"
PYTEST_MIN, PYTEST_MEAN = "pytest-benchmark, min", "pytest-benchmark, mean"
BEST = "best of N"
RULES = {
    TORCH: f"the medians of two `blocked_autorange` are more than {PERCENT} % apart.",
    TORCH_CAREFUL: "in addition, their interquartile ranges do not overlap, and neither `Measurement` warns about a "
    "wide one (more than 10 % of the median). With a warning there is no verdict.",
    PYTEST_MIN: f"`--benchmark-compare-fail=min:{PERCENT}%`, applied in both directions, with `--benchmark-warmup=on`.",
    PYTEST_MEAN: f"`--benchmark-compare-fail=mean:{PERCENT}%`, applied in the same way.",
    BEST: f"N single calls in a block, as many as the budget allows; the minima are more than {PERCENT} % apart.",
}
WARM = ("--benchmark-warmup=on", "--benchmark-warmup-iterations=20")  # else a slow first call shortens the run
TEST = "def test_side(benchmark, study, side):\n    benchmark(study.programs[side])\n    study.keep(side, benchmark)\n"


def verdict(ratio: float) -> str:
    """The verdict on the ratio of two times, baseline over variant, from the ratio alone."""
    return FASTER if ratio > MARGIN else SLOWER if ratio < 1 / MARGIN else SAME


def read(statistic: Mapping[str, float], seconds: float) -> Reading:
    """The reading of one statistic of each program, the baseline first."""
    (_, base), *others = statistic.items()
    ratios = {name: base / value for name, value in others}
    return Reading({name: verdict(ratio) for name, ratio in ratios.items()}, ratios, seconds)


def careful(base: Measurement, variant: Measurement) -> str:
    """The verdict of medians, if quartiles and warnings agree with it."""
    if base.has_warnings or variant.has_warnings:
        return NOISY
    (low, _, high), (low_too, _, high_too) = (
        statistics.quantiles(m.times, n=4, method="inclusive") for m in (base, variant)
    )
    return verdict(base.median / variant.median) if high < low_too or high_too < low else SAME


def torch_timer(programs: Programs, budget: float) -> dict[str, Reading]:
    """`Timer.blocked_autorange` of each program."""
    seen = {name: _timed(call, budget) for name, call in programs.items()}
    base, *others = seen
    medians = read({name: m.median for name, m in seen.items()}, sum(seen[base].raw_times))
    words = {name: careful(seen[base], seen[name]) for name in others}
    return {TORCH: medians, TORCH_CAREFUL: Reading(words, medians.ratios, medians.seconds)}


def _timed(call: Callable[[], Any], budget: float) -> Measurement:
    return Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=budget)


def best_of_n(programs: Programs, budget: float) -> dict[str, Reading]:
    """The fastest of the single calls that the budget allows."""
    times = {name: _single_calls(call, budget) for name, call in programs.items()}
    return {BEST: read({name: min(taken) for name, taken in times.items()}, sum(next(iter(times.values()))))}


def _single_calls(call: Callable[[], Any], budget: float) -> list[float]:
    taken: list[float] = []
    spent = 0.0
    while spent < budget:
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
        spent += taken[-1]
    return taken


def pytest_benchmark(programs: Programs, budget: float) -> dict[str, Reading]:
    """A session of pytest with one benchmark for each program, and the check that `--benchmark-compare-fail` makes.

    Raises:
        RuntimeError: the session failed.
    """
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    study = _Study(programs)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "test_sides.py"
        file.write_text(TEST, encoding="utf-8")
        plain = ["-q", "-c", os.devnull, "--rootdir", folder, "-p", "no:cacheprovider"]
        options = ["-p", "pytest_benchmark.plugin", f"--benchmark-max-time={budget}", *WARM]
        code = pytest.main([*plain, *options, str(file)], plugins=[study])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest-benchmark: the session ended with {code!r}")
    return {PYTEST_MIN: study.reading("min"), PYTEST_MEAN: study.reading("mean")}


class _Study:
    """A plugin of pytest that hands programs to the tests and keeps what they measured."""

    def __init__(self, programs: Programs) -> None:
        self.programs = programs
        self._found: dict[str, Any] = {}

    @pytest.fixture
    def study(self) -> _Study:
        return self

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        metafunc.parametrize("side", list(self.programs))

    def keep(self, side: str, benchmark: Any) -> None:
        self._found[side] = benchmark.stats

    def reading(self, statistic: str) -> Reading:
        from pytest_benchmark.utils import PercentageRegressionCheck  # noqa: PLC0415 -- no dependency of the project

        check = PercentageRegressionCheck(statistic, PERCENT)
        (_, base), *others = self._found.items()
        words = {
            name: SLOWER if check.fails(other, base) else FASTER if check.fails(base, other) else SAME
            for name, other in others
        }
        ratios = {name: base[statistic] / other[statistic] for name, other in others}
        return Reading(words, ratios, base["total"] * base["iterations"])


RIVALS = (torch_timer, pytest_benchmark, best_of_n)
