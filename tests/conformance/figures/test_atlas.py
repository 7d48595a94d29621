"""An atlas that is read again beside newer runs."""

import json
from dataclasses import replace

import pytest
from harness.made_by_hand import ENVIRONMENT
from harness.whole_runs import plan_of_zoo, verdict, write

from conformance import cli
from conformance.figures import atlas
from conformance.records.probes import ProbeFinding, ProbeRun
from conformance.run import documents

CELL = "net[compiled-fp32-cpu]"
LINK = "https://github.com/pytorch/pytorch/issues/1"
FINDING = ProbeFinding("lost", "EXPECTED", "a sum is lost", LINK, "two sums", "write it out")


def run(tmp_path, version, status="PASS", models=("net",), name=""):
    odd = {CELL: replace(verdict(CELL, status), text="wrong", reason="torch breaks it")}
    return write(tmp_path / f"{name}{version}", plan_of_zoo(models, torch=version), odd)


def probes(tmp_path, version, status):
    path = tmp_path / f"probes-{version}-{status}.json"
    finding = replace(FINDING, status=status)
    documents.write_probes(path, ProbeRun(replace(ENVIRONMENT, torch=version), "cpu", (finding,)))
    return path


def compat(tmp_path, name, *paths):
    """The files that `conformance compat` writes."""
    files = tmp_path / f"{name}.json", tmp_path / f"{name}.md"
    assert cli.main(["compat", *map(str, paths), "--json", str(files[0]), "--md", str(files[1])]) == 0
    return files


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
