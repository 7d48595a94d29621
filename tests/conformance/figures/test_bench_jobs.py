"""The jobs of a bench: which measurements are taken of which cells, and which compile runs."""

import pytest
from harness.made_by_hand import passed, plan_for

from conformance.figures import speed
from conformance.figures.speed import WARM_RUNS, ceilings_job, compile_job, footprint_job
from conformance.records.cell import Cell
from conformance.records.measurements import CompileCost, CompileRun, Reason
from conformance.store.run_files import Contents

MODES, PRECISIONS = ("eager", "compiled"), ("fp32", "amp_bf16")


def cell(mode, precision="fp32"):
    return Cell("net", mode, precision, "cpu")


def contents(*modes, figures=("forward", "gradient", "step"), compiling=(), status=None):
    plan = plan_for(*(cell(m, p) for p in PRECISIONS for m in modes), figures=figures, compiling_modes=compiling)
    verdicts = passed(plan, **(status or {}))
    return Contents(plan, tuple(verdicts), verdicts)


def bench(made):
    """The jobs of a bench by name, of all batches."""
    return {name: job for batch in speed.bench_jobs(made, None) for name, job in batch.items()}


def test_each_measurement_of_each_cell_that_passes_is_a_job():
    found = set(bench(contents(*MODES, status={"compiled_amp_bf16": "FAIL"})))
    green = [cell("eager"), cell("compiled"), cell("eager", "amp_bf16")]
    timed = {
        f"speed {figure} net[{precision}-cpu] #{index}"
        for figure in ("forward", "gradient", "step")
        for precision in PRECISIONS
        for index in (0, 1)
    }
    assert found == {"ceilings cpu", *timed, *map(footprint_job, green), *map(compile_job, green)}
    assert compile_job(cell("eager")) == "compile net[eager-fp32-cpu]"
    assert footprint_job(cell("eager")) == "footprint net[eager-fp32-cpu]"
    assert bench(contents("eager", status={"eager": "FAIL"})) == {}


def test_the_compile_cost_of_a_training_is_not_measured():
    found = bench(contents("eager", figures=("fit",)))
    assert footprint_job(cell("eager")) in found
    assert compile_job(cell("eager")) not in found


def test_the_ceilings_are_those_of_all_precisions_that_pass(monkeypatch):
    told = []
    monkeypatch.setattr(speed.pool, "result", lambda target, task, _: told.append((target.function, task)))
    for status, precisions in (({}, PRECISIONS), ({"eager_amp_bf16": "FAIL"}, ("fp32",))):
        bench(contents("eager", status=status))[ceilings_job("cpu")]()
        function, task = told.pop()
        assert function == "conformance.measure.ceilings:observe"
        assert (task.device, task.precisions) == ("cpu", precisions)


def compile_cost(monkeypatch, mode, compiling, caches):
    """The compile cost of a cell whose runs report these states of the cache, and the caches that the runs used."""
    states, used = iter(caches), []

    def result(target, task, deadline):
        assert target.function == "conformance.measure.costs:time_compilation"
        used.append(task.cache)
        return CompileRun(1.0, 2.0, next(states))

    monkeypatch.setattr(speed.pool, "result", result)
    found = bench(contents("eager", mode, compiling=compiling))[compile_job(cell(mode))]()
    return found, used


@pytest.mark.parametrize("mode", ["compiled", "graphed", "registered_by_somebody"])
def test_a_mode_that_compiles_is_run_cold_and_then_warm_with_one_cache(monkeypatch, mode):
    caches = ["miss", *["hit"] * WARM_RUNS]
    cost, used = compile_cost(monkeypatch, mode, (mode,), caches)
    assert [run.cache for run in (cost.cold, *cost.warm)] == caches
    assert all(run.reason is None for run in (cost.cold, *cost.warm))
    assert WARM_RUNS == 3
    assert (len(used), len(set(used))) == (4, 1)


@pytest.mark.parametrize("mode", ["scripted", "compiled", "graphed", "registered_by_somebody"])
def test_a_mode_that_does_not_compile_is_run_once(monkeypatch, mode):
    cost, used = compile_cost(monkeypatch, mode, (), [""])
    assert cost == CompileCost(CompileRun(1.0, 2.0, ""))
    assert len(used) == 1
    assert used != compile_cost(monkeypatch, "eager", (), ["miss"])[1]  # each cell has a cache of its own


def test_a_cache_in_an_unexpected_state_takes_the_place_of_the_seconds(monkeypatch):
    cost, _ = compile_cost(monkeypatch, "compiled", ("compiled",), ["hit", "hit", "miss", "off"])
    assert cost.cold.reason == Reason("cache hit", "it should have been a miss")
    missed, off = (Reason(f"cache {state}", "it should have been a hit") for state in ("miss", "off"))
    assert [run.reason for run in cost.warm] == [None, missed, off]


def test_a_run_that_ends_without_a_result_has_its_reason(monkeypatch):
    monkeypatch.setattr(speed.pool, "result", lambda *_: Reason("crashed", "x"))
    found = bench(contents("eager"))[compile_job(cell("eager"))]()
    assert found == CompileCost(CompileRun(reason=Reason("crashed", "x")))
