"""Red cells become declarations, a person gives the reasons, and the cells are as declared until something changes."""

import pytest
import torch
from harness.command import ROOT, conformance, run_folder
from packaging.version import Version

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


def test_a_wrong_declaration_is_four(tmp_path):
    (tmp_path / "known.toml").write_text("[[merge]]\noutcome = 'FAILS'\nreason = 'so'\n")
    code, told = conformance(tmp_path, "run", "merge", *SCRIPTED, "--expect=known.toml")
    assert (code, "outcome 'FAILS': want one of dtype, refuses, FAIL" in told) == (4, True), told
