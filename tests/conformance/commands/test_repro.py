"""A red cell becomes a script that needs torch alone, and shows the fault until it is taken out."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from harness.command import ROOT, conformance, python, run_folder

from conformance.store import run_files

SOURCE = ROOT / "tests" / "specs" / "reproduced.py"
OWN_MODES = "value dtype raising nan gradient buffer serving stale rows closure unnamed dying".split()
SHOWN = {  # what the script of a cell prints; and what to put in the place of what, so that it is right
    "net[value-fp32-cpu]": ("relative error in the norm: value 0.1, eager ", "1.1 * y", "y"),
    "net[gradient-fp32-cpu]": ("gradient of x: relative error in the norm: gradient 0.05, eager ", "1.05 * ", "1.0 * "),
    "net[dtype-fp32-cpu]": ("dtype torch.float64, eager torch.float32, right torch.float32", "y.double()", "y"),
    "net[nan-fp32-cpu]": ("nan (0, 1), eager (0, 0), float64 (0, 0)", "torch.nan", "y.data[0, 0]"),
    "net[buffer-fp32-cpu]": ("buffer blocks.0.mean: relative error in the norm: buffer 0.5, eager ", "(1.5)", "(1.0)"),
    "net[raising-fp32-cpu]": ("ZeroDivisionError: no", 'raise ZeroDivisionError("no")', "return graph"),
    "net[serving-fp32-cpu]": ("output: relative error in the norm: serving 0.01, eager ", "1.01 * ", "1.0 * "),
    "net[stale-fp32-cpu]": ("relative error in the norm: stale ", "(first - model.head.bias)", "0 * first"),
    "net[dying-fp32-cpu]": ("the process ended with -6", "os.abort()", "0"),
    "net[closure-fp32-cpu]": ("relative error in the norm: closure 0.01, eager ", "closure(1.01)", "closure(1.0)"),
    "branching[scripted-fp32-cpu]": ("relative error in the norm: scripted 0.01, eager ", "1.01 * y", "y"),
    "bare[scripted-fp32-cpu]": ("relative error in the norm: scripted 0.01, eager ", "1.01 * y", "y"),
    "misled[eager-fp32-cpu]": ("GradcheckError: Jacobian mismatch", "0.5 * g", "g"),
    "forgetful[eager-amp_bf16-cpu]": ("gradient of bias: relative error in the norm: eager 0.", "[:-1]", "[:]"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    modes = [f"--mode={mode}" for mode in ("eager", "scripted", *OWN_MODES)]
    precisions = [f"--precision={name}" for name in ("fp32", "amp_bf16", "amp_fp16")]
    cells = " or ".join(
        re.sub(r"\W", " and ", cell).removesuffix(" and ") for cell in [*SHOWN, "net[unnamed-fp32-cpu]"]
    )
    asked = ("--device=cpu", "--no-speed", "-k", f"{cells} or (net and eager and fp32)")
    code, printed = conformance(folder, "run", str(SOURCE), *modes, *precisions, *asked)
    assert code == 1, printed
    return run_folder(printed)


def alone(script):
    """Exit code and output of a script, where nothing of this project can be imported."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    hidden = "import sys, runpy; sys.modules.update(conformance=None, zoo=None); sys.argv = [{0!r}]; "
    command = [sys.executable, "-c", f"{hidden}runpy.run_path({{0!r}}, run_name='__main__')".format(str(script))]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("cell", SHOWN)
def test_a_script_shows_the_fault_with_torch_alone_until_it_is_taken_out(cell, run, tmp_path):
    said, fault, right = SHOWN[cell]
    script = tmp_path / "shown.py"
    code, told = conformance(tmp_path, "repro", str(run), cell, str(SOURCE), "--into=shown.py")
    assert (code, "shown.py ends with 1 and prints:" in told) == (0, True), told
    code, printed = alone(script)
    assert (code, said in printed) == (1, True), printed
    text = script.read_text()
    assert len(text.splitlines()) <= 80
    assert fault in text
    script.write_text(text.replace(fault, right))
    code, printed = alone(script)
    assert code == 0, printed


def test_a_text_for_an_issue_holds_the_script_what_it_prints_and_where_the_fault_begins(run, tmp_path):
    code, told = conformance(tmp_path, "repro", str(run), "net[value-fp32-cpu]", str(SOURCE), "--issue")
    script = (tmp_path / "repro_net_value_fp32_cpu.py").read_text()
    assert code == 0
    assert told.startswith("net in the mode value, precision fp32, on cpu: gain  ")
    assert f"```python\n{script}```" in told
    assert f"\n\ntorch {torch.__version__}, Python " in told
    assert "\nThe ladder\n" in told
    assert "The fault begins with value" in told


def test_a_script_that_would_be_too_long_imports_the_model(tmp_path):
    source = tmp_path / "long.py"
    many = "\n".join(f"        x = x + {number} * torch.tanh(x)" for number in range(60))
    text = SOURCE.read_text().replace(
        "        return self.head(self.blocks(x))", f"{many}\n        return self.head(x)"
    )
    source.write_text(text)
    asked = ("--mode=gradient", "--precision=fp32", "--device=cpu", "--no-speed", "-k", "net and not branching")
    _, printed = conformance(tmp_path, "run", "long.py", *asked)
    code, told = conformance(tmp_path, "repro", str(run_folder(printed)), "net[gradient-fp32-cpu]", "long.py")
    assert (code, "imports the model: with its source it has" in told) == (0, True), told
    script = (tmp_path / "repro_net_gradient_fp32_cpu.py").read_text()
    assert f"sys.path.append({str(tmp_path)!r})\nfrom long import Net, gradient" in script
    source.write_text(text + "\n")
    code, told = conformance(
        tmp_path, "repro", str(run_folder(printed)), "net[gradient-fp32-cpu]", str(source), "--into=again.py"
    )
    assert (code, "long.py has changed since it was planned" in told) == (4, True), told
    source.unlink()
    code, told = conformance(
        tmp_path, "repro", str(run_folder(printed)), "net[gradient-fp32-cpu]", str(source), "--into=again.py"
    )
    assert (code, "long.py is gone" in told) == (4, True), told


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("nett[value-fp32-cpu]", "the run has no cell nett[value-fp32-cpu]; did you mean net[value-fp32-cpu]"),
        (
            "net[eager-fp32-cpu]",
            "net[eager-fp32-cpu] is PASS, so there is nothing to reproduce: its worst error is 0.0",
        ),
        ("net[value-amp_fp16-cpu]", "net[value-amp_fp16-cpu] has no verdict"),
        ("net[unnamed-fp32-cpu]", "registers unnamed in no statement of its own"),
    ],
)
def test_what_cannot_be_shown_is_one_line(cell, said, run, tmp_path):
    code, told = conformance(tmp_path, "repro", str(run), cell, str(SOURCE))
    assert (code, told.count("\n")) == (4, 1), told
    assert said in told
    assert not list(tmp_path.iterdir())


def test_a_run_of_another_torch_is_refused(run, tmp_path):
    plan = run_files.read(run).plan
    older = replace(plan, environment=replace(plan.environment, torch="2.0.0"))
    run_files.create(tmp_path / "older", older, (run / run_files.LINES).read_bytes())
    code, told = conformance(tmp_path, "repro", "older", "net[value-fp32-cpu]", str(SOURCE))
    assert (code, f"it was made with torch 2.0.0, this is {torch.__version__}" in told) == (4, True), told


def test_a_damaged_run_is_refused(run, tmp_path):
    shutil.copytree(run, tmp_path / "damaged")
    with (tmp_path / "damaged" / run_files.LINES).open("r+b") as file:
        file.write(b"{")
        file.seek(20)
        file.write(b"!")
    code, told = conformance(tmp_path, "repro", "damaged", "net[value-fp32-cpu]", str(SOURCE))
    assert (code, "cells.jsonl, line 1: " in told) == (4, True), told


def test_a_file_that_is_there_is_kept(run, tmp_path):
    (tmp_path / "mine.py").write_text("mine")
    code, told = conformance(tmp_path, "repro", str(run), "net[value-fp32-cpu]", str(SOURCE), "--into=mine.py")
    assert (code, "mine.py exists" in told) == (4, True), told
    assert (tmp_path / "mine.py").read_text() == "mine"


MINE = """\
import torch, conformance
{place}

if __name__ == "__main__":
    report = conformance.check(Gate(), torch.randn(4, 8), modes="scripted", precisions=("fp32", "amp_bf16"))
    print(report.repro("gate[scripted-amp_bf16-cpu]"))
    try:
        report.repro("gate[scripted-fp32-cpu]")
    except conformance.UsageError as problem:
        print(problem)
    report.write("kept")
"""
GATE = """\
import torch


class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.left(x) * torch.sigmoid(self.right(x))
"""


@pytest.mark.parametrize("place", ["from gates import Gate", GATE], ids=["of a module", "of the script"])
def test_a_model_that_nothing_builds_lies_beside_the_script(place, tmp_path):
    (tmp_path / "gates.py").write_text(GATE)
    (tmp_path / "mine.py").write_text(MINE.format(place=place))
    name = "repro_gate_scripted_amp_bf16_cpu.py"
    told = python(tmp_path, "mine.py").splitlines()
    assert told[-2:] == [name, told[-1]]
    assert told[-1].startswith("gate[scripted-fp32-cpu] is PASS, so there is nothing to reproduce")
    (tmp_path / "gates.py").rename(tmp_path / "elsewhere.py")
    code, printed = alone(tmp_path / name)
    assert (code, "scripted torch.float32, eager torch.bfloat16, right torch.bfloat16" in printed) == (1, True), printed
    (tmp_path / "elsewhere.py").rename(tmp_path / "gates.py")
    code, told = conformance(tmp_path, "repro", "kept", "gate[scripted-amp_bf16-cpu]")
    assert (code, "would execute " in told) == (4, True), told
    sources = told.rstrip().rpartition("gate[scripted-amp_bf16-cpu]' ")[2].split()
    code, told = conformance(tmp_path, "repro", "kept", "gate[scripted-amp_bf16-cpu]", *sources, "--into=kept.py")
    assert (code, "kept.py ends with 1" in told) == (0, True), told
