"""A bench as text, from results made by hand."""

import re
from dataclasses import replace

import pytest
from harness.made_by_hand import passed, plan_for, with_models

from conformance.figures.bench_jobs import ceilings_job, compile_job, footprint_job
from conformance.records.cell import Cell, SizedModel
from conformance.records.measurements import (
    Ceilings,
    CellTiming,
    CompileCost,
    CompileRun,
    Footprint,
    PerPass,
    Ratio,
    Reason,
    Timing,
)
from conformance.records.verdicts import Verdict
from conformance.show import bench
from conformance.store.run_files import Contents

SIZES = (16, 64)
FIGURES = ("forward", "gradient", "step")
RATIOS = (Ratio(0.5, 0.48, 0.52, 100), Ratio(2.0, 1.9, 2.1, 100))


def cell(mode, size):
    return Cell(f"net@{size}", mode, "fp32", "cpu")


def plan(mode, compiling):
    cells = (cell(m, size) for size in SIZES for m in ("eager", mode))
    sizes = {f"net@{size}": {"size": SizedModel("net", size, "width")} for size in SIZES}
    return with_models(plan_for(*cells, figures=FIGURES, compiling_modes=compiling), sizes)


def timing(figure, mode, size, ratio):
    """Calls of 1 ms in eager, and of the mode at a ratio to it."""
    base = cell("eager", size).id
    variant = CellTiming(1e-3 / ratio.middle, 9, {base: ratio})
    return Timing(figure, {base: CellTiming(1e-3, 6), cell(mode, size).id: variant})


def contents(mode="compiled", compiling=("compiled",), first=(0.1, 2.1, 0.6), reached=0.5, ratios=RATIOS):
    """The mode takes 2.1 s to the first gradient, 0.6 s with a full cache, and eager takes 0.1 s."""
    eager, cold, warm = first
    results = {ceilings_job("cpu"): Ceilings({"fp32": 1e9}, ((1024.0, 1e9),))}
    for size, ratio in zip(SIZES, ratios, strict=True):
        for figure in FIGURES:
            found = timing(figure, mode, size, ratio)
            results |= {f"speed {figure} net@{size}[fp32-cpu] #{index}": found for index in range(2)}
        for each in (cell("eager", size), cell(mode, size)):
            work = {"flops": PerPass(round(reached * 1e6), 0), "least_bytes": PerPass(10, 10)}
            results[footprint_job(each)] = Footprint(saved=1234567, held=1200, peak=99, **work)
        warm_runs = tuple(CompileRun(first_gradient=warm + n / 10) for n in (1, -1, 0))
        results[compile_job(cell(mode, size))] = CompileCost(CompileRun(first_gradient=cold), warm_runs)
        results[compile_job(cell("eager", size))] = CompileCost(CompileRun(first_gradient=eager))
    made = plan(mode, compiling)
    verdicts = passed(made)
    return Contents(made, tuple(verdicts), verdicts, results)


def table_of(text, size, number):
    """One of the two tables of a size: speeds, costs."""
    section = text.split(f"── net@{size} ")[1].split("──", 2)[1]
    return re.split(r"\n\n", section.strip())[number]


def line(text, size, mode, number):
    """The row of a mode in one of the two tables of a size."""
    return re.search(rf"^fp32 +{mode} .*$", table_of(text, size, number), re.MULTILINE)[0]


def test_a_speed_is_printed_with_its_time():
    text = bench.Bench(contents()).text()
    assert "── net@16 (width 16), cpu ──" in text
    assert re.search(r"eager +1 ms +1 ms +1 ms", line(text, 16, "eager", 0))
    assert "2 ms  ▼0.50 [0.48, 0.52]" in line(text, 16, "compiled", 0)
    assert "500 µs  ▲2.00 [1.90, 2.10]" in line(text, 64, "compiled", 0)


def test_the_columns_of_speeds_have_the_titles_of_the_figures():
    head = table_of(bench.Bench(contents()).text(), 16, 0).splitlines()[0]
    assert re.split(" {2,}", head.strip()) == ["precision", "mode", "forward", "forward and backward", "training step"]


def test_costs_are_bytes_and_the_time_to_the_first_gradient():
    row = line(bench.Bench(contents()).text(), 64, "compiled", 1)
    assert re.search(r"2\.1 s +600 ms +9 ", row)
    assert re.search(r"1 234 567 +1 200 +99 ", row)


def test_steps_to_break_even_count_the_low_end_of_the_gain():
    text = bench.Bench(contents()).text()
    # 1 ms of eager less 1/1.9 ms are saved in a step; 2.0 s more were spent at first, 0.5 s with a warm cache
    assert re.search(r" 4 200 +1 100 ", line(text, 64, "compiled", 1))
    assert re.search(r" never +never ", line(text, 16, "compiled", 1))


@pytest.mark.parametrize("low", [1.0, 0.99])
def test_a_gain_that_is_not_certain_never_pays(low):
    text = bench.Bench(contents(ratios=(Ratio(1.1, low, 1.2, 100),) * 2)).text()
    assert re.search(r" never +never ", line(text, 64, "compiled", 1))


@pytest.mark.parametrize("mode", ["compiled", "graphed", "registered_by_somebody"])
def test_a_mode_that_compiles_has_warm_columns(mode):
    text = bench.Bench(contents(mode, (mode,))).text()
    assert re.search(r"first gradient, cold +warm .*break even, cold +warm ", table_of(text, 64, 1))
    assert re.search(r"2\.1 s +600 ms +9 +4 200 +1 100 ", line(text, 64, mode, 1))
    assert re.search(r"100 ms +6 +1 234 567 ", line(text, 64, "eager", 1))


@pytest.mark.parametrize("mode", ["compiled", "graphed", "registered_by_somebody"])
def test_a_mode_that_does_not_compile_has_no_warm_columns(mode):
    text = bench.Bench(contents(mode, ())).text()
    assert " warm " not in table_of(text, 64, 1)
    assert re.search(r"2\.1 s +9 +4 200 +1 234 567 ", line(text, 64, mode, 1))


def test_the_share_of_the_limit():
    assert "50 %" in line(bench.Bench(contents(reached=0.5)).text(), 16, "eager", 1)
    assert "0.0012 %" in line(bench.Bench(contents(reached=0.0000123)).text(), 16, "eager", 1)


def test_a_share_above_the_limit_is_shown_as_an_error():
    assert "beats the ceiling: 120 %" in line(bench.Bench(contents(reached=1.2)).text(), 16, "eager", 1)


def test_the_sizes_at_which_a_variant_pays_are_listed():
    text = bench.Bench(contents()).text()
    assert "net, forward and backward, cpu: compiled fp32 pays from width 64 on" in text


def changed(job, result):
    found = contents()
    return replace(found, results={**found.results, job: result})


@pytest.mark.parametrize(
    "cost",
    [
        CompileCost(CompileRun(2.0, 2.1, "hit", Reason("cache hit", "it should have been a miss"))),
        Reason("cache hit", "of the whole job"),
    ],
)
def test_a_reason_takes_the_place_of_a_compile_time(cost):
    text = bench.Bench(changed(compile_job(cell("compiled", 16)), cost)).text()
    row = line(text, 16, "compiled", 1)
    assert "cache hit" in row
    assert "2.1 s" not in row


def test_one_warm_run_without_a_time_takes_the_warm_time_away():
    runs = (CompileRun(0.5, 0.6, "hit"), CompileRun(reason=Reason("crashed", "x")), CompileRun(0.5, 0.6, "hit"))
    cost = CompileCost(CompileRun(2.0, 2.1, "miss"), runs)
    row = line(bench.Bench(changed(compile_job(cell("compiled", 64)), cost)).text(), 64, "compiled", 1)
    assert re.search(r"2\.1 s +crashed +9 +4 200 +1 234 567 ", row)


def test_without_a_gradient_the_first_output_counts():
    cost = CompileCost(CompileRun(first_output=1.7))
    assert " 1.7 s " in line(bench.Bench(changed(compile_job(cell("compiled", 16)), cost)).text(), 16, "compiled", 1)


def test_costs_that_could_not_be_counted_are_empty():
    row = line(bench.Bench(changed(footprint_job(cell("eager", 16)), Reason("timed out", "x"))).text(), 16, "eager", 1)
    assert re.fullmatch(r"fp32 +eager +100 ms +6 *", row)


def test_a_bench_of_red_cells_has_measured_nothing():
    found = contents()
    red = {name: Verdict(name, "FAIL") for name in found.verdicts}
    text = bench.Bench(Contents(found.plan, found.selected, red)).text()
    assert text == "no cell passes, so nothing was measured"
