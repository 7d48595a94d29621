"""Runs use the references and the verdicts of earlier runs, and make new ones after a change of any kind."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from harness.command import FP32, ROOT, conformance, environment_of

from conformance.judging import keeping
from conformance.judging.keeping import Kept, contradiction
from conformance.records.cell import Verdict
from conformance.store import files

SPEC = """
import json
import os
from pathlib import Path

import torch

import helper
from zoo import Case, Spec

HERE = Path(__file__).parent


def build():
    native = torch.jit.load(str(HERE / "weights.pt"))
    model = torch.nn.Linear(3, 2)
    model.weight.data.copy_(native.weight)
    model.bias.data.fill_(json.loads((HERE / "bias.json").read_text()))
    return torch.nn.Sequential(model, helper.Scale())


CASE = Case(name="typical", inputs=lambda g: (torch.randn(4, 3, generator=g),))
NET = Spec(name="net", summary="a net", source="a test", build=build, cases=(CASE,))
"""
HELPER = """
import torch


class Scale(torch.nn.Module):
    def forward(self, x):
        return x * {}
"""
PLAIN = """
import torch

from zoo import Case, Spec


class Net(torch.nn.Linear):
    def forward(self, x):
        return {} * super().forward(x)


CASE = Case(name="typical", inputs=lambda g: (torch.randn(4, 3, generator=g),))
NET = Spec(name="net", summary="a net", source="a test", build=lambda: Net(3, 2), cases=(CASE,))
"""
REFERENCE = "references of an earlier run: net (--fresh makes new ones)"
VERDICT = re.compile(r"kept verdicts, of inputs that have not changed since: (\d+) \(20..-..-..; --fresh judges all\)")


def weights(value):
    model = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(model.weight, value)
    return torch.jit.script(model)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "nets.py").write_text(SPEC)
    (tmp_path / "helper.py").write_text(HELPER.format(2))
    (tmp_path / "bias.json").write_text(json.dumps(0.5))
    weights(1.0).save(str(tmp_path / "weights.pt"))
    return tmp_path


def run(folder, *words, **variables):
    """Run as a person does, which keeps verdicts; a CI does not."""
    return conformance(folder, "run", *words, XDG_CACHE_HOME=str(folder / "cache"), **{"CI": "", **variables})


def judged(folder, *options, **variables):
    """Whether a verdict was kept, or, if it is of the tenth that is judged again, its reference."""
    code, output = run(folder, "nets.py", *FP32, "-n1", *options, **variables)
    assert code == 0, output
    assert "1 cell: 1 pass" in output
    return bool(VERDICT.search(output)) or REFERENCE in output


def test_a_change_of_any_kind_makes_a_new_reference(folder):
    assert not judged(folder)
    assert judged(folder)
    assert not judged(folder, "--fresh")
    (folder / "helper.py").write_text(HELPER.format(3))
    assert not judged(folder)
    (folder / "bias.json").write_text(json.dumps(0.25))
    assert not judged(folder)
    weights(2.0).save(str(folder / "weights.pt"))  # which native code reads
    assert not judged(folder)
    (folder / "nets.py").write_text(SPEC.replace("randn(4, 3", "randn(5, 3"))
    assert not judged(folder)
    assert judged(folder)


def test_another_checkout_of_a_package_has_a_reference_of_its_own(tmp_path):
    """Its modules have the same names, its models the same numbers, and the first checkout is still there."""
    for name, factor in (("mine", 2), ("theirs", 3)):
        package = tmp_path / name / "package"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "net.py").write_text(PLAIN.format(factor))
    again = []
    for name in ("mine", "mine", "theirs", "mine"):
        folder, words = tmp_path / name, ("run", "package.net", *FP32, "-n1")
        path = os.pathsep.join([str(ROOT), str(folder)])
        code, output = conformance(folder, *words, XDG_CACHE_HOME=str(tmp_path / "cache"), PYTHONPATH=path, CI="")
        assert code == 0, output
        again.append(bool(VERDICT.search(output)) or REFERENCE in output)
    assert again == [False, True, False, True]


def kept(output):
    """How many verdicts a run says that it took from earlier ones."""
    found = VERDICT.search(output)
    return int(found[1]) if found else 0


def test_verdicts_are_kept_but_for_a_tenth(tmp_path):
    words = ("merge", "affine", "cube", "--mode=eager", "--mode=scripted", "--no-speed")
    code, first = run(tmp_path, *words)
    assert (code, kept(first)) == (0, 0), first
    counts = []
    for variables in ({}, {}, {"CI": "true"}, {"OMP_NUM_THREADS": "2"}):
        code, output = run(tmp_path, *words, **variables)
        assert code == 0, output
        assert output.count("18 cells: 16 pass, 2 expected") == 1, output
        counts.append(kept(output))
    assert 9 <= counts[0] <= 18
    assert 9 <= counts[1] <= 18
    assert counts[2:] == [0, 0]
    assert kept(run(tmp_path, *words, "-k", "merge")[1]) == 0
    for record in tmp_path.glob("cache/**/*-verdicts/*/*.json"):
        record.write_text("{")
    code, output = run(tmp_path, *words)
    assert (code, kept(output)) == (0, 0), output


def test_a_red_verdict_is_given_again(tmp_path):
    (tmp_path / "nets.py").write_text(PLAIN.format(2).replace("return 2", "return self.weight.norm().detach() * 2"))
    for _ in range(2):
        code, output = run(tmp_path, "nets.py", *FP32)
        assert (code, kept(output)) == (1, 0), output


ALL_AGAIN = """
import sys
from conformance.judging import keeping
from conformance.__main__ import main
keeping.SHARE = 1.0
sys.exit(main())
"""


def test_a_kept_verdict_that_is_contradicted_is_red_and_no_longer_kept(tmp_path):
    words = ("run", "affine", *FP32)
    variables = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "CI": "", "PYTHONPATH": str(ROOT)}
    assert conformance(tmp_path, *words, **variables)[0] == 0
    (record,) = tmp_path.glob("cache/**/*-verdicts/*/*.json")
    kept = files.decode(record, record.read_bytes(), keeping.KEPT, keeping.Kept)
    other = replace(kept.verdict, status="EXPECTED", reason="a fault that is not there")
    files.write_document(record, keeping.KEPT, replace(kept, verdict=other))
    command = [sys.executable, "-c", ALL_AGAIN, *words]
    env = {**environment_of(ROOT), "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert f"UNSTABLE  PASS now; with the same inputs it was EXPECTED on {kept.day}" in done.stdout
    assert not record.exists()


def verdict(status, **fields):
    return Verdict("net[eager-fp32-cpu]", status, fields.pop("text", ""), **fields)


@pytest.mark.parametrize(
    ("before", "now", "status", "text"),
    [
        (verdict("PASS"), verdict("PASS", margin=0.5), None, ""),
        (verdict("EXPECTED", reason="a"), verdict("EXPECTED", reason="a"), None, ""),
        (
            verdict("PASS"),
            verdict("FAIL", text="gain  output"),
            "FAIL",
            "gain  output; with the same inputs it was PASS",
        ),
        (
            verdict("EXPECTED", reason="a"),
            verdict("PASS"),
            "UNSTABLE",
            "PASS now; with the same inputs it was EXPECTED",
        ),
    ],
)
def test_a_kept_verdict_that_is_contradicted_is_red(before, now, status, text):
    found = contradiction(now, Kept("2026-11-29", before))
    assert (found and found.status) == status
    assert found is None or (found.red and found.text == f"{text} on 2026-11-29")
