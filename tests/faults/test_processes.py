"""The fork server stopped, killed or absent, time that does not count, and machines that lack what others have."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import targets
from harness.command import stored_runs
from harness.processes import outlives, printed
from harness.spec_files import file_of

from conformance.process import child, environment, fork_server, machine_lock, processes
from conformance.store import run_files

HARMS = [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM]


def run(function, deadline=60.0, **task):
    return child.run(targets.target_of(function), task, deadline=deadline)


@pytest.fixture(scope="module", autouse=True)
def _fork_server():
    """The fork server has imported torch before any clock starts."""
    assert run(targets.echo).kind == "answered"


@pytest.fixture
def light(monkeypatch):
    """Fork servers that import nothing, so that they start at once."""
    monkeypatch.setattr(fork_server, "command", light_command)
    monkeypatch.setattr(fork_server, "_server", None)


def light_command(module):
    words = processes.command(module)
    words[-1] = words[-1].replace("main()", "import conformance.process.fork_server as f; f.PRELOAD = 'json'; main()")
    return words


@pytest.mark.parametrize("harm", HARMS)
def test_who_loses_the_fork_server_twice_crashed(light, tmp_path, harm):
    ending = run(targets.harm_the_server, signal=int(harm), always=True, seconds=3600, file=str(tmp_path / "tried"))
    assert (ending.kind, ending.phase) == ("crashed", "harming")
    how = "stopped" if harm == signal.SIGSTOP else "killed"
    assert ending.message == f"the fork server was {how} by {harm.name} while this ran alone under it, twice"
    assert run(targets.echo).kind == "answered"


@pytest.mark.parametrize("harm", HARMS[:2])
def test_a_fork_server_that_is_lost_once_harms_nobody(light, tmp_path, harm):
    ending = run(targets.harm_the_server, signal=int(harm), always=False, seconds=3600, file=str(tmp_path / "tried"))
    assert ending.kind == "answered"
    assert ending.result["server"] != fork_server.current().pid  # it had one of its own, which is gone
    assert not outlives(ending.result["server"])


@pytest.mark.parametrize("harm", HARMS[:2])
def test_a_fork_server_that_is_lost_between_two_children_is_replaced(light, harm):
    assert run(targets.echo).kind == "answered"
    lost = fork_server.current().pid
    os.kill(lost, harm)
    time.sleep(0.2)
    assert run(targets.echo).kind == "answered"
    assert fork_server.current().pid != lost
    assert not outlives(lost)


def test_a_child_has_the_variables_of_this_moment_and_not_those_of_its_server(light, monkeypatch, tmp_path):
    assert run(targets.echo).kind == "answered"
    server = fork_server.current().pid
    monkeypatch.setenv(environment.CACHE, str(tmp_path))
    assert run(targets.variables, names=[environment.CACHE]).result == {environment.CACHE: str(tmp_path)}
    assert fork_server.current().pid == server


def test_a_fork_server_without_the_compiler_is_replaced_where_children_need_it(light, monkeypatch):
    monkeypatch.setenv(environment.COMPILES_FOR, "")
    without = fork_server.current().pid
    monkeypatch.setenv(environment.COMPILES_FOR, "cpu")
    assert not fork_server.compiles()
    assert run(targets.echo).kind == "answered"
    assert fork_server.compiles()
    assert not outlives(without)
    kept = fork_server.current().pid
    monkeypatch.setenv(environment.COMPILES_FOR, "")
    assert fork_server.current().pid == kept  # it serves others too


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "import os; os.abort()", "import time; time.sleep(3600)"])
def test_without_a_fork_server_children_are_spawned_and_say_so(monkeypatch, code):
    monkeypatch.setattr(fork_server, "command", lambda _: [*processes.command("sys")[:-1], code])
    monkeypatch.setattr(fork_server, "READY_SECONDS", 2.0)
    monkeypatch.setattr(fork_server, "_server", None)
    monkeypatch.setattr(child, "_without_server", [])
    first, second = run(targets.echo), run(targets.echo)
    assert (first.kind, second.kind) == ("answered", "answered")
    assert first.remarks == second.remarks
    assert first.remarks[0].startswith("every process imports torch anew, because the fork server ")


def test_a_run_goes_on_while_its_fork_server_starts(monkeypatch):
    monkeypatch.setattr(fork_server, "command", lambda _: targets.SLEEPER)
    monkeypatch.setattr(fork_server, "_server", None)
    started = time.monotonic()
    child.start_server()
    assert time.monotonic() - started < 60.0  # it would wait for 300 s
    fork_server.current().close()


IGNORING = """
import json, signal, time
from harness import targets
from conformance.process import child, fork_server, processes as process

signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as some daemons do, and all that they start
whole = fork_server.command
fork_server.command = lambda module: [*whole(module)[:-1], "import os; os.write(2, b'no torch'); os.abort()"]
run = lambda function, **task: child.run(targets.target_of(function), task, deadline=60.0)
started = time.monotonic()
first = run(targets.echo)
took = time.monotonic() - started
fork_server.command = whole
child._without_server.clear()
again = [run(targets.echo).kind, run(targets.complain, lines=1, ends="abort").said]
print(json.dumps([first.kind, first.remarks[0], took, again]))
"""


def test_a_caller_that_ignores_the_ends_of_its_children_hears_of_them_all_the_same():
    kind, remark, took, again = printed(IGNORING)
    assert (kind, again) == ("answered", ["answered", ["line 0", "the last words of native code"]])
    assert remark == "every process imports torch anew, because the fork server has ended: no torch"
    assert took < 60.0  # it waited for 300 s


def test_children_that_start_while_others_end_are_not_taken_for_orphans(light):
    with ThreadPoolExecutor(8) as threads:
        endings = list(threads.map(lambda _: run(targets.echo), range(120)))
    assert {ending.kind for ending in endings} == {"answered"}


class Sleepy:
    """A clock by which this process sleeps an hour in each of its first waits."""

    def __init__(self):
        self.naps, self.slept = 0, 0.0

    def monotonic(self):
        self.naps += 1
        self.slept += 3600.0 * (self.naps < 40)
        return time.monotonic() + self.slept


def test_the_time_in_which_the_run_sleeps_does_not_count(monkeypatch):
    monkeypatch.setattr(child, "time", Sleepy())
    assert run(targets.count_time, deadline=60.0).kind == "answered"


LACKING = """
import json, os, signal, socket, subprocess, sys
for where, names in (
    (os, "fork setsid killpg getpgid getsid waitid setpgid memfd_create"),
    (signal, "SIGKILL SIGSTOP SIGHUP SIGALRM SIGCHLD setitimer"),
    (socket, "AF_UNIX SOCK_SEQPACKET send_fds"),
):
    for name in names.split():
        if hasattr(where, name):
            delattr(where, name)
sys.modules["fcntl"] = None
"""


def test_a_system_without_forks_signals_and_groups_judges_by_spawn_and_says_what_it_lacks(tmp_path):
    script = (
        LACKING
        + f"""
from pathlib import Path
from conformance.process import process_table
process_table.TABLE = Path({str(tmp_path)!r})
from harness import targets
from conformance.process import child
good, hangs, dies = (
    child.run(targets.target_of(f), dict(code=3), deadline=8.0)
    for f in (targets.echo, targets.hang, targets.leave)
)
print(json.dumps([good.kind, good.remarks, hangs.kind, dies.message]))
"""
    )
    kind, remarks, hangs, dies = printed(script)
    assert (kind, hangs, dies) == ("answered", "timed out", "left with exit code 3 and no answer")
    assert remarks == ["this system has no fork server, so every process imports torch anew", child.NO_GROUPS]


def test_a_run_on_such_a_system_judges_eager_and_scripted_cells(tmp_path):
    path = file_of(tmp_path, "identity")
    words = ["run", path, "--mode=eager", "--mode=scripted", "--precision=fp32", "--device=cpu", "--no-speed", "-n1"]
    script = f"""{LACKING}
from conformance.__main__ import main
os.chdir({str(tmp_path)!r})
sys.argv = ['conformance', *{words!r}]
code = main()
print()
print(json.dumps(int(code)))
"""
    assert printed(script) == 0
    (stored,) = stored_runs(tmp_path)
    verdicts = run_files.read(stored).verdicts.values()
    assert [verdict.status for verdict in verdicts] == ["PASS", "PASS"]
    assert all("this system has no fork server, so every process imports torch anew" in v.notes for v in verdicts)


@pytest.mark.parametrize("place", ["missing", "a file"])
def test_a_machine_whose_folders_take_no_lock_judges_and_says_so(tmp_path, place):
    script = """
import json, pathlib, tempfile
from conformance.process import machine_lock
def fail():
    raise RuntimeError("nobody lives here")
pathlib.Path.home = fail
tempfile.tempdir = FOLDER
with machine_lock.Slot() as one, machine_lock.alone() as two:
    print(json.dumps([one.remark, two]))
"""
    folder = tmp_path / "folder"
    if place == "a file":
        folder.touch()
    one, two = printed(f"FOLDER = {str(folder)!r}\n{script}")
    assert one == two == "no folder takes the lock of the machine, so measurements and cells do not wait for each other"


def test_a_lock_folder_that_cannot_be_used_is_replaced_by_one_at_home(tmp_path, monkeypatch):
    (tmp_path / machine_lock.FOLDER).touch()
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr(machine_lock.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("HOME", str(home))
    with machine_lock.Slot() as slot:
        assert slot.remark == ""
        assert (home / f".{machine_lock.FOLDER}").is_dir()
