"""Functions that tests have child processes call; a child imports this file by its name, and no torch with it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from conformance.errors import UsageError
from conformance.records.cell import Cell
from conformance.records.tasks import Target
from conformance.run import channel

SLEEPER = [sys.executable, "-c", "import time; time.sleep(3600)"]


def target_of(function, task=dict, result=dict):
    """The target of a function of this file."""
    return Target(f"{__name__}:{function.__name__}", task, result)


def echo(task, process):
    """Return the task, and what the process is."""
    process.enter("thinking")
    return {"task": task, "pid": os.getpid(), "session": os.getsid(0), "main": sys.modules["__main__"].__name__}


def renamed(task: Cell, process) -> Cell:
    """Return a record made of a record."""
    assert isinstance(task, Cell)
    return Cell(task.model.upper(), task.mode, task.precision, task.device)


def leave(task, process):
    """Leave with an exit code and no result."""
    process.enter("leaving")
    os._exit(task["code"])


def leave_after_answer(task, process):
    """Send a result, and leave with an exit code."""
    sender_of(process).send(result={"number": 7}, remarks=[])
    os._exit(task["code"])


def die(task, process):
    """Kill this process with a signal."""
    process.enter("dying")
    os.kill(os.getpid(), task["signal"])


def raise_something(task, process):
    """Raise an exception that nobody catches."""
    process.enter("raising")
    raise LookupError("nobody catches this")


def refuse(task, process):
    """Raise a usage error."""
    process.enter("reading")
    raise UsageError("there is no such thing")


def hang(task, process):
    """Wait for a signal forever."""
    process.enter("hanging")
    signal.pause()


def ignore_everything_and_hang(task, process):
    """Wait forever, and ignore polite signals."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hang(task, process)


def answer_and_stay(task, process):
    """Send a result, and do not leave."""
    sender_of(process).send(result={"number": 7}, remarks=[])
    signal.pause()


def garbage(task, process):
    """Send bytes that are no message of this channel, or messages that nobody sends."""
    sender = sender_of(process)
    if "message" in task:
        sender.send(**task["message"])
    else:
        channel.write(sender._descriptor, bytes.fromhex(task["bytes"]))
    signal.pause()


def close_pipe(task, process):
    """Close the pipe, and do not leave."""
    os.close(sender_of(process)._descriptor)
    signal.pause()


def talk(task, process):
    """Print on both streams, and read."""
    os.write(1, b"{}\n" * 1000)
    os.write(2, b"noise")
    sys.stdin.read()
    return {"read": "everything"}


def no_json(task, process):
    """Return what JSON cannot hold."""
    return {"numbers": {1, 2}}


def not_a_number(task, process) -> float:
    """Return a number that JSON has no form for."""
    return float("nan")


def a_list(task, process):
    """Return a list, whatever was declared."""
    return [1, 2]


def work_on_the_machine(task, process):
    """Take the machine lock, then work; returns when that began and the phases around it."""
    phases = [process.current]
    process.enter("preparing")
    with getattr(process, task["kind"])():
        phases.append(process.current)
        began = time.monotonic()
        time.sleep(task["seconds"])
    return {"began": began, "phases": phases}


def count_time(task, process):
    """Spend time in phases."""
    for name in ("one", "two", "one"):
        with process.phase(name):
            time.sleep(0.05)
    return {"seconds": process.seconds, "phase": process.current}


def with_grandchildren(task, process):
    """Start processes in this session, in a session of their own, and one whose parent is gone."""
    near = subprocess.Popen(SLEEPER)
    far = subprocess.Popen(SLEEPER, start_new_session=True)
    script = f"import subprocess; print(subprocess.Popen({SLEEPER!r}, stdout=-3, stderr=-3).pid)"
    orphan = int(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True).stdout)
    Path(task["file"]).write_text(f"{near.pid} {far.pid} {orphan}")
    if task["then"] == "hang":
        signal.pause()
    if task["then"] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


def sender_of(process):
    """The child's end of the channel, which targets are not meant to touch."""
    (sender,) = (cell.cell_contents for cell in process._report.__closure__)
    return sender
