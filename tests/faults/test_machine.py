"""A failure of the machine is never stored as a model's verdict: the cell stays without one, and is judged later."""

import errno
import os

import pytest
from harness.command import FP32, conformance, run_folder
from harness.spec_files import planned

from conformance.errors import MachineError
from conformance.evaluate.error_text import is_machine_failure, is_out_of_memory
from conformance.judging.executor import Executor
from conformance.process import child, environment, pool
from conformance.process.child import Ending
from conformance.records.tasks import ENVIRONMENT, Nothing
from conformance.store import run_files

MODEL = """
import os
from pathlib import Path
import torch
from zoo import Case, Spec

FULL = Path(__file__).with_name("full")

def double(x):
    if FULL.exists() and x.dtype == torch.float32:
        raise OSError({number}, os.strerror({number}))
    return 2 * x

{name} = Spec(
    name="{name}", summary="s", source="s", build=lambda: double,
    cases=(Case(name="typical", inputs=lambda g: (torch.randn(3, generator=g),)),),
)
"""


def test_a_full_disk_leaves_the_cell_without_verdict_until_there_is_room(tmp_path):
    (tmp_path / "writes.py").write_text(MODEL.format(name="writes", number=errno.ENOSPC))
    (tmp_path / "other.py").write_text(MODEL.format(name="other", number=errno.EDOM))
    (tmp_path / "full").touch()
    code, printed = conformance(tmp_path, "run", "writes.py", "other.py", *FP32)
    folder = run_folder(printed)
    assert code == 1
    assert "writes[eager-fp32-cpu] was not judged: " in printed
    assert "was not judged: writes" not in printed
    assert os.strerror(errno.ENOSPC) in printed
    assert "Traceback" not in printed
    verdicts = run_files.read(folder).verdicts
    assert {name: verdict.status for name, verdict in verdicts.items()} == {"other[eager-fp32-cpu]": "ERROR"}
    (tmp_path / "full").unlink()
    code, printed = conformance(tmp_path, "run", "writes.py", "other.py", "--resume", str(folder))
    assert run_files.read(folder).verdicts["writes[eager-fp32-cpu]"].status == "PASS", printed


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENFILE])
def test_what_no_process_causes_is_the_machine(number):
    assert is_machine_failure(OSError(number, os.strerror(number)))
    wrapped = RuntimeError("the backend failed")
    wrapped.__cause__ = OSError(number, os.strerror(number))
    assert is_machine_failure(wrapped)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOENT, errno.EACCES, errno.ENOMEM])
def test_what_a_process_causes_is_its_own(number):
    assert not is_machine_failure(OSError(number, os.strerror(number)))


def test_memory_that_the_model_asks_for_and_does_not_get_is_out_of_memory():
    for problem in (MemoryError(), OSError(errno.ENOMEM, "x"), RuntimeError("[enforce fail] can't allocate memory")):
        assert is_out_of_memory(problem)
        assert not is_machine_failure(problem)


def test_a_text_about_a_full_disk_is_the_machine_if_torch_says_it():
    said = f"collect2: error: {os.strerror(errno.ENOSPC)}"
    torchs = type("CppCompileError", (RuntimeError,), {"__module__": "torch._inductor.exc"})
    assert is_machine_failure(torchs(said))
    assert not is_machine_failure(RuntimeError(said))


@pytest.fixture
def executor(tmp_path):
    """An executor of one model with one cell, and the planned cell."""
    (tmp_path / "one.py").write_text(MODEL.format(name="one", number=errno.EDOM))
    plan = planned(str(tmp_path / "one.py"), modes=("eager",), precisions=("fp32",), devices=("cpu",))
    environment.prepare_children(None, compiles_for=())
    return Executor(plan, tmp_path / "references"), plan.cells[0]


def test_a_reference_that_cannot_be_written_is_no_verdict(executor, tmp_path):
    judging, cell = executor
    (tmp_path / "references" / "one.reference").mkdir()
    with pytest.raises(MachineError, match=r"reference of one was not made: .*one\.reference could not be written"):
        judging.verdict(cell)
    (tmp_path / "references" / "one.reference").rmdir()
    assert judging.verdict(cell).status != "INVALID"


@pytest.mark.parametrize("problem", [OSError(errno.EAGAIN, "no more processes"), MemoryError()])
def test_a_process_that_does_not_start_is_no_verdict(executor, monkeypatch, problem):
    def refuse(*_, **__):
        raise problem

    monkeypatch.setattr(child, "run", refuse)
    with pytest.raises(MachineError, match="no process could be started"):
        executor[0].verdict(executor[1])


@pytest.mark.parametrize("phase", ["start", "waiting for the machine"])
def test_a_process_that_dies_before_the_model_runs_is_no_verdict(executor, monkeypatch, phase):
    dead = Ending("crashed", None, phase, "killed by SIGKILL")
    monkeypatch.setattr(child, "run", lambda *_, **__: dead)
    with pytest.raises(MachineError, match="ended before the model ran: killed by SIGKILL"):
        executor[0].verdict(executor[1])


def test_a_measurement_that_cannot_start_is_no_figure(monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(child, "run", refuse)
    with pytest.raises(MachineError, match="no process could be started to measure"):
        pool.result(ENVIRONMENT, Nothing(), 1.0)
