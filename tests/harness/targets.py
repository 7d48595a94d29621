"""Functions that tests have child processes call; a child imports this file by its name, and no torch with it."""

import builtins
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from conformance.errors import UsageError
from conformance.process.processes import message_line
from conformance.records.cell import Cell
from conformance.records.tasks import Target

pools = []  # so that they live as long as their process
SLEEPER = [sys.executable, "-c", "import time; time.sleep(3600)"]


def target_of(function, task=dict, result=dict):
    """The target of a function of this file."""
    return Target(f"{__name__}:{function.__name__}", task, result)


def echo(task, process):
    process.enter("thinking")
    return {"task": task, "pid": os.getpid(), "session": os.getsid(0), "main": sys.modules["__main__"].__name__}


def variables(task, process):
    """The environment variables of this process that the task names."""
    return {name: os.environ.get(name) for name in task["names"]}


def renamed(task: Cell, process) -> Cell:
    assert isinstance(task, Cell)
    return Cell(task.model.upper(), task.mode, task.precision, task.device)


def compute(task, process):
    """Keep one core busy for so many seconds of its time."""
    os.sched_setaffinity(0, {task["core"]})
    until = time.process_time() + task["seconds"]
    while time.process_time() < until:
        pass
    return {}


def leave(task, process):
    process.enter("leaving")
    os._exit(task["code"])


def leave_after_answer(task, process):
    sender_of(process).send(result={"number": 7}, remarks=[])
    os._exit(task["code"])


def die(task, process):
    process.enter("dying")
    os.kill(os.getpid(), task["signal"])


def complain(task, process):
    """Print many lines on the error stream, below Python too, and end in some way."""
    process.enter("complaining")
    for number in range(task["lines"]):
        sys.stderr.write(f"line {number}\n")
    os.write(2, b"the last words of native code\n")
    if task["ends"] == "hang":
        time.sleep(3600)
    os.kill(os.getpid(), signal.SIGABRT) if task["ends"] == "abort" else None
    return {}


def refuse(task, process):
    process.enter("reading")
    raise UsageError("there is no such thing")


def hang(task, process):
    process.enter("hanging")
    signal.pause()


def ignore_everything_and_hang(task, process):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hang(task, process)


def answer_and_stay(task, process):
    sender_of(process).send(result={"number": 7}, remarks=[])
    signal.pause()


def garbage(task, process):
    """Send bytes that are no message of this channel, or messages that nobody sends."""
    sender = sender_of(process)
    if "message" in task:
        sender.send(**task["message"])
    else:
        os.write(sender._descriptor, bytes.fromhex(task["bytes"]))
    signal.pause()


def talk(task, process):
    os.write(1, b"{}\n" * 1000)
    os.write(2, b"noise")
    sys.stdin.read()
    return {"read": "everything"}


def no_json(task, process):
    return {"numbers": {1, 2}}


def not_a_number(task, process) -> float:
    return float("nan")  # for which JSON has no form


def a_list(task, process):
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


def harm_the_server(task, process):
    """Send a signal to the fork server, each time or the first time, and answer."""
    process.enter("harming")
    tried = Path(task["file"])
    if task["always"] or not tried.exists():
        tried.touch()
        os.kill(os.getppid(), task["signal"])
        time.sleep(task["seconds"])
    return {"server": os.getppid()}


def tear(task, process):
    """Send the beginning of a message, then leave, hang or send another one."""
    process.enter("tearing")
    sender = sender_of(process)
    whole = message_line(sender._key, {"result": {}, "remarks": []})
    os.write(sender._descriptor, whole[: task["bytes"]])
    if task["then"] == "leave":
        os._exit(0)
    if task["then"] == "hang":
        signal.pause()
    return {}


def go_on_for_ever(task, process):
    sender = sender_of(process)
    os.write(sender._descriptor, message_line(sender._key, {}).rstrip())
    while True:
        os.write(sender._descriptor, bytes(2**16))


def damage(task, process):
    sender = sender_of(process)
    os.write(sender._descriptor, message_line(sender._key, {"number": 1}).replace(b"1}", b"2}"))
    signal.pause()


def answer_at_length(task, process):
    return {"text": "x" * task["length"]}


def write_everywhere(task, process):
    """Write to every descriptor, as a program that closes what it does not own may do."""
    for descriptor in range(3, 256):
        try:
            os.write(descriptor, b'{"result": {"forged": true}, "remarks": []}\n')
        except OSError:
            continue
    return {"forged": False}


def fork_and_go_on(task, process):
    copy = os.fork()
    if copy:
        os.waitpid(copy, 0)
    return {"copy": copy == 0}


def descriptors_of_a_grandchild(task, process):
    """Which descriptors a program has that this process starts."""
    script = "import os; print(*(d for d in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{d}')))"
    said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, close_fds=False).stdout
    return {"descriptors": list(map(int, said.split()))}


def leave_a_thread(task, process):
    threading.Thread(target=time.sleep, args=(3600,)).start()
    return {}


def leave_an_idle_pool(task, process):
    """Return while the threads of a pool wait for work."""
    pools.append(ThreadPoolExecutor(2))
    return {"sum": pools[-1].submit(sum, (1, 2)).result()}


def raise_by_name(task, process):
    raise getattr(builtins, task["type"])(task["text"])


def needs(task, process):
    """Which modules were there before, how many threads the fork server has, and a tangent of a scripted model."""
    there, threads = [name in sys.modules for name in task["modules"]], Path(f"/proc/{os.getppid()}/task")
    torch, *_ = map(importlib.import_module, ["torch", *task["modules"]])
    scripted, x = torch.jit.script(torch.nn.ReLU()), torch.tensor([3.0, -1.0])
    tangent = torch.func.jvp(scripted, (x,), (torch.full_like(x, 2.0),))[1]
    return {"there": there, "threads": len(list(threads.iterdir())), "tangent": tangent.tolist()}


def use_cuda(task, process):
    """Whether CUDA refuses this process because it is forked, and what a cell would report."""
    import torch  # noqa: PLC0415

    from conformance.evaluate.error_text import one_line  # noqa: PLC0415

    text = ""
    try:
        torch.ones(1, device="cuda")
    except (RuntimeError, AssertionError) as problem:
        text = one_line(problem)
    return {"refused": torch.cuda._is_in_bad_fork(), "text": text}
