"""A machine whose C++ compiler is missing, broken or hangs: eager and scripted cells go on, compiled ones name it."""

import re

import pytest
from harness.command import conformance
from harness.processes import printed
from harness.spec_files import planned
from harness.tiny import models

from conformance.judging.executor import OF_COMPILER, Executor
from conformance.process import child, environment
from conformance.records.cell import Observation, Verdict
from conformance.records.tasks import Nothing

COMPLAIN = """
import json
from torch._inductor import config
from conformance.cell import compiler
found = []
for path in PATHS:
    compiler.SECONDS = 60.0 if path == "g++" else 2.0
    config.cpp.cxx = (None, path)
    compiler.complaint.cache_clear()
    found.append(compiler.complaint())
print(json.dumps(found))
"""
BROKEN = {  # what a compiler does, and what is said of it
    "echo a line; echo internal error >&2; exit 3": "ends with exit code 3: internal error",
    "exit 0": "makes no library",
    "kill -SEGV $$": "ends with exit code -11",
    "sleep 3600": "compiles nothing within 2 s",
    "sleep 3600 & wait": "compiles nothing within 2 s",
}
REMEDY = "install one (Debian, Ubuntu: apt install g++; "


def script_of(folder, text, name="g++"):
    """A compiler that is a shell script."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_compiler_that_does_not_work_is_named_with_what_it_does(tmp_path):
    paths = [script_of(tmp_path, text, f"g++{number}") for number, text in enumerate(BROKEN)]
    (tmp_path / "no program").write_bytes(b"\x7fELF")
    (tmp_path / "no program").chmod(0o755)
    strange, absent = str(tmp_path / "no program"), str(tmp_path / "none")
    *broken, unfit, missing, works = printed(f"PATHS = {[*paths, strange, absent, 'g++']!r}\n{COMPLAIN}")
    assert broken == [f"{path} {found}" for path, found in zip(paths, BROKEN.values(), strict=True)]
    assert unfit.startswith(f"{strange} cannot be run: ")
    assert (missing, works) == (f"{absent} is not found", "")


def test_without_a_compiler_the_other_cells_are_judged(tmp_path):
    path = str(tmp_path / "none")
    words = ("--precision=fp32", "--device=cpu", "--no-speed", "-n1")
    code, output = conformance(tmp_path, "run", "cube", *words, CXX=path)
    assert code == 1, output
    assert re.search(r"cube +fp32 +✓ \S+ +✓ \S+ +✗", output), output
    text = f"in phase prepare: NoCompilerError: torch.compile needs a C++ compiler: {path} is not found; {REMEDY}"
    assert f"✗ cube[compiled-fp32-cpu]  ERROR  {text}" in output


TRIAL_ALONE = """
case "$*" in
    *trial.cpp*|*--version*|*-dumpversion*) exec g++ "$@";;
esac
"""


def test_a_compiler_that_lies_about_what_torch_asks_of_it_is_to_blame_and_no_model(tmp_path):
    source = models(tmp_path, one="same", two="lambda: lambda x: x * 3")
    path = script_of(tmp_path, f"{TRIAL_ALONE}\nexit 0", "c++")
    words = ("--mode=compiled", "--precision=fp32", "--device=cpu", "--no-speed", "-n1")
    code, output = conformance(tmp_path, "run", source, *words, CXX=path, XDG_CACHE_HOME=str(tmp_path / "cache"))
    said = f"{OF_COMPILER.format('NoCompilerError')}: with {path}: "
    assert (code, output.count(f"✗ 2 cells of 2 models  ERROR  {said}")) == (1, 1), output


@pytest.mark.parametrize(("mode", "status"), [("compiled", "CRASH"), ("compiled", "TIMEOUT"), ("scripted", "CRASH")])
def test_a_cell_that_ends_while_it_compiles_is_compared_with_the_simplest_model(tmp_path, monkeypatch, mode, status):
    plan = planned("merge", modes=(mode,), precisions=("fp32",), devices=("cpu",))
    seen = Observation("crashed" if status == "CRASH" else "timed out", "call", message="it died")
    found = Verdict(plan.cells[0].id, status, "it died", observation=seen)
    executor, ending = Executor(plan, tmp_path / "references"), child.Ending("crashed", message="it dies too")
    monkeypatch.setattr(Executor, "_judge", lambda *_, **__: found)
    monkeypatch.setattr(child, "run", lambda *_, **__: ending)
    monkeypatch.setattr(environment, "compile_for", lambda _: None)
    blamed = mode == "compiled"
    assert executor.verdict(plan.cells[0]).text == (OF_COMPILER.format("it dies too") if blamed else "it died")
    ending = child.Ending("answered", Nothing())
    assert Executor(plan, tmp_path / "references").verdict(plan.cells[0]).text == "it died"


STEPS = """
import json, os, subprocess, time
import conformance.cell.preload as preload

def leave():
    raise SystemExit(3)

def hang():
    try:
        subprocess.run(["sleep", "3600"])
    except Exception:
        subprocess.run(["sleep", "3600"])

began = time.monotonic()
preload.harmless(leave)
preload.harmless(hang, 0.5)
preload.NEEDED = ["no.such.module"]
preload.prepare()
print(json.dumps(time.monotonic() - began))
"""


def test_a_step_of_the_preparation_that_fails_or_hangs_is_left_to_the_children():
    assert printed(STEPS) >= 0.5
