"""An atlas that is read again beside newer runs."""

import json
from dataclasses import replace

import pytest
from harness.made_by_hand import ENVIRONMENT
from harness.whole_runs import MODES, at_first_case, plan_of_zoo, verdict, write

from conformance import cli
from conformance.figures import atlas
from conformance.records.plan import Judge
from conformance.records.probes import ProbeFinding, ProbeRun
from conformance.store import files

CELL = "net[compiled-fp32-cpu]"
LINK = "https://github.com/pytorch/pytorch/issues/1"
FINDING = ProbeFinding("lost", "EXPECTED", "a sum is lost", LINK, "two sums", "write it out")


def run(tmp_path, version, status="PASS", models=("net",), name=""):
    odd = {CELL: replace(verdict(CELL, status), text="wrong", reason="torch breaks it")}
    return write(tmp_path / f"{name}{version}", plan_of_zoo(models, torch=version), odd)


def probes(tmp_path, version, status):
    path = tmp_path / f"probes-{version}-{status}.json"
    finding = replace(FINDING, status=status)
    files.write_document(path, "probes", ProbeRun(replace(ENVIRONMENT, torch=version), "cpu", (finding,)))
    return path


def compat(tmp_path, name, *paths):
    """The files that `conformance compat` writes."""
    written = tmp_path / f"{name}.json", tmp_path / f"{name}.md"
    assert cli.main(["compat", *map(str, paths), "--json", str(written[0]), "--md", str(written[1])]) == 0
    return written


def test_a_file_and_the_rest_of_the_runs_are_the_same_as_all_runs(tmp_path):
    old = [run(tmp_path, "2.4.1"), run(tmp_path, "2.15.0", "FAIL"), probes(tmp_path, "2.4.1", "PASS")]
    new = [run(tmp_path, "2.10.0+cpu", "EXPECTED", ("net", "gate")), probes(tmp_path, "2.10.0", "FAIL")]
    json_of_old, _ = compat(tmp_path, "old", *old)
    json_of_both, page_of_both = compat(tmp_path, "both", json_of_old, *new)
    json_of_all, page_of_all = compat(tmp_path, "all", *old, *new)
    assert page_of_both.read_text() == page_of_all.read_text()
    assert json_of_both.read_text() == json_of_all.read_text()
    assert atlas.document(atlas.read(json_of_all)) == json_of_all.read_text()


def test_a_newer_run_replaces_what_it_judges(tmp_path):
    first, _ = compat(
        tmp_path, "first", run(tmp_path, "2.4.1", "FAIL", ("net", "gate")), probes(tmp_path, "2.4.1", "FAIL")
    )
    again, _ = compat(tmp_path, "again", first, run(tmp_path, "2.4.1", name="again"), probes(tmp_path, "2.4.1", "PASS"))
    told = json.loads(again.read_text())
    assert len(told["cells"]) == 18
    assert {span["state"]["kind"] for row in told["cells"] for span in row["spans"]} == {"works"}
    assert told["faults"][0]["states"] == {"2.4.1": "correct"}
    assert [maker["text"].split(" · ")[-1] for maker in told["makers"]] == ["18 cells", "9 cells"]
    whole, _ = compat(tmp_path, "whole", again, run(tmp_path, "2.4.1", "PASS", ("net", "gate"), "whole"))
    assert [maker["text"].split(" · ")[-1] for maker in json.loads(whole.read_text())["makers"]] == ["18 cells"]


JUDGE = Judge("2026-11-28", "a2f07bf", "00ff")


def judged_on(tmp_path, python, status="PASS", modes=MODES, day="2026-11-28"):
    plan = plan_of_zoo(("net",), torch="2.15.0", environment={"python": python}, judge=replace(JUDGE, day=day))
    plan = replace(plan, cells=tuple(p for p in plan.cells if p.cell.mode in modes))
    return write(tmp_path / f"{python}-{day}", plan, {CELL: status} if "compiled" in modes else ())


def test_the_file_holds_date_revision_and_judge_of_each_run(tmp_path):
    found, page = compat(tmp_path, "one", judged_on(tmp_path, "3.11.7"))
    (maker,) = json.loads(found.read_text())["makers"]
    assert maker["judge"] == {"day": "2026-11-28", "revision": "a2f07bf", "code": "00ff"}
    assert (maker["python"], maker["devices"]) == ("3.11", ["cpu"])
    assert maker["cells"] == {"eager": 3, "scripted": 3, "compiled": 3}
    assert "9 cells · 2026-11-28 · a2f07bf, code 00ff" in page.read_text()


def test_cells_that_judged_their_first_case_alone_do_not_count(tmp_path):
    quick = write(tmp_path / "quick", at_first_case(plan_of_zoo(("net",), torch="2.15.0")))
    found, page = compat(tmp_path, "one", quick)
    told = json.loads(found.read_text())
    assert {row["cell"]["mode"] for row in told["cells"]} == {"eager", "scripted"}
    assert told["makers"][0]["cells"] == {"eager": 3, "scripted": 3}
    assert "6 cells of 9, compiled at the first case does not count" in page.read_text()


def test_what_judged_a_mode_is_left_out_when_the_mode_is_judged_anew(tmp_path):
    first, _ = compat(tmp_path, "first", judged_on(tmp_path, "3.11.7"))
    again = judged_on(tmp_path, "3.11.9", modes=("eager", "scripted"), day="2026-12-01")
    found, _ = compat(tmp_path, "again", first, again)
    makers = json.loads(found.read_text())["makers"]
    assert [(maker["judge"]["day"], maker["cells"]) for maker in makers] == [
        ("2026-11-28", {"compiled": 3}),
        ("2026-12-01", {"eager": 3, "scripted": 3}),
    ]


def test_two_pythons_may_judge_the_same_cells_alike(tmp_path, capsys):
    runs = [judged_on(tmp_path, "3.11.7"), judged_on(tmp_path, "3.14.1")]
    found, _ = compat(tmp_path, "both", *runs)
    both = json.loads(found.read_text())
    assert [maker["python"] for maker in both["makers"]] == ["3.11", "3.14"]
    assert len(both["cells"]) == 9
    anew, _ = compat(tmp_path, "anew", found, judged_on(tmp_path, "3.14.2"))
    assert [maker["text"][:28] for maker in json.loads(anew.read_text())["makers"]] == [
        "torch 2.15.0 · Python 3.11.7",
        "torch 2.15.0 · Python 3.14.2",
    ]
    assert cli.main(["compat", str(runs[0]), str(judged_on(tmp_path, "3.13.0", "FAIL"))]) == 4
    told = capsys.readouterr().err
    assert f"{CELL} with torch 2.15.0 depends on Python: red with 3.13 in {tmp_path / '3.13.0'}" in told


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"since": "2.4.1"', '"since": 2', "_Document.cells: _Row.since: want str, got int"),
        ('"versions": ["2.4.1"]', '"versions": ["two"]', "torch 'two' is no version"),
        ('"torch": "2.4.1"', '"torch": "main"', "torch 'main' is no version"),
        ('"faults"', '"fault"', "_Document has an unknown field 'fault'"),
    ],
)
def test_a_damaged_atlas_is_four_in_one_line(tmp_path, capsys, before, after, message):
    path, _ = compat(tmp_path, "page", run(tmp_path, "2.4.1"))
    path.write_text(path.read_text().replace(before, after))
    capsys.readouterr()
    assert cli.main(["compat", str(path)]) == 4
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)
    assert message in said.err


def test_two_atlases_are_refused(tmp_path, capsys):
    one, _ = compat(tmp_path, "one", run(tmp_path, "2.4.1"))
    other, _ = compat(tmp_path, "other", run(tmp_path, "2.5.1"))
    assert cli.main(["compat", str(one), str(other)]) == 4
    assert f"{one} and {other} are two files of compat" in capsys.readouterr().err
