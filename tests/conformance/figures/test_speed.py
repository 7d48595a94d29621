"""Speeds beside verdicts: which cells are timed together, and what their processes find together."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from harness.made_by_hand import passed, plan_for, timed, with_models

from conformance.figures import speed
from conformance.records.cell import Cell, Observation
from conformance.records.measurements import CellTiming, Reason, Timing
from conformance.records.plan import PlannedCell
from conformance.store.run_files import Contents
from zoo.catalog import get_spec
from zoo.expect import Expect

MODES, PRECISIONS = ("eager", "scripted", "compiled"), ("fp32", "amp_bf16")
DTYPE = Expect(outcome="dtype", reason="autocast", tensor="output", dtype="float32")
WRONG = Expect(outcome="FAIL", reason="it is wrong", tensor="output")
EAGER = "net[eager-fp32-cpu]"
JOBS = ["speed default net[fp32-cpu] #0", "speed default net[fp32-cpu] #1"]


def cell(mode, precision):
    return Cell("net", mode, precision, "cpu")


def name(mode, precision):
    return cell(mode, precision).id


def plan(**expect):
    cells = [PlannedCell(cell(m, p), expect=tuple(expect.get(f"{m}_{p}", ()))) for p in PRECISIONS for m in MODES]
    return plan_for(*cells)


def groups(expect=None, **status):
    made = plan(**(expect or {}))
    return speed.timing_groups(made, passed(made, **status))


def test_every_precision_has_a_group_against_eager_fp32():
    single, half = groups()
    assert single.name == "net[fp32-cpu]"
    assert single.timed == [name(m, "fp32") for m in MODES]
    assert half.name == "net[amp_bf16-cpu]"
    timed_cells = [(p.cell.mode, p.cell.precision) for p in half.cells]
    assert timed_cells == [("eager", "fp32"), *((m, "amp_bf16") for m in MODES)]
    assert half.timed == [name(m, "amp_bf16") for m in MODES]
    assert single.jobs(speed.DEFAULT) == JOBS


@pytest.mark.parametrize("status", ["FAIL", "ERROR", "UNSUPPORTED", "INCONCLUSIVE", "STALE"])
def test_a_cell_that_does_not_pass_has_no_speed(status):
    single, _ = groups(compiled_fp32=status)
    assert name("compiled", "fp32") not in single.timed
    (refused,) = single.refused
    assert (refused.cell, refused.seconds) == (name("compiled", "fp32"), None)
    assert refused.reason == Reason(status, "only a cell that passes has a speed")
    assert refused.lacks_verdict


def test_a_declared_dtype_passes_and_a_declared_failure_does_not():
    for declared, is_timed in (([DTYPE], True), ([WRONG], False), ([DTYPE, WRONG], False)):
        _, half = groups({"scripted_amp_bf16": declared}, scripted_amp_bf16="EXPECTED")
        assert (name("scripted", "amp_bf16") in half.timed) is is_timed


def test_without_its_baseline_nothing_has_a_speed():
    for group in groups(eager_fp32="FAIL"):
        assert group.cells == ()
        assert group.jobs(speed.DEFAULT) == []
        others = [s for s in group.refused if s.cell != EAGER]
        assert {s.reason for s in others} == {Reason("no baseline", f"{EAGER} is FAIL")}
        assert not any(s.lacks_verdict for s in others)


def test_a_skipped_cell_and_one_without_a_verdict_are_in_no_group():
    made = plan()
    skipped, *others = made.cells
    made = replace(made, cells=(replace(skipped, skip="absent"), *others))
    verdicts = passed(made)
    del verdicts[name("compiled", "fp32")]
    single, _ = speed.timing_groups(made, verdicts)
    assert [s.cell for s in single.refused] == [name("scripted", "fp32")]
    assert single.refused[0].reason == Reason("no baseline", f"{EAGER} is not judged")


def test_the_measurable_cells_are_those_that_pass():
    made = plan()
    verdicts = passed(made, compiled="CRASH")
    found = speed.measurable(Contents(made, tuple(verdicts), verdicts))
    assert found == [cell(m, p) for p in PRECISIONS for m in ("eager", "scripted")]


def test_a_speed_pools_the_timings_of_two_processes():
    assert speed.PROCESSES == 2
    seconds, more = timed(scripted=2.0), timed(scripted=2.2, seconds=2e-3, warm_calls=9)
    found = speed.pooled_speed(name("scripted", "fp32"), [seconds, more])
    ratio = found.ratios[EAGER]
    assert (found.figure, found.seconds, found.warm_calls) == ("gradient", pytest.approx(5e-4), 9)
    assert (ratio.low, ratio.high, ratio.processes) == (pytest.approx(1.98), pytest.approx(2.222), 2)


def test_a_cell_that_one_process_could_not_measure_has_no_figure():
    noise, crash = Reason("too noisy", "all of it"), Reason("crashed", "x")
    broken = Timing("gradient", {EAGER: CellTiming(reason=noise)})
    found = speed.pooled_speed(EAGER, [timed(), broken])
    assert (found.seconds, found.ratios, found.reason) == (None, {}, noise)
    assert speed.pooled_speed(EAGER, [crash, broken]).reason == crash
    assert speed.pooled_speed(EAGER, [crash, crash]).figure == ""


@pytest.mark.parametrize(
    ("figures", "default"),
    [(("forward", "gradient", "step"), "gradient"), (("forward",), "forward"), (("fit",), "fit")],
)
def test_a_model_is_timed_by_its_default_figure_if_nobody_asks(figures, default):
    assert speed.default_figure(figures) == default


def contents(*results):
    made = plan_for(*(cell(m, "fp32") for m in MODES))
    verdicts = passed(made)
    return Contents(made, tuple(verdicts), verdicts, dict(zip(JOBS, results, strict=False)))


@pytest.mark.parametrize(
    ("first", "needed"),
    [
        (timed(scripted=1.5, compiled=1.035), True),
        (timed(scripted=1.0, compiled=1.5), True),
        (timed(scripted=1.035, compiled=0.965), False),  # too noisy to say, and a second interval makes it no narrower
        (timed(scripted=1.5, compiled=2.0, seconds=1e-4), False),  # the speed of starting ops
        (Timing("gradient", {name(m, "fp32"): CellTiming(reason=Reason("too noisy")) for m in MODES}), False),
        (Reason("crashed", "x"), False),
    ],
    ids=["faster", "same and faster", "noisy", "launch-bound", "no figure", "crashed"],
)
def test_a_second_process_runs_where_it_can_change_a_figure(first, needed):
    assert [speed.is_needed(job, {}) for job in JOBS] == [True, True]
    assert [speed.is_needed(job, {JOBS[0]: first}) for job in JOBS] == [False, needed]
    assert bool(speed.speeds(contents(first))) is not needed
    assert bool(speed.completed_speeds(contents(first), JOBS[0])) is not needed


def test_only_the_precisions_that_were_asked_for_are_timed():
    made = with_models(plan(), {"net": {"timed": ("fp32",)}})
    assert [group.name for group in speed.timing_groups(made, passed(made))] == ["net[fp32-cpu]"]
    none = with_models(made, {"net": {"timed": ()}})
    assert speed.timing_groups(none, passed(none)) == []


def test_the_heart_of_the_zoo_is_in_it_and_has_working_sizes():
    specs = [get_spec(name) for name in speed.HEART]
    assert [spec.name for spec in specs if spec.fit is None and not (spec.scale and spec.scale.working)] == []


def test_a_group_has_no_speeds_until_all_its_results_are_stored():
    result = timed(scripted=1.0, compiled=1.0)
    assert speed.speeds(contents(result)) == {}
    assert speed.completed_speeds(contents(result), JOBS[0]) == []
    both = contents(result, result)
    assert set(speed.speeds(both)) == {name(m, "fp32") for m in MODES}
    assert [s.cell for s in speed.completed_speeds(both, JOBS[1])] == [name(m, "fp32") for m in MODES]
    assert speed.completed_speeds(both, "footprint net[eager-fp32-cpu]") == []


@pytest.mark.parametrize("size", [2, 4, 32])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 40, 100])
def test_the_processes_of_one_group_are_in_batches_one_after_the_other(monkeypatch, size, count):
    monkeypatch.setattr(speed.pool, "BATCH", size)
    processes = {group: 1 + group % 3 for group in range(count)}
    groups = [{(group, process): object() for process in range(many)} for group, many in processes.items()]
    made = speed.in_batches([{}, *groups])
    assert {name: job for batch in made for name, job in batch.items()} == {n: j for g in groups for n, j in g.items()}
    for batch in made:
        assert len({group for group, _ in batch}) == len(batch) <= size
    place = {name: number for number, batch in enumerate(made) for name in batch}
    assert all(place[group, process] == place[group, 0] + process for group, process in place)


def test_without_a_reference_nothing_is_timed():
    nothing = Observation("no oracle", message="float64 is not supported")
    executor = SimpleNamespace(reference=lambda _: nothing)
    (job,), _ = (batch.values() for batch in speed.default_jobs(contents(), executor))
    assert job() == Reason("no reference", "float64 is not supported")


@pytest.mark.parametrize(
    ("asked", "taken", "budget"), [(speed.DEFAULT, "gradient", speed.DEFAULT_BUDGET), ("step", "step", speed.BUDGET)]
)
def test_a_process_is_told_its_cells_figure_budget_and_index(monkeypatch, asked, taken, budget):
    told = []
    monkeypatch.setattr(speed.pool, "result", lambda *task: told.append(task))
    made = contents()
    (group,) = speed.timing_groups(made.plan, made.verdicts)
    executor = SimpleNamespace(reference=lambda model: f"{model}.reference")
    for job in speed.timing_jobs(made.plan, group, executor, asked).values():
        job()
    assert [target.function for target, _, _ in told] == ["conformance.measure.side_by_side:observe"] * 2
    for index, (_, task, deadline) in enumerate(told):
        assert [c.cell for c in task.cells] == [cell(m, "fp32") for m in MODES]
        assert {c.reference for c in task.cells} == {"net.reference"}
        told_of = (task.figure, task.budget, task.process_index, task.keep_samples)
        assert told_of == (taken, budget, index, asked == "step")
        assert deadline == made.plan.deadline
