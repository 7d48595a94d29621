"""The fork server: nothing that it imports may reach the CUDA runtime, which would refuse CUDA to every cell."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conformance.oracle.error_text import POISONED, one_line

RUNTIME = """
import json, os, torch

asked = []
for name in ("_cuda_getDeviceCount", "_cuda_init"):
    setattr(torch._C, name, lambda name=name: asked.append(name) or 1)
if not hasattr(torch._C, "_cuda_getCurrentRawStream"):  # a torch without CUDA; the compiler imports it from one with it
    torch._C._cuda_getCurrentRawStream = None
"""
LOAD = f"""{RUNTIME}
torch.cuda._device_count_nvml = lambda: 1  # as on a machine with a GPU, where modules that ask go on to use the answer
import conformance.fork_server
meanwhile = list(asked)
print(json.dumps([meanwhile, torch.cuda.is_available(), asked, "PYTORCH_NVML_BASED_CUDA_CHECK" in os.environ]))
"""
QUESTION = f"""{RUNTIME}
from conformance.fork_server import cuda_runtime_untouched
told = []
for count in (2, 0, -1):
    torch.cuda._device_count_nvml = lambda: count
    with cuda_runtime_untouched():
        told.append([torch.cuda.is_available(), torch.cuda.device_count()])
print(json.dumps([told, asked]))
"""
SERVE = """
import json
from conformance.run import child

ending = child.run("test_preload:use_cuda", {}, deadline=120.0)
print(json.dumps([ending.kind, ending.answer, ending.message]))
"""
POISONED_FORK = """
import json, os, torch
from test_preload import use_cuda

torch.cuda.is_available()
if os.fork() == 0:
    print(json.dumps(use_cuda({}, None)), flush=True)
    os._exit(0)
os.wait()
"""
CUDA_BUILD = pytest.mark.skipif(not hasattr(torch._C, "_cuda_isInBadFork"), reason="torch without CUDA refuses no fork")


def use_cuda(task, enter_phase):
    """Target: whether CUDA refuses this process for being forked, and what a cell would say."""
    try:
        torch.ones(1, device="cuda")
    except (RuntimeError, AssertionError) as problem:
        return [torch.cuda._is_in_bad_fork(), one_line(problem)]
    return [torch.cuda._is_in_bad_fork(), ""]


def python(script, **environment):
    """What a script prints, as JSON."""
    here = str(Path(__file__).parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]), **environment}
    env.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_no_import_reaches_the_runtime_and_afterwards_it_is_asked_again():
    meanwhile, available, asked, nvml_only = python(LOAD, CONFORMANCE_PRELOAD="compiler")
    assert meanwhile == []
    assert available
    assert asked == ["_cuda_getDeviceCount"]
    assert not nvml_only


def test_meanwhile_nvml_is_asked_and_where_it_does_not_answer_nobody():
    told, asked = python(QUESTION)
    assert told == [[True, 2], [False, 0], [False, 0]]  # two devices, none, no answer
    assert asked == []


@CUDA_BUILD
def test_a_child_of_the_fork_server_may_use_cuda():
    kind, (refused, said), message = python(SERVE, CONFORMANCE_PRELOAD="compiler")
    assert (kind, refused, message) == ("answered", False, "")
    assert "forked" not in said


@CUDA_BUILD
def test_a_cell_of_a_poisoned_fork_server_says_so():
    refused, said = python(POISONED_FORK)
    assert refused
    assert said.startswith(f"{POISONED}: Cannot re-initialize CUDA in forked subprocess")


def test_only_a_refused_process_blames_the_fork_server(monkeypatch):
    """A model may fork workers of its own, which CUDA refuses just so."""
    problem = RuntimeError("Cannot re-initialize CUDA in forked subprocess.")
    assert one_line(problem) == str(problem)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    assert one_line(problem) == f"{POISONED}: {problem}"
    assert one_line(ValueError("no CUDA here")) == "no CUDA here"
