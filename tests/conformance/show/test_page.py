"""The page of HTML that draws a run, read with a parser, as a browser without scripts reads it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from harness.hostile import TEXTS
from harness.made_by_hand import passed, plan_for, timed, with_models
from harness.pages import FOLDER, Markup, drawn, hostile, hostile_atlas, large
from harness.processes import fresh
from harness.sources import ROOT
from harness.stored_runs import cell, plan_of
from harness.stored_runs import write as store

from conformance.commands import stored
from conformance.errors import UsageError
from conformance.figures import atlas
from conformance.judging import toml_file
from conformance.records.cell import Cell, Verdict
from conformance.records.plan import OwnModel, PlannedCell, Shard, SpecLocation
from conformance.show import comparisons, page
from conformance.show.text import visible
from conformance.store import run_files
from conformance.store.run_files import Contents, Summary

EAGER, SCRIPTED = (Cell("net", mode, "fp32", "cpu") for mode in ("eager", "scripted"))
COMMANDS = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]")


def run_of(*cells, **fields):
    """A complete run of these cells, which pass."""
    plan = plan_for(*(cells or (EAGER, SCRIPTED)), measure="speed")
    return replace(Contents(plan, tuple(p.id for p in plan.cells), passed(plan), complete=True), **fields)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
@pytest.mark.parametrize("compact", [False, True])
def test_no_text_of_a_model_becomes_markup_or_a_command(text, compact):
    found = drawn(hostile(text), folder=Path(f"folder {text}"), compact=compact)
    bad, plain = Markup(found), Markup(drawn(hostile("x"), compact=compact))
    assert set(bad.tags) <= set(plain.tags)
    assert set(bad.attributes) <= set(plain.attributes)
    assert {link for link in bad.links if not link.startswith("#")} <= {"https://a.test"}
    assert not COMMANDS.search(found.encode())  # which no half of a surrogate pair withstands
    if 0 < len(text) <= page.LONGEST:
        assert visible(text) in bad.text
    assert len(bad.scripts) == (0 if compact else 2)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_no_text_of_an_atlas_becomes_markup_or_a_command(text):
    found = comparisons.atlas_html(hostile_atlas(text))
    bad, plain = Markup(found), Markup(comparisons.atlas_html(hostile_atlas("x")))
    assert set(bad.tags) <= set(plain.tags) - {"script"}
    assert set(bad.links) <= {"#n1", "#n2", "https://a.test"}
    assert not COMMANDS.search(found.encode())


def test_a_page_of_a_thousand_cells_is_smaller_than_a_megabyte_and_says_every_verdict_without_scripts():
    contents = large()
    found = drawn(contents)
    assert len(found.encode()) < 1_000_000
    text = Markup(found).text
    assert len(contents.verdicts) > 1_000
    assert [v.cell for v in contents.verdicts.values() if v.text not in text] == []
    assert found.count('<td id="c') == len(contents.verdicts)
    assert "http:" not in found.replace('startswith("http:', "")


def lacks(contents, **options):
    """The sentences at the head of a page that say what is missing."""
    found = re.search(r'<div class="incomplete".*?<ul>(.*?)</ul>', drawn(contents, **options), re.DOTALL)
    return re.findall(r"<li>(.*?)</li>", found[1]) if found else []


def test_the_head_says_what_is_missing_and_nothing_of_a_complete_run():
    again = f"; conformance run nowhere --resume &#39;{FOLDER}&#39; completes it"
    assert lacks(run_of()) == []
    assert lacks(run_of(complete=False, torn_bytes=7)) == [
        f"the run did not end{again}",
        "the last line of cells.jsonl is unfinished, 7 bytes were left out",
    ]
    assert lacks(run_of(verdicts={EAGER.id: Verdict(EAGER.id, "PASS")})) == [f"1 cell not judged: {SCRIPTED.id}{again}"]
    edited = run_of(verdicts={EAGER.id: Verdict(EAGER.id, "PASS")}, changed=("/net.py",))
    assert lacks(edited) == [
        f"1 cell not judged: {SCRIPTED.id}; /net.py changed while the run went on, so start a new one"
    ]
    assert lacks(run_of(selected=(EAGER.id,))) == ["1 of 2 planned cells were chosen"]
    skipped = {EAGER.id: Verdict(EAGER.id, "SKIPPED", "there is none")}
    assert lacks(run_of(PlannedCell(EAGER, skip="x"), verdicts=skipped)) == ["cpu: 1 cell skipped, there is none"]
    plan = replace(plan_of("a"), shard=Shard(1, 2, (0,), 2, ("fp32",), ""))
    shard = Contents(plan, (cell("a"),), {cell("a"): Verdict(cell("a"), "PASS")}, complete=True)
    assert lacks(shard) == ["this is shard 1/2, 1 of 2 cells; conformance merge joins the shards"]
    joined = Contents(replace(plan, shard=None, lacks="shard 2 of 2"), shard.selected, shard.verdicts)
    assert lacks(joined) == ["shard 2 of 2 missing: conformance merge joins all of them into a new run"]
    assert lacks(run_of(complete=False), folder=None) == []  # of `conformance.check`, which keeps none


def test_an_error_is_drawn_beside_its_budget_and_a_speed_with_its_interval():
    results = dict.fromkeys((f"speed default net[fp32-cpu] #{n}" for n in (0, 1)), timed(scripted=2.0))
    margins = {EAGER.id: Verdict(EAGER.id, "PASS", margin=0.5), SCRIPTED.id: Verdict(SCRIPTED.id, "PASS", margin=0.0)}
    found = drawn(run_of(results=results, verdicts=margins))
    assert '<b>0.50</b></span><span class="m" style="--m:35.0%"></span><span class="s">1 ms</span></td>' in found
    shown = '<span class="s">▲2.00 [1.98, 2.02]</span><span class="x" style="--l:66.4%;--h:66.9%"></span></td>'
    assert shown in found
    assert page._reach(1.0) == page.BUDGET_AT < page._reach(1.1) < page._reach(900) < page._reach(float("inf")) == 100


def data_of(contents):
    """What the scripts of a page know."""
    return json.loads(Markup(drawn(contents)).scripts[0])


def test_the_scripts_know_each_number_and_red_cells_come_first_if_room_is_scarce(monkeypatch):
    contents = hostile("words")
    known = data_of(contents)
    numbers = known["cells"][1][7]
    tensors = [known["table"][tensor] for tensor, *_ in numbers]
    assert tensors == ["words", "x"]
    rows = [known["table"][place] for place in numbers[0][3]]
    assert rows[0] == "structure"
    assert [known["table"][rows[1][0]], *rows[1][1:3], known["table"][rows[1][3]], rows[1][4]] == [
        "norm",
        3,
        1,
        "words",
        1,
    ]
    assert known["table"][rows[2][3]] == "words, should be float32"
    monkeypatch.setattr(page, "LARGEST", 1)
    without = [one[7] is None for one in data_of(contents)["cells"]]
    assert without == [True, False, *[True] * 6]
    assert lacks(contents)[-1].startswith("the numbers of 7 cells had no room: ")


@pytest.mark.parametrize(
    ("location", "words"),
    [
        (SpecLocation("zoo.models.net"), ["conformance run net", ""]),
        (
            SpecLocation(file="/a b/nets.py"),
            ["conformance run '/a b/nets.py' -k net", "/a b/nets.py::", "/a b/nets.py"],
        ),
        (
            SpecLocation("nets", own=OwnModel(thing="Net", inputs=("2,3", "m=4"), training="eval")),
            ["conformance run nets:Net --input 2,3 --input m=4 --eval", "nets:Net::", "nets"],
        ),
        (SpecLocation("nets", own=OwnModel(thing="Net", call="/call")), ["", "nets:Net::", "nets", "/call", "--trust"]),
    ],
)
def test_a_cell_has_the_commands_that_judge_it_again(location, words):
    contents = run_of()
    plan = with_models(contents.plan, {"net": {"location": location}})
    assert data_of(replace(contents, plan=plan))["commands"] == {"net": words}


def test_a_page_beside_an_earlier_run_marks_what_has_changed():
    old, new = (
        Summary(**vars(run_of(verdicts=verdicts)), folder=Path(name), observations={})
        for name, verdicts in {
            "old": {EAGER.id: Verdict(EAGER.id, "PASS", margin=0.1), SCRIPTED.id: Verdict(SCRIPTED.id, "PASS")},
            "new": {
                EAGER.id: Verdict(EAGER.id, "PASS", margin=0.9),
                SCRIPTED.id: Verdict(SCRIPTED.id, "ERROR", "it <broke>", short="ERROR"),
            },
        }.items()
    )
    found = drawn(new, earlier=(old, atlas.compare(old, new)))
    assert "<small><mark>new red</mark> was ✓ 0</small></td>" in found
    assert 'style="--m:63.0%;--w:7.0%"></span><small><mark>error up</mark> was ✓ 0.10</small></td>' in found
    assert '<a href="#c1">net[scripted-fp32-cpu]</a></td><td>PASS</td><td>ERROR</td><td>it &lt;broke&gt;</td>' in found
    assert "Nothing has changed" in drawn(old, earlier=(old, atlas.compare(old, old)))


def test_show_and_diff_write_the_page_and_say_why_they_cannot(tmp_path, capsys):
    folder, file = tmp_path / "run", tmp_path / "page.html"
    run_files.create(folder, plan_of("a"))
    store(folder, "a")
    assert stored.show_run(folder, html=file) == 0
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")
    stored.show_changes(folder, folder, markdown=None, json=None, html=file)
    assert "Nothing has changed" in file.read_text(encoding="utf-8")
    assert "a[eager-fp32-cpu]" not in capsys.readouterr().err
    missing = tmp_path / "missing" / "page.html"
    with pytest.raises(UsageError, match=r"--html .* cannot be written: it is a folder; name a file in it"):
        stored.show_run(folder, html=tmp_path)
    with pytest.raises(
        UsageError, match=f"--html {missing} cannot be .*: there is no folder {missing.parent}; make it"
    ):
        stored.show_run(folder, html=missing)


def test_a_command_without_a_page_does_not_import_what_draws_it():
    assert fresh("import sys, conformance.cli; print('jinja2' in sys.modules)") == ["False"]


@pytest.mark.parametrize("package", ["zoo", "conformance"])
def test_every_file_of_a_package_is_in_its_wheel(package):
    patterns = toml_file.read(ROOT / "pyproject.toml")["tool"]["setuptools"]["package-data"][package]
    here = ROOT / package
    others = {path for path in here.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert others == {path for pattern in patterns for path in here.glob(pattern)}
