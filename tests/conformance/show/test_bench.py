"""A bench as text, and its curves on the page of HTML, from results made by hand."""

import re
from dataclasses import replace

import pytest
from harness.made_by_hand import passed, plan_for, with_models
from harness.pages import Markup, drawn

from conformance.figures.speed import ceilings_job, compile_job, footprint_job
from conformance.records import measurements
from conformance.records.cell import Cell, SizedModel, Verdict
from conformance.records.measurements import CompileCost, CompileRun, Footprint, PerPass, Ratio, Reason
from conformance.show import bench, page
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
    variant = measurements.CellTiming(1e-3 / ratio.middle, 9, {base: ratio})
    return measurements.Timing(figure, {base: measurements.CellTiming(1e-3, 6), cell(mode, size).id: variant})


def contents(mode="compiled", compiling=("compiled",), first=(0.1, 2.1, 0.6), reached=0.5, ratios=RATIOS):
    """The mode takes 2.1 s to the first gradient, 0.6 s with a full cache, and eager takes 0.1 s."""
    eager, cold, warm = first
    results = {ceilings_job("cpu"): measurements.Ceilings({"fp32": 1e9}, ((1024.0, 1e9),))}
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


def table_of(found, size, number):
    """One of the two tables of a size: speeds, costs."""
    section = bench.bench_text(found).split(f"── net@{size} ")[1].split("──", 2)[1]
    return re.split(r"\n\n", section.strip())[number]


def line(found, size, mode, number=1):
    """The row of a mode in one of the two tables of a size."""
    return re.search(rf"^fp32 +{mode} .*$", table_of(found, size, number), re.MULTILINE)[0]


def changed(job, result):
    found = contents()
    return replace(found, results={**found.results, job: result})


def test_a_speed_is_printed_with_its_time_under_the_title_of_its_figure():
    assert "── net@16 (width 16), cpu ──" in bench.bench_text(contents())
    head = table_of(contents(), 16, 0).splitlines()[0]
    assert re.split(" {2,}", head.strip()) == ["precision", "mode", "forward", "forward and backward", "training step"]
    assert re.search(r"eager +1 ms +1 ms +1 ms", line(contents(), 16, "eager", 0))
    assert "2 ms  ▼0.50 [0.48, 0.52]" in line(contents(), 16, "compiled", 0)
    assert "500 µs  ▲2.00 [1.90, 2.10]" in line(contents(), 64, "compiled", 0)


def test_steps_to_break_even_count_the_low_end_of_the_gain_and_the_sizes_that_pay_are_listed():
    assert re.search(r" 4 200 +1 100 ", line(contents(), 64, "compiled"))
    assert re.search(r" never +never ", line(contents(), 16, "compiled"))
    text = bench.bench_text(contents())
    assert "net, forward and backward, cpu: compiled fp32 pays from width 64 on" in text


@pytest.mark.parametrize("low", [1.0, 0.99])
def test_a_gain_that_is_not_certain_never_pays(low):
    assert re.search(r" never +never ", line(contents(ratios=(Ratio(1.1, low, 1.2, 100),) * 2), 64, "compiled"))


@pytest.mark.parametrize("mode", ["compiled", "registered_by_somebody"])
def test_a_mode_that_compiles_has_warm_columns_and_another_has_none(mode):
    found = contents(mode, (mode,))
    assert re.search(r"first gradient, cold +warm .*break even, cold +warm ", table_of(found, 64, 1))
    assert re.search(r"2\.1 s +600 ms +9 +4 200 +1 100 +1 234 567 +1 200 +99 ", line(found, 64, mode))
    assert re.search(r"100 ms +6 +1 234 567 ", line(found, 64, "eager"))
    found = contents(mode, ())
    assert " warm " not in table_of(found, 64, 1)
    assert re.search(r"2\.1 s +9 +4 200 +1 234 567 ", line(found, 64, mode))


@pytest.mark.parametrize(
    ("reached", "text"), [(0.5, "50 %"), (0.0000123, "0.0012 %"), (1.2, "beats the ceiling: 120 %")]
)
def test_the_share_of_the_limit(reached, text):
    assert f" {text}" in line(contents(reached=reached), 16, "eager")


WRONG_CACHE = CompileRun(2.0, 2.1, "hit", Reason("cache hit", "it should have been a miss"))
WARM = (CompileRun(0.5, 0.6, "hit"), CompileRun(reason=Reason("crashed", "x")), CompileRun(0.5, 0.6, "hit"))


@pytest.mark.parametrize(
    ("cost", "seconds"),
    [
        (CompileCost(WRONG_CACHE), r"cache hit +9 "),
        (Reason("cache hit", "of the whole job"), r"cache hit +cache hit +9 "),
        (CompileCost(CompileRun(2.0, 2.1, "miss"), WARM), r"2\.1 s +crashed +9 +4 200 +1 234 567 "),
        (CompileCost(CompileRun(first_output=1.7)), r"1\.7 s +9 "),
    ],
)
def test_a_reason_takes_the_place_of_a_compile_time_and_the_first_output_that_of_a_gradient(cost, seconds):
    assert re.search(rf"compiled +{seconds}", line(changed(compile_job(cell("compiled", 64)), cost), 64, "compiled"))


def test_costs_that_could_not_be_counted_are_empty_and_a_bench_of_red_cells_has_measured_nothing():
    found = changed(footprint_job(cell("eager", 16)), Reason("timed out", "x"))
    assert re.fullmatch(r"fp32 +eager +100 ms +6 *", line(found, 16, "eager"))
    found = contents()
    red = {name: Verdict(name, "FAIL") for name in found.verdicts}
    assert bench.bench_text(Contents(found.plan, found.selected, red)) == "no cell passes, so nothing was measured"


def page_of(found):
    return drawn(replace(found, plan=replace(found.plan, measure="bench")))


def test_a_curve_goes_through_the_ratios_with_their_intervals_and_says_its_numbers():
    found = page_of(contents())
    assert '<path d="M0.0 75.0L200.0 25.0"/>' in found  # one half and two, between a quarter and four
    assert '<path class="span" d="M-2.0 76.5h4m-2 0V73.6m-2 0h4M198.0 26.9h4m-2 0V23.2m-2 0h4"/>' in found
    text = Markup(found).text
    assert "compiled: 16 ▼0.50 [0.48, 0.52], 64 ▲2.00 [1.90, 2.10]" in text
    assert "compiled pays from width 64 on" in text


def test_a_size_that_was_not_measured_leaves_a_gap_with_its_reason():
    missing = {f"speed gradient net@64[fp32-cpu] #{n}": Reason("timed out", "x") for n in (0, 1)}
    found = page_of(replace(contents(), results={**contents().results, **missing}))
    assert '<path d="M0.0 75.0"/>' in found
    assert "compiled: 16 ▼0.50 [0.48, 0.52], 64 timed out" in Markup(found).text


def test_there_are_curves_of_a_bench_at_several_sizes_alone():
    found = contents()
    one_size = {name: verdict for name, verdict in found.verdicts.items() if name.startswith("net@16")}
    assert "Speed by size" in page_of(found)
    assert "Speed by size" not in page_of(replace(found, verdicts=one_size))
    assert "Speed by size" not in drawn(found)  # a run that is no bench


def test_curves_take_room_from_the_numbers_of_cells(monkeypatch):
    monkeypatch.setattr(page, "LARGEST", page.PANEL)
    assert "the numbers of 4 cells had no room" in page_of(contents())
    assert "cells had no room" not in drawn(contents())
