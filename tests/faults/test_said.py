"""What lies behind a strange ending is said in one line: a thread, a limit, a variable, a folder that is gone."""

import re
import time

import pytest
from harness.command import FP32, ROOT, conformance, run_folder, started
from harness.processes import printed
from harness.spec_files import planned
from harness.tiny import judged, models

from conformance.cell import compiler
from conformance.commands import planning, progress
from conformance.judging.executor import Executor
from conformance.process import child, environment, machine_lock, process_table
from conformance.records.plan import say_set


def test_a_resumed_run_says_that_its_last_line_was_torn(tmp_path):
    source = models(tmp_path, one="same")
    code, told = judged(tmp_path, source, "-n1")
    folder = run_folder(told)
    lines = folder / "cells.jsonl"
    (folder / "run.json").unlink()
    lines.write_bytes(lines.read_bytes()[:-5])
    left = len(lines.read_bytes())
    code, told = conformance(tmp_path, "run", source, "--resume", folder, "-n1")
    assert (code, told.count(f"{lines}: the last line is unfinished, {left} bytes were left out")) == (0, 1), told


def test_a_run_says_once_that_it_waits_for_others(monkeypatch, capsys):
    monkeypatch.setattr(progress, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(machine_lock, "POLL_SECONDS", 0.01)
    ticker = progress.Ticker(progress.Progress({"a": 1.0}, "cell"))
    with ticker.beating():
        time.sleep(0.5)
    assert progress.WAITING not in capsys.readouterr().out
    with machine_lock.alone() as remark, ticker.beating():
        assert not remark
        time.sleep(0.5)
    assert capsys.readouterr().out.count(f"· {progress.WAITING}\n") == 1


def test_a_thread_that_outlives_the_answer_is_named(tmp_path):
    source = tmp_path / models(tmp_path, one="same")
    source.write_text(
        f"import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\n{source.read_text()}"
    )
    code, told = judged(tmp_path, source.name)
    killed = "conformance: planning nets.py: it did not end within 5 s after its answer, so it was killed"
    threads = "threads that were still running, and are no daemons: Thread-1 (sleep)"
    assert (code, told) == (4, f"{killed}\n    {threads}\n")


VOID = "VOID  in phase judge: scripting gave a function, no ScriptModule or ScriptFunction; PYTORCH_JIT is set"


def test_a_variable_that_changes_a_compiler_stands_in_the_header_and_in_the_line_of_a_red_cell(tmp_path):
    source = models(tmp_path, one="same")
    words = ("--mode=eager", "--mode=scripted", *FP32[1:], "-n1")
    code, told = conformance(tmp_path, "run", source, *words, PYTORCH_JIT="0", TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    assert code == 1
    assert re.search(r"^torch .* · seed 0 · PYTORCH_JIT is set$", told, re.MULTILINE), told
    assert f"✗ one[scripted-fp32-cpu]  {VOID}" in told
    code, told = conformance(tmp_path, "run", source, "--resume", run_folder(told))
    assert (code, told.count("it was made with variables PYTORCH_JIT, this is none")) == (4, 1), told


def test_variables_that_only_name_folders_or_are_empty_change_no_compiler(monkeypatch):
    for name, value in {"TORCHINDUCTOR_CACHE_DIR": "/x", "TORCH_COMPILE_DISABLE": "", "TORCHDYNAMO_X": "1"}.items():
        monkeypatch.setenv(name, value)
    assert say_set(environment.compiler_variables()) == "TORCHDYNAMO_X is set"


def test_a_working_folder_that_is_gone_is_told(tmp_path):
    words = ("run", "nets.py", *FP32)
    process = started(tmp_path, *words, prefix=("sh", "-c", f'rmdir {tmp_path} && exec "$@"', "sh"))
    told, _ = process.communicate(timeout=200)
    assert (process.returncode, told) == (4, "conformance: the working folder was removed; go to one that exists\n")


def test_a_limit_on_memory_stands_beside_what_it_may_have_caused(tmp_path, monkeypatch):
    source = tmp_path / models(tmp_path, one="lambda: lambda x: x + torch.ones(10**10).sum()")
    own = planned(str(source), modes=("eager",), precisions=("fp32",), devices=("cpu",))
    environment.prepare_children(None, compiles_for=())
    monkeypatch.setattr(process_table, "say_memory_limit", lambda: "ulimit -v allows 2.0 GB")
    found = Executor(own, tmp_path / "references").verdict(own.cells[0])
    assert (found.status, found.text.endswith("; ulimit -v allows 2.0 GB")) == ("OOM", True)


LIMITED = """
import json, resource
from conformance.process import child, process_table
resource.setrlimit(resource.RLIMIT_AS, (10**9, resource.RLIM_INFINITY))
print(json.dumps([process_table.say_memory_limit(), child._cause_of_death(-9, answered=False)]))
"""


def test_the_limits_of_this_process_are_told(tmp_path, monkeypatch):
    limit, death = printed(LIMITED)
    assert limit.startswith("ulimit -v allows 1.0 GB")
    assert death == f"killed by SIGKILL (perhaps by the system, because memory ran out: {limit})"
    group = tmp_path / "groups" / "a" / "b"
    group.mkdir(parents=True)
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("1:name=x:/\n0::/a/b\n")
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text("3000000000\n")
    monkeypatch.setattr(process_table, "TABLE", tmp_path)
    monkeypatch.setattr(process_table, "GROUPS", tmp_path / "groups")
    assert "the control group allows 3.0 GB" in process_table.say_memory_limit()


@pytest.mark.parametrize(
    ("message", "said"), [("MemoryError", ""), ("killed by SIGABRT", "std::bad_alloc"), ("left with exit code 3", "")]
)
def test_a_plan_that_failed_names_the_limit_if_it_may_be_the_cause(monkeypatch, message, said):
    monkeypatch.setattr(process_table, "say_memory_limit", lambda: "ulimit -v allows 0.4 GB")
    ending = child.Ending("crashed", None, "start", message, said=(said,))
    wanted = "" if "exit code" in message else "; ulimit -v allows 0.4 GB"
    assert planning._memory_limit(ending) == wanted


def test_a_run_folder_that_is_removed_meanwhile_is_told_and_nothing_else(tmp_path):
    remove = "once(lambda: __import__('shutil').rmtree(next(Path('.conformance').glob('runs/*'))))"
    code, told = judged(tmp_path, models(tmp_path, one=remove, two="same"), "-n1")
    folder = re.search(r"stored in (\S+)", told)[1]
    last = f"conformance: the verdict of one[eager-fp32-cpu] could not be stored: somebody has removed {folder}\n"
    assert (code, told.endswith(last), "Error" in told) == (1, True, False), told


META = "its source sets torch's default device to meta when it is imported, so nothing has numbers"
BEHIND = "w is changed in forward, undeclared, where autograd does not see it, as by .data; "
WRITES = """
class Writes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        y = x * self.w
        self.w.data.mul_(1.01)
        return y
"""


def test_a_default_device_of_meta_and_a_weight_written_behind_autograd_are_named(tmp_path):
    for name, build, more in (("meta", "same", "torch.set_default_device('meta')"), ("writes", "Writes", "")):
        source = tmp_path / models(tmp_path, one="same", stem=name)
        text = source.read_text().replace('"one", same', f'"{name}", {build}')
        source.write_text(text.replace("ONE =", f"{WRITES}\nONE =") + more)
    code, told = judged(tmp_path, "meta.py", "writes.py", "-n1")
    assert code == 1
    assert f"✗ meta[eager-fp32-cpu]  INVALID  {META}\n" in told, told
    assert f"✗ writes[eager-fp32-cpu]  INVALID  {BEHIND}gradcheck in float64: " in told, told


WITHOUT = """
import sysconfig
known = sysconfig.get_path
sysconfig.get_path = lambda name, *a, **k: "/nowhere" if name == "include" else known(name, *a, **k)
"""


def test_without_the_headers_of_python_one_line_says_what_to_install_for_all_models(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(WITHOUT)
    source = models(tmp_path, one="same", two="same")
    words = ("--mode=compiled", *FP32[1:], "-n1")
    code, told = conformance(tmp_path, "run", source, *words, PYTHONPATH=f"{site}:{ROOT}")
    text = "in phase prepare: NoCompilerError: torch.compile needs Python.h, which is missing; install Python's headers"
    assert (code, told.count(f"✗ 2 cells of 2 models  ERROR  {text}"), told.count("NoCompilerError")) == (1, 1, 1), told


def test_headers_that_only_the_compiler_finds_are_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler.sysconfig, "get_path", lambda *_, **__: "/nowhere")
    (tmp_path / compiler.HEADER).touch()
    assert not compiler._finds_header("g++")
    monkeypatch.setenv("CPATH", str(tmp_path))
    compiler.lacks_python.cache_clear()
    assert not compiler.lacks_python()
    compiler.lacks_python.cache_clear()
