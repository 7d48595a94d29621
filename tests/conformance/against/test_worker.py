"""A worker: it imports from its own folders, and reports what went wrong."""

from pathlib import Path

import pytest

import conformance
from conformance.against.worker import Worker
from conformance.errors import UsageError, WorkerError
from conformance.records.cell import Cell
from conformance.records.tasks import Target

ROOT = Path(conformance.__file__).parent.parent
ODD = """
import os, signal, sys, time
from conformance.errors import UsageError
from conformance.records.cell import Cell

def leave(task):
    print("farewell", file=sys.stderr)
    sys.exit(task["code"])

def die(task):
    os.kill(os.getpid(), signal.SIGKILL)

def sleep(task):
    time.sleep(task["seconds"])
    return {}

def refuse(task):
    raise UsageError("there is no such thing")

def fail(task):
    raise LookupError("it is lost")

def renamed(task: Cell) -> Cell:
    return Cell(task.model.upper(), task.mode, task.precision, task.device)

def count(task, calls=[]):
    calls.append(task)
    return {"calls": len(calls)}
"""


def odd(function, task=dict, result=dict):
    return Target(f"odd:{function}", task, result)


@pytest.fixture
def worker(tmp_path):
    (tmp_path / "odd.py").write_text(ODD)
    with Worker([tmp_path, ROOT], {}, 60.0) as worker:
        yield worker


def test_a_worker_imports_from_its_own_folders_whatever_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "zoo.py").write_text("def where(task):\n    return {'file': __file__, 'task': task}\n")
    monkeypatch.chdir(ROOT)
    with Worker([tmp_path, ROOT], {}, 60.0) as worker:
        result = worker.call(Target("zoo:where", dict, dict), {"number": 7})
    assert result == {"file": str(tmp_path / "zoo.py"), "task": {"number": 7}}


def test_records_cross_in_both_directions(worker):
    cell = Cell("merge", "eager", "fp32", "cpu")
    assert worker.call(odd("renamed", Cell, Cell), cell) == Cell("MERGE", "eager", "fp32", "cpu")


def test_a_worker_keeps_its_state_from_task_to_task(worker):
    assert [worker.call(odd("count"), {})["calls"] for _ in range(3)] == [1, 2, 3]


def test_a_worker_gets_its_own_environment(tmp_path):
    code = "import os\n\ndef read(task):\n    return {'value': os.environ[task['name']]}\n"
    (tmp_path / "environment.py").write_text(code)
    with Worker([tmp_path, ROOT], {"A_VARIABLE": "a value"}, 60.0) as worker:
        read = worker.call(Target("environment:read", dict, dict), {"name": "A_VARIABLE"})
    assert read == {"value": "a value"}


def test_a_refusal_is_a_usage_error_and_the_worker_goes_on(worker):
    with pytest.raises(UsageError, match=r"^there is no such thing$"):
        worker.call(odd("refuse"), {})
    with pytest.raises(WorkerError, match=r"^LookupError: it is lost$"):
        worker.call(odd("fail"), {})
    assert worker.call(odd("count"), {}) == {"calls": 1}


def test_an_unknown_function_is_named(worker):
    with pytest.raises(WorkerError, match=r"AttributeError: .*'nothing'"):
        worker.call(odd("nothing"), {})


def test_a_task_of_another_record_is_refused_with_the_field(worker):
    with pytest.raises(WorkerError, match=r"RecordError: Cell has no mode"):
        worker.call(odd("renamed", dict, Cell), {"model": "merge"})


def test_a_worker_that_leaves_is_an_error_with_its_last_words(worker):
    with pytest.raises(WorkerError, match=r"^left with exit code 3: farewell$"):
        worker.call(odd("leave"), {"code": 3})


def test_a_worker_that_is_killed_is_an_error_that_names_the_signal(worker):
    with pytest.raises(WorkerError, match=r"^killed by SIGKILL$"):
        worker.call(odd("die"), {})
    with pytest.raises(WorkerError, match=r"^killed by SIGKILL$"):  # and so is every later task
        worker.call(odd("count"), {})


def test_a_result_that_does_not_come_is_an_error_at_the_deadline(tmp_path):
    (tmp_path / "odd.py").write_text(ODD)
    with (
        Worker([tmp_path, ROOT], {}, 0.5) as worker,
        pytest.raises(WorkerError, match=r"^no answer within 0\.5 s$"),
    ):
        worker.call(odd("sleep"), {"seconds": 60})
