"""Cells and probes through torch versions: since when, where it broke, where it was mended; read beside new runs."""

import json
from dataclasses import replace

import pytest
from harness.made_by_hand import ENVIRONMENT
from harness.pages import Markup
from harness.whole_runs import MODES, at_first_case, plan_of_zoo, verdict, write

from conformance import cli
from conformance.figures import atlas
from conformance.records.plan import Judge
from conformance.records.tasks import ProbeFinding, ProbeRun
from conformance.store import files, run_files

CELL = "net[compiled-fp32-cpu]"
LOW = ("amp_fp16", "amp_bf16")
VERSIONS = ("2.4.1", "2.9.1", "2.10.0", "2.15.0+cpu")
REASON, LINK = "torch | breaks it", "https://github.com/pytorch/pytorch/issues/1"
FINDING = ProbeFinding("lost", "EXPECTED", "a sum is lost", LINK, "two sums", "write it out")
JUDGE = Judge("2026-11-28", "a2f07bf", "00ff")


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


def refused(capsys, *paths):
    """What is said, in one line, of paths that cannot be compared."""
    assert cli.main(["compat", *map(str, paths)]) == 4
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)
    return said.err


def declared(status, short):
    return replace(verdict(CELL, status), short=short, reason=REASON, link=LINK)


def document(tmp_path, *paths):
    """The JSON document of some paths."""
    return json.loads(compat(tmp_path, "compat", *paths)[0].read_text())


def row_of(told):
    """What a document says of `CELL`."""
    (found,) = [row for row in told["cells"] if (row["cell"]["mode"], row["cell"]["precision"]) == ("compiled", "fp32")]
    return found


def runs_of(tmp_path, *statuses):
    """A run in each version; one cell has these statuses."""
    found = []
    for version, status in zip(VERSIONS, statuses, strict=False):
        odd = {CELL: status} if status else {}
        found.append(write(tmp_path / version, plan_of_zoo(("net",), torch=version), odd))
    return found


@pytest.mark.parametrize(
    ("statuses", "since", "broke", "mended"),
    [
        (("PASS", "PASS", "PASS", "PASS"), "2.4.1", [], []),
        (("FAIL", "FAIL", "PASS", "PASS"), "2.10.0", [], []),
        (("PASS", "FAIL", "PASS", "PASS"), "2.4.1", ["2.9.1"], ["2.10.0"]),
        (("PASS", "CRASH", "FAIL", "FAIL"), "2.4.1", ["2.9.1"], []),
        (("FAIL", "PASS", "FAIL", "PASS"), "2.9.1", ["2.10.0"], ["2.15.0"]),
        (("FAIL", "FAIL", "FAIL", "FAIL"), "", [], []),
        (("PASS", "SKIPPED", "FAIL", "PASS"), "2.4.1", ["2.10.0"], ["2.15.0"]),
    ],
)
def test_a_cell_through_versions(tmp_path, statuses, since, broke, mended):
    told = document(tmp_path, *reversed(runs_of(tmp_path, *statuses)))
    assert told["versions"] == ["2.4.1", "2.9.1", "2.10.0", "2.15.0"]
    assert len(told["cells"]) == 9
    found = row_of(told)
    assert (found["since"], found["broke"], found["mended"]) == (since, broke, mended)


def test_a_declared_dtype_works_and_a_declared_failure_does_not(tmp_path, capsys):
    of = declared("UNSUPPORTED", "refused"), declared("EXPECTED", "FAIL"), declared("EXPECTED", "float32"), ""
    found = row_of(document(tmp_path, *runs_of(tmp_path, *of)))
    assert [(span["versions"], span["state"]["kind"]) for span in found["spans"]] == [
        (["2.4.1"], "does not work"),
        (["2.9.1"], "does not work"),
        (["2.10.0"], "another dtype"),
        (["2.15.0"], "works"),
    ]
    assert found["since"] == "2.10.0"
    out = capsys.readouterr().out
    assert f"(1) {REASON}  {LINK}" in out
    row = next(line for line in out.splitlines() if line.startswith("net  "))
    assert row.split() == "net compiled fp32 cpu – – ≠ ✓ 2.10.0 (1)".split()
    assert "8 of 9 cells, of 1 models, work in each of the 4 versions that judged them." in out
    assert "torch &#124; breaks it" in (tmp_path / "compat.md").read_text()


def test_modes_and_precisions_with_the_same_history_stand_in_one_row(tmp_path, capsys):
    low = {f"net[{mode}-{precision}-cpu]": "FAIL" for mode in ("eager", "scripted") for precision in LOW}
    red = {**low, CELL: "CRASH"}
    odd = {"2.4.1": low, "2.9.1": red}
    document(tmp_path, *(write(tmp_path / v, plan_of_zoo(("net",), torch=v), o) for v, o in odd.items()))
    told = capsys.readouterr().out
    changed, same = told.split("What is the same in every version that judged it:")
    rows = [[line.split() for line in part.splitlines() if line.startswith("net")] for part in (changed, same)]
    assert rows == [
        ["net compiled fp32 cpu ✓ ✗ 2.4.1 2.9.1".split()],
        ["net eager, scripted amp_fp16, amp_bf16 cpu ✗".split()],
    ]
    assert "4 of 9 cells, of 1 models, work in each of the 2 versions that judged them." in told


def test_shards_and_builds_of_one_version_are_one_column(tmp_path):
    first, second = (write(tmp_path / model, plan_of_zoo((model,))) for model in ("net", "gate"))
    told = document(tmp_path, first, second)
    assert (told["versions"], len(told["cells"])) == (["2.13.0"], 18)
    assert [atlas.version_of(name) for name in ("2.15.0+cpu", "2.16.0.dev2+cpu")] == ["2.15.0", "2.16.0.dev2"]


def test_probes_make_an_atlas(tmp_path, capsys):
    statuses = ("PASS", "EXPECTED", "FAIL", "UNSUPPORTED")
    told = document(tmp_path, *(probes(tmp_path, *at) for at in zip(VERSIONS, statuses, strict=True)))
    assert told["cells"] == []
    (fault,) = told["faults"]
    assert fault["states"] == {"2.4.1": "correct", "2.9.1": "shows", "2.10.0": "shows", "2.15.0": "UNSUPPORTED"}
    assert (fault["probe"]["link"], fault["probe"]["remedy"], fault["device"]) == (LINK, "write it out", "cpu")
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("lost"))
    assert row.split() == f"lost cpu ✓ ✗ ✗ · 2.9.1, 2.10.0 two sums {LINK}".split()
    page = (tmp_path / "compat.md").read_text()
    assert "write it out" in page
    assert LINK in page


def test_the_page_of_html_draws_each_version_and_links_its_reasons(tmp_path):
    file = tmp_path / "page.html"
    paths = (*runs_of(tmp_path, declared("UNSUPPORTED", "no"), ""), probes(tmp_path, "2.9.1", "EXPECTED"))
    assert cli.main(["compat", *map(str, paths), "--html", str(file)]) == 0
    found = Markup(file.read_text(encoding="utf-8"))
    words = " ".join(found.text.split())
    assert "net compiled · fp32 · cpu –✓2.9.1(1)" in words
    assert f"lost cpu ·✗two sums{LINK}write it out" in words
    assert found.links == ["#n1", LINK, LINK]  # of the row, of the probe, and of the reason


def test_what_cannot_be_compared_is_four_in_one_line(tmp_path, capsys):
    one, other = (write(tmp_path / name, plan_of_zoo(("net",))) for name in "ab")
    assert f"{one} and {other} both judge net[eager-fp32-cpu] with torch 2.13.0" in refused(capsys, one, other)
    assert "is no run folder" in refused(capsys, one, tmp_path / "nowhere")
    seeded = write(tmp_path / "seeded", plan_of_zoo(("net",), torch="2.15.0", seed=3))
    assert "these runs have different seeds, 0, 3" in refused(capsys, one, seeded)
    built = write(tmp_path / "built", plan_of_zoo(("net",), torch="main"))
    assert "torch 'main' is no version" in refused(capsys, built)
    (other / run_files.DONE).write_bytes((other / run_files.DONE).read_bytes()[:-1])
    assert str(other / run_files.DONE) in refused(capsys, other)
    old, new = (compat(tmp_path, version, run(tmp_path, version))[0] for version in ("2.4.1", "2.5.1"))
    capsys.readouterr()
    assert f"{old} and {new} are two files of compat" in refused(capsys, old, new)


def test_a_damaged_file_of_probes_is_four_in_one_line(tmp_path, capsys):
    path = tmp_path / "probes.json"
    files.write_document(path, "probes", ProbeRun(ENVIRONMENT, "cpu", (FINDING,)))
    assert "probe lost was run twice with torch 2.13.0 on cpu" in refused(capsys, path, path)
    whole = path.read_bytes()
    for data in (whole[:-1], whole.replace(b"two sums", b"two suns"), b"", b"{}", (tmp_path / "x").name.encode()):
        path.write_bytes(data)
        assert f"{path}: its checksum does not match" in refused(capsys, path)


def test_an_incomplete_run_counts_what_it_has(tmp_path, capsys):
    run = write(tmp_path / "run", plan_of_zoo(("net",)), {"net[eager-fp32-cpu]": "SKIPPED"}, left_out=[CELL])
    assert len(document(tmp_path, run)["cells"]) == 7
    assert "7 cells of 8, incomplete" in capsys.readouterr().out


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
    capsys.readouterr()
    told = refused(capsys, runs[0], judged_on(tmp_path, "3.13.0", "FAIL"))
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
    assert message in refused(capsys, path)
