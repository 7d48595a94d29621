"""Red cells become declarations, a person gives the reasons, and the cells are as declared until something changes."""

from dataclasses import replace

import pytest
import torch
from harness import whole_runs
from harness.command import ROOT, conformance, run_folder
from packaging.version import Version

from conformance.commands import expect
from conformance.errors import UsageError
from conformance.judging import declarations

SCRIPTED = ("--mode=scripted", "--precision=fp32", "--precision=amp_bf16", "--device=cpu", "--no-speed")
NETS = str(ROOT / "docs" / "nets.py")


@pytest.mark.skipif(Version(torch.__version__) >= Version("2.14.dev0"), reason="no Function.apply in TorchScript")
def test_from_red_to_as_declared_and_to_stale(tmp_path):
    code, printed = conformance(tmp_path, "run", NETS, *SCRIPTED)
    assert (code, "4 cells: 2 pass, 2 fail" in printed) == (1, True), printed
    run = str(run_folder(printed))
    code, told = conformance(tmp_path, "expect", "record", run, "known.toml")
    assert (code, told.splitlines()[0]) == (0, "entries for 2 of 2 red cells: 2, added to known.toml")
    code, told = conformance(tmp_path, "run", NETS, *SCRIPTED, "--expect=known.toml")
    assert code == 4
    assert "known.toml: entry 1 of gate has no reason; say in a sentence" in told
    known = tmp_path / "known.toml"
    known.write_text(known.read_text().replace('reason = ""', 'reason = "wrong on purpose"'))
    code, printed = conformance(tmp_path, "run", NETS, *SCRIPTED, "--expect=known.toml")
    assert (code, "4 cells: 2 pass, 2 expected" in printed) == (0, True), printed
    assert "expected: wrong on purpose" in printed
    known.write_text(known.read_text().replace('precisions = ["amp_bf16"]', 'precisions = ["amp_bf16", "fp32"]'))
    code, printed = conformance(tmp_path, "run", NETS, *SCRIPTED, "--expect=known.toml")
    assert (code, "2 expected, 2 stale" in printed) == (1, True), printed
    code, told = conformance(tmp_path, "expect", "prune", str(run_folder(printed)), "known.toml")
    line = "entry 1 of gate is stale in gate[scripted-fp32-cpu], and in force in other cells"
    assert (code, line in told, "taken out of known.toml: 0" in told) == (1, True, True), told


def test_a_wrong_declaration_is_four(tmp_path):
    (tmp_path / "known.toml").write_text("[[merge]]\noutcome = 'FAILS'\nreason = 'so'\n")
    code, told = conformance(tmp_path, "run", "merge", *SCRIPTED, "--expect=known.toml")
    assert (code, "outcome 'FAILS': want one of dtype, refuses, FAIL" in told) == (4, True), told


KNOWN = """# kept

# net: it broke in 2.6
[[net]]
outcome = "FAIL"
reason = "gone"
modes = ["compiled"]

[[net]]
outcome = "refuses"
error = "RuntimeError"
match = "no"
reason = "still so"
modes = ["scripted"]

[["other.net"]]
outcome = "FAIL"
reason = "not judged"
"""


def run_with(folder, known, statuses):
    """A run of nine cells of `net` made with a file, with the statuses of its modes."""
    declared = declarations.read(known).get("net", ())
    plan = whole_runs.plan_of_zoo(("net",))
    cells = (replace(p, expect=tuple(e for e in declared if p.cell.mode in e.modes)) for p in plan.cells)
    plan = replace(plan, cells=tuple(cells))
    return whole_runs.write(folder, plan, {p.id: statuses.get(p.cell.mode, "PASS") for p in plan.cells})


def test_stale_entries_are_taken_out_with_their_remarks_and_all_else_stays(tmp_path, capsys):
    known = tmp_path / "known.toml"
    known.write_text(KNOWN)
    folder = run_with(tmp_path / "run", known, {"compiled": "STALE", "scripted": "UNSUPPORTED"})
    assert expect.prune(folder, known) == 0
    assert known.read_text() == KNOWN.replace(KNOWN[KNOWN.index("# net") : KNOWN.index('[[net]]\noutcome = "ref')], "")
    assert capsys.readouterr().out.splitlines() == [
        f"stale entries taken out of {known}: 1",
        "entries that concern no cell of this run, left as they are: 1",
    ]
    assert expect.prune(run_with(tmp_path / "again", known, {"scripted": "UNSUPPORTED"}), known) == 0
    assert '[[net]]\noutcome = "refuses"' in known.read_text()


def test_an_entry_in_force_somewhere_stays_and_is_named(tmp_path, capsys):
    known = tmp_path / "known.toml"
    known.write_text(KNOWN.replace('["compiled"]', '["compiled", "eager"]'))
    before = known.read_text()
    folder = run_with(tmp_path / "run", known, {"compiled": "STALE", "eager": "EXPECTED", "scripted": "UNSUPPORTED"})
    assert expect.prune(folder, known) == 1
    assert known.read_text() == before
    assert "entry 1 of net is stale in net[compiled-fp32-cpu] and 2 more, and in force" in capsys.readouterr().err


def test_a_file_in_another_form_is_left_to_its_owner(tmp_path):
    known = tmp_path / "known.toml"
    known.write_text('net = [{outcome = "FAIL", reason = "gone", modes = ["compiled"]}]\n')
    folder = run_with(tmp_path / "run", known, {"compiled": "STALE"})
    with pytest.raises(UsageError, match=r"write each entry below a line \[\[MODEL\]\], or take entries out by hand"):
        expect.prune(folder, known)
    assert known.read_text().startswith("net = ")
