"""A bench as text, from answers made by hand; and one real bench."""

import re
from xml.etree import ElementTree as ET

import pytest
from test_cli import conformance, run_folder

from conformance.show import bench
from conformance.figures.ratio import Ratio
from conformance.records import Verdict
from conformance.run.store import Contents

MODES = ("eager", "compiled")
SIZES = (16, 64)
BYTE_RATES = [[1024, 1e9]]


def cell_name(mode, size):
    return f"net@{size}[{mode}-fp32-cpu]"


def plan():
    cells = [
        {"model": f"net@{size}", "mode": mode, "precision": "fp32", "device": "cpu", "skip": "", "expect": []}
        for size in SIZES
        for mode in MODES
    ]
    return {
        "cells": cells,
        "models": {f"net@{size}": {} for size in SIZES},
        "figures": {f"net@{size}": ["forward", "gradient", "step"] for size in SIZES},
        "scales": {f"net@{size}": {"model": "net", "knob": "width", "size": size} for size in SIZES},
    }


def timed(size, seconds, ratio):
    low_high = (ratio.middle, ratio.low, ratio.high, 100)
    base = {"seconds": seconds, "warm_calls": 6, "ratios": {}}
    faster = {"seconds": seconds / ratio.middle, "warm_calls": 9}
    ratios = {cell_name("eager", size): Ratio(*low_high).to_json()}
    return {"members": {cell_name("eager", size): base, cell_name("compiled", size): {**faster, "ratios": ratios}}}


def contents(*, first=(0.1, 2.1, 0.6), reached=0.5, ratios=((0.5, 0.48, 0.52), (2.0, 1.9, 2.1))):
    """Calls of 1 ms in eager; compiled takes 2.1 s to the first gradient, 0.6 s from the cache, eager 0.1 s."""
    eager, cold, warm = first
    answers = {"ceilings cpu": {"flop_rates": {"fp32": 1e9}, "byte_rates": BYTE_RATES}}
    for size, ratio in zip(SIZES, ratios, strict=True):
        for figure in ("forward", "gradient", "step"):
            for lot in range(2):
                answer = {"figure": figure, **timed(size, 1e-3, Ratio(*ratio, 100))}
                answers[f"speed {figure} net@{size}[fp32-cpu] #{lot}"] = answer
        work = {"flops": {"forward": reached * 1e6, "both": 0}, "least_bytes": {"forward": 10, "both": 10}}
        for mode in MODES:
            counted = {"saved": 1234567, "held": 1200, "peak": 99, **work}
            answers[f"footprint {cell_name(mode, size)}"] = counted
        runs = {"cold": {"first_gradient": cold}, "warm": [{"first_gradient": warm + n / 10} for n in (-1, 0, 1)]}
        answers[f"compile {cell_name('compiled', size)}"] = runs
        answers[f"compile {cell_name('eager', size)}"] = {"cold": {"first_gradient": eager}, "warm": []}
    verdicts = {cell_name(m, size): Verdict(cell_name(m, size), "PASS") for size in SIZES for m in MODES}
    return Contents(plan(), tuple(verdicts), verdicts, answers)


def line(text, size, mode, table):
    """The row of a mode in one of the two tables of a size."""
    section = text.split(f"── net@{size} ")[1].split("──", 1)[1]
    return re.findall(rf"^fp32 +{mode} .*$", section, re.MULTILINE)[table]


def test_speeds_stand_with_their_time():
    text = bench.Bench(contents()).text()
    assert "── net@16 (width 16), cpu ──" in text
    assert re.search(r"eager +1 ms +1 ms +1 ms", line(text, 16, "eager", 0))
    assert "2 ms  ▼0.50 [0.48, 0.52]" in line(text, 16, "compiled", 0)
    assert "500 µs  ▲2.00 [1.90, 2.10]" in line(text, 64, "compiled", 0)


def test_bytes_and_first_calls():
    row = line(bench.Bench(contents()).text(), 64, "compiled", 1)
    assert re.search(r"2\.1 s +600 ms +9 ", row)
    assert "1 234 567" in row


def test_steps_to_break_even_count_the_sure_part_of_the_gain():
    text = bench.Bench(contents()).text()
    # 1 ms of eager less 1/1.9 ms are saved in a step; 2.0 s more were spent at first, 0.5 s with a warm cache
    assert re.search(r" 4 200 +1 100 ", line(text, 64, "compiled", 1))
    assert re.search(r" never +never ", line(text, 16, "compiled", 1))


@pytest.mark.parametrize("low", [1.0, 0.99])
def test_a_gain_that_is_not_sure_never_pays(low):
    text = bench.Bench(contents(ratios=((1.1, low, 1.2), (1.1, low, 1.2)))).text()
    assert re.search(r" never +never ", line(text, 64, "compiled", 1))


def test_the_share_of_the_limit():
    assert "50 %" in line(bench.Bench(contents(reached=0.5)).text(), 16, "eager", 1)
    assert "0.0012 %" in line(bench.Bench(contents(reached=0.0000123)).text(), 16, "eager", 1)


def test_more_than_the_limit_is_an_error():
    assert "beats the ceiling: 120 %" in line(bench.Bench(contents(reached=1.2)).text(), 16, "eager", 1)


def test_where_it_pays():
    text = bench.Bench(contents()).text()
    assert "net, forward and backward, cpu: compiled fp32 pays from width 64 on" in text


def test_a_reason_stands_where_a_compile_time_would():
    found = contents()
    found.answers[f"compile {cell_name('compiled', 16)}"]["cold"]["reason"] = "cache hit: it should have been a miss"
    assert "cache hit" in line(bench.Bench(found).text(), 16, "compiled", 1)


def test_plots_have_every_curve_and_are_the_same_every_time(tmp_path):
    written = bench.write_plots(contents(), tmp_path)
    assert {path.name for path in written} == {f"net-{f}-cpu.svg" for f in ("forward", "gradient", "step")}
    for path in written:
        assert "compiled fp32" in "".join(ET.fromstring(path.read_text()).itertext())
    assert [p.read_bytes() for p in bench.write_plots(contents(), tmp_path)] == [p.read_bytes() for p in written]


def test_nothing_green_says_so():
    found = contents()
    red = {name: Verdict(name, "FAIL") for name in found.verdicts}
    assert bench.Bench(Contents(found.plan, found.selected, red)).text() == "nothing is green, so nothing was measured"


NETS = """
import torch
from zoo import Case, Scale, Spec

class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x):
        return self.linear(x).sin()

def inputs(width, g):
    return (torch.randn(8, width, generator=g),)

SPEC = Spec(
    name="net", summary="a net", source="a test", build=lambda: Net(4),
    cases=(Case(name="typical", inputs=lambda g: inputs(4, g)),),
    scale=Scale(knob="width", sizes=(4, 16), build=Net, inputs=inputs),
)
"""


def test_a_bench_from_end_to_end(tmp_path):
    (tmp_path / "nets.py").write_text(NETS)
    axes = ("--mode=eager", "--mode=compiled", "--precision=fp32", "--device=cpu")
    code, output = conformance(tmp_path, "bench", "nets.py", *axes, TMPDIR=str(tmp_path))
    assert code == 0, output
    for size in (4, 16):
        assert re.search(rf"── net@{size} \(width {size}\), cpu ──", output)
        assert re.search(rf"net@{size} +fp32 +✓", output)
    # the weight gradient needs x and the sine what came into it: 8 rows of 4 bytes each
    assert re.search(r"^fp32 +eager .* 128 +128 ", output, re.MULTILINE)
    assert re.search(r"^fp32 +compiled +[\d.]+ m?s +[\d.]+ m?s", output, re.MULTILINE)
    folder = run_folder(output)
    jobs = [line for line in (folder / "cells.jsonl").read_text().splitlines() if '"job"' in line]
    assert len(jobs) == 1 + 2 * (3 * 2 + 2 + 2)  # ceilings; at each size three figures twice, two costs of two cells
    code, shown = conformance(tmp_path, "show", str(folder))
    assert code == 0
    assert "── net@4 (width 4), cpu ──" in shown
