"""The cells of a run as CSV."""

import csv
import io

from harness import whole_runs
from harness.made_by_hand import timed

from conformance.commands import stored
from conformance.records.cell import Verdict
from conformance.records.convert import to_json
from conformance.records.measurements import Result
from conformance.show import sheet


def test_each_judged_cell_is_a_line_and_a_text_breaks_none(tmp_path):
    red = "net[scripted-fp32-cpu]"
    results = {f"speed default net[fp32-cpu] #{n}": to_json(timed(compiled=2.0), Result) for n in (0, 1)}
    left_out = ("net[eager-amp_fp16-cpu]",)
    folder = whole_runs.write(
        tmp_path / "run",
        whole_runs.plan_of_zoo(("net",), measure="speed"),
        {red: Verdict(red, "FAIL", 'it broke, "so"\nand more', 3.0)},
        left_out=left_out,
        results=results,
    )
    stored.show_run(folder, csv=tmp_path / "cells.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "cells.csv").read_text("utf-8"))))
    assert [*rows[0]] == sheet.HEAD
    assert len(rows) == 8
    assert {len(row) for row in rows} == {len(sheet.HEAD)}
    found = {(row["mode"], row["precision"]): row for row in rows}
    assert found["scripted", "fp32"]["verdict"] == "FAIL"
    assert found["scripted", "fp32"]["text"].startswith('it broke, "so"')
    assert (found["compiled", "fp32"]["margin"], found["compiled", "fp32"]["faster"]) == ("0.1", "2.0")
    assert found["eager", "fp32"]["call_seconds"] == "0.001"
    assert found["scripted", "amp_bf16"]["call_seconds"] == ""
