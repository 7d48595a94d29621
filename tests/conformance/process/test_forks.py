"""Parts of a reference are shared with forks, and whatever happens to a fork, each part gives what it gives alone."""

import contextlib
import os
import signal

import pytest
from harness.command import FP32, conformance

from conformance.axes import PRECISIONS
from conformance.oracle import reference, reference_file
from conformance.process import forks, memory, process_table
from conformance.process.forks import ALONE, Forks
from zoo.catalog import get_spec

HERE = os.getpid()
LONG = 600.0


@pytest.fixture(autouse=True)
def process(tmp_path, monkeypatch):
    """What the system tells of this process: one thread, 1 MiB, in a machine with 8 MiB free. Every part is long."""
    (tmp_path / "task" / "1").mkdir(parents=True)
    (tmp_path / "status").write_text("Name:\tpython\nVmHWM:\t    1024 kB\n")
    (tmp_path / "meminfo").write_text("MemTotal:       99999 kB\nMemAvailable:    8192 kB\n")
    monkeypatch.setattr(memory, "SELF", tmp_path)
    monkeypatch.setattr(memory, "MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    monkeypatch.setattr(forks, "WORTH_SECONDS", 0.0)
    before = {*process_table.descendants(HERE)}  # a server that another test has started may end at any time
    yield tmp_path
    assert not {*process_table.descendants(HERE)} - before, "a fork was left behind"


def with_cores(count):
    return Forks(lambda most: contextlib.nullcontext(min(most, count)))


def in_a_fork(act):
    """A part that acts if it runs in a fork, and tells in either case where it ran last."""

    def part():
        if os.getpid() != HERE:
            act()
        return os.getpid()

    return part


def test_the_results_are_in_the_order_of_the_parts_and_come_from_several_processes():
    found = with_cores(2).results([lambda number=number: (number, os.getpid()) for number in range(7)])
    assert [number for number, _ in found] == [*range(7)]
    assert len({pid for _, pid in found}) == 3


def test_between_parts_something_else_may_be_done_but_not_while_a_fork_runs_one():
    seen = []
    parts = [lambda number=number: seen.append(number) for number in range(3)]
    Forks(between=lambda: seen.append("between")).results(parts)
    assert seen == ["between", 0, "between", 1, "between", 2]
    seen.clear()
    Forks(lambda most: contextlib.nullcontext(min(most, 2)), lambda: seen.append("between")).results(parts)
    assert seen == ["between", 0]  # the others were added in forks


@pytest.mark.parametrize(
    "act",
    [
        lambda: os.kill(os.getpid(), signal.SIGKILL),
        lambda: os._exit(0),
        lambda: 1 / 0,
        lambda: (_ for _ in ()).throw(SystemExit),
    ],
)
def test_what_a_fork_does_not_bring_is_made_here(act):
    assert with_cores(2).results([in_a_fork(act)] * 3) == [HERE] * 3


def test_a_result_that_cannot_be_sent_is_made_here():
    found = with_cores(1).results([lambda: [os.getpid, lambda: None]] * 2)
    assert [kept() for kept, _ in found] == [HERE] * 2


def test_a_part_that_fails_in_a_fork_fails_here_with_its_own_error():
    def wrong():
        raise ValueError(str(os.getpid()))

    with pytest.raises(ValueError, match=str(HERE)):
        with_cores(1).results([os.getpid, wrong])


def test_a_machine_that_starts_no_process_makes_all_parts_here(monkeypatch):
    def refuse():
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", refuse)
    assert with_cores(2).results([os.getpid] * 3) == [HERE] * 3


def test_parts_that_are_quick_are_made_here(monkeypatch):
    monkeypatch.setattr(forks, "WORTH_SECONDS", LONG)
    assert with_cores(2).results([os.getpid] * 9) == [HERE] * 9


@pytest.mark.parametrize(
    ("file", "text", "processes"),
    [
        ("meminfo", "MemAvailable:    4096 kB\n", 3),  # two forks of 1 MiB, each with twice its need free
        ("meminfo", "MemAvailable:    2047 kB\n", 1),
        ("meminfo", "MemFree:         8192 kB\n", 1),
        ("memory.max", str(3 * 2**20), 2),  # 1 MiB of it is in use
        ("memory.max", "max", 4),
        ("status", "Name:\tpython\n", 1),
    ],
)
def test_a_fork_needs_room(process, file, text, processes):
    (process / "memory.current").write_text(str(2**20))
    (process / file).write_text(text)
    assert len(set(with_cores(3).results([os.getpid] * 8))) == processes


def test_a_process_with_threads_makes_no_forks(process):
    (process / "task" / "2").mkdir()
    assert with_cores(2).results([os.getpid] * 3) == [HERE] * 3


@pytest.mark.parametrize("missing", ["SELF", "MEMORY"])
def test_where_the_system_tells_nothing_there_are_no_forks(process, monkeypatch, missing):
    monkeypatch.setattr(memory, missing, process / "nothing")
    assert with_cores(2).results([os.getpid] * 3) == [HERE] * 3


@pytest.mark.parametrize("model", ["merge", "seeded_dropout", "train_resumed"])
def test_a_reference_is_the_same_whoever_makes_it(tmp_path, model):
    """Bit for bit: what a cell is judged by must not depend on how busy the machine was."""
    made = []
    for helping in (ALONE, with_cores(2)):
        path = tmp_path / "reference"
        precisions = [PRECISIONS[name] for name in ("fp32", "amp_fp16", "amp_bf16")]
        reference_file.save(path, reference.make(get_spec(model), None, 0, precisions, helping))
        made.append(path.read_bytes())
    assert made[0] == made[1]


SLOW = """
import os
import time
from pathlib import Path

import torch

from zoo import Case, Spec


class Slow(torch.nn.Linear):
    def forward(self, x):
        with Path("pids").open("a") as file:
            file.write(f"{os.getpid()}\\n")
        time.sleep(0.1)
        return super().forward(x)


CASE = Case(name="typical", inputs=lambda g: (torch.randn(4, 3, generator=g),))
NET = Spec(name="net", summary="a net", source="a test", build=lambda: Slow(3, 2), cases=(CASE,))
"""


@pytest.mark.skipif(os.cpu_count() < 2, reason="one core")
@pytest.mark.parametrize(("options", "alone"), [((), False), (("-n1",), True)])
def test_a_run_of_one_model_makes_its_reference_on_all_cores(tmp_path, options, alone):
    """Unless a person allows it one. The cell is judged in a process of its own."""
    (tmp_path / "nets.py").write_text(SLOW)
    own_locks = {"TMPDIR": str(tmp_path)}
    code, output = conformance(tmp_path, "run", "nets.py", *FP32, *options, **own_locks)
    assert code == 0, output
    processes = len({*(tmp_path / "pids").read_text().split()})
    assert (processes == 2) if alone else (processes > 2)
