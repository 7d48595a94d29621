"""Files with tiny models that do something to the run, and the command that judges them in a second."""

from pathlib import Path

from harness.command import FP32, conformance

HEAD = """
import os, signal, time, torch
from pathlib import Path
from zoo import Case, Spec

def spec(name, build):
    case = Case(name="typical", inputs=lambda g: (torch.randn(4, 3, generator=g),))
    return Spec(name=name, summary=name, source="a test", build=build, cases=(case,), dtypes="input")

def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def main_process():
    "The process of the command: the last one on the way up that still is one."
    pid, found = os.getpid(), 0
    while pid > 1:
        if b"-m\\0conformance\\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
            found = pid
        pid = parent(pid)
    return found

def worker():
    "The process that judges this cell: the child of the command on the way up, or the command."
    pid = os.getpid()
    while pid != main_process() and parent(pid) != main_process():
        pid = parent(pid)
    return pid

def once(action):
    "A model that acts in its cell, and not when its reference is made."
    def build():
        def model(x):
            if x.dtype == torch.float32:
                action()
            return x * 2
        return model
    return build

def same():
    return lambda x: x * 2

def until(condition):
    while not condition():
        time.sleep(0.05)

def stored(text):
    return any(text in path.read_text() for path in Path(".conformance").glob("runs/*/cells.jsonl"))
"""


def models(folder, stem="nets", **builds):
    """Write a file with a model for each name and the source of its `build`; returns its name."""
    specs = "".join(f'{name.upper()} = spec("{name}", {build})\n' for name, build in builds.items())
    path = Path(folder) / f"{stem}.py"
    path.write_text(HEAD + specs)
    return path.name


def judged(folder, *arguments, **environment):
    """Judge eager cells in fp32; returns the exit code and the output."""
    return conformance(folder, "run", *arguments, *FP32, **environment)
