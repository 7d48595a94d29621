"""The runner of probes: a process and a cache for each, the table, and what cannot be run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.commands import probes
from conformance.errors import UsageError
from conformance.process import environment
from conformance.records import tasks

ROOT = Path(__file__).parent.parent.parent.parent
PATIENCE = 120.0
NEEDS_INDUCTOR = {  # C++, many seconds
    "compile_cache_mixes_dtypes",
    "equal_gradients_share_memory",
    "round_trip_removed",
    "two_sums_do_not_compile",
}

MINIATURE = """
import os, signal, sys, time
from pathlib import Path
from zoo.probe import Probe, Seen, Unavailable

def observe(device):
    {body}

PROBE = Probe(name={name!r}, summary="s", source="a source", symptom={symptom!r}, devices={devices!r},
              seen={{{device!r}: Seen(torch={torch!r}, checked=("2.4.1",))}}, observe=observe)
"""
ALWAYS, NEVER = ">=2.4", "never"


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    """What the command sets for its children is undone."""
    for name in (environment.CACHE, environment.THREADS, environment.COMPILES_FOR):
        monkeypatch.setenv(name, "")  # so that it is put back, or removed
        monkeypatch.delenv(name)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A package of miniature probes in place of the zoo's; returns a function that adds one."""
    folder = tmp_path / f"miniatures_{tmp_path.name}"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(tasks, "PACKAGE", folder.name)

    def add(name, body, torch=NEVER, **words):
        words = {"symptom": "a wrong number", "device": "cpu", "devices": (), **words}
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)  # it tells a file by its second and its size
        (folder / f"{name}.py").write_text(MINIATURE.format(name=name, body=body, torch=torch, **words))

    return add


@pytest.mark.parametrize(
    ("body", "torch", "symptom", "status"),
    [
        ("return ''", ALWAYS, "a wrong number", "STALE"),
        ("return device", ALWAYS, "cpu", "EXPECTED"),
        ("return None", NEVER, "a wrong number", "ERROR"),
        ("raise LookupError('gone')", ALWAYS, "LookupError: gone", "ERROR"),
        ("raise Unavailable('no such thing')", ALWAYS, "a wrong number", "UNSUPPORTED"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", ALWAYS, "killed by SIGSEGV", "EXPECTED"),
        ("os._exit(0)", ALWAYS, "a wrong number", "CRASH"),
    ],
)
def test_every_way_to_end_gets_its_verdict(write, body, torch, symptom, status):
    write("mine", body, torch, symptom=symptom)
    (finding,) = probes.observe((), "cpu", PATIENCE).findings
    assert (finding.probe, finding.status) == ("mine", status)


@pytest.mark.parametrize(("body", "said"), [("return ''", "not seen"), ("return 'a wrong number'", "a wrong number")])
def test_a_device_without_a_declaration_is_red_whatever_is_seen(write, capsys, body, said):
    write("mine", body, ALWAYS, device="cuda")
    assert probes.show_probes((), device="cpu", timeout=PATIENCE) == 1
    words = f"? mine INCONCLUSIVE {said}; nothing is declared for cpu a source"
    assert capsys.readouterr().out.splitlines()[2].split() == words.split()


def test_a_probe_about_another_device_is_not_run(write, capsys):
    write("mine", "os.kill(os.getpid(), signal.SIGKILL)", device="cuda", devices=("cuda",))
    assert probes.show_probes((), device="cpu", timeout=PATIENCE) == 0
    words = "· mine SKIPPED not run: it is about cuda alone a source"
    assert capsys.readouterr().out.splitlines()[2].split() == words.split()


def test_an_absent_device_is_a_usage_error_and_runs_nothing():
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "conformance", "probes", "--device=cuda"]
    done = subprocess.run(command, cwd=ROOT, env=hidden, check=False, capture_output=True, text=True)
    assert done.returncode == 4
    said = "device 'cuda' was asked for, but torch sees no CUDA device"
    assert said in done.stdout + done.stderr
    assert "double_backward" not in done.stdout + done.stderr


def test_a_probe_that_hangs_is_stopped(write):
    write("mine", "time.sleep(3600)")
    (finding,) = probes.observe((), "cpu", 3.0).findings
    assert (finding.status, finding.seen[:22]) == ("TIMEOUT", "no answer within 3 s; ")


def test_a_probe_that_dies_takes_no_other_with_it(write):
    write("first", "os.kill(os.getpid(), signal.SIGKILL)")
    write("second", "return ''")
    assert [(f.probe, f.status) for f in probes.observe((), "cpu", PATIENCE).findings] == [
        ("first", "CRASH"),
        ("second", "PASS"),
    ]


def test_each_probe_has_a_process_and_an_empty_cache_of_its_own(write, tmp_path):
    for name in ("first", "second"):
        body = f"""cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    Path({str(tmp_path / name)!r}).write_text(f"{{os.getpid()}} {{cache}} {{len(list(cache.iterdir()))}}")
    return ''"""
        write(name, body)
    assert [f.status for f in probes.observe((), "cpu", PATIENCE).findings] == ["PASS", "PASS"]
    first, second = ((tmp_path / name).read_text().split() for name in ("first", "second"))
    assert first[0] != second[0]
    assert first[1] != second[1]
    assert first[2] == second[2] == "0"
    assert not Path(first[1]).exists()


def test_names_choose_and_an_unknown_one_is_refused_with_its_neighbours(write):
    for name in ("one", "two", "double_backward"):
        write(name, "return ''")
    assert [f.probe for f in probes.observe(("two", "one"), "cpu", PATIENCE).findings] == ["two", "one"]
    with pytest.raises(UsageError, match="unknown device 'tpu'; did you mean cpu\\?"):
        probes.observe((), "tpu", PATIENCE)
    with pytest.raises(UsageError, match=r"no probe named 'double_backwards'; did you mean double_backward\?"):
        probes.observe(("double_backwards",), "cpu", PATIENCE)


def test_probes_that_cannot_be_read_are_a_usage_error(write):
    write("mine", "return ''", torch="whenever")
    with pytest.raises(UsageError, match=r"does not import: SpecError: .*whenever"):
        probes.observe((), "cpu", PATIENCE)


def test_the_table_shows_all_and_the_exit_code_tells_whether_any_is_red(write, capsys):
    write("right", "return ''")
    write("wrong", "return 'a wrong number'", ALWAYS)
    assert probes.show_probes((), device="cpu", timeout=PATIENCE) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["probe", "verdict", "seen", "issue"]
    assert lines[2].split() == ["✓", "right", "PASS", "a", "source"]
    assert lines[3].split() == ["≠", "wrong", "EXPECTED", "a", "wrong", "number", "a", "source"]
    write("wrong", r"return '\x1b[2J'", NEVER)
    assert probes.show_probes((), device="cpu", timeout=PATIENCE) == 1
    assert re.search(r"✗ wrong +FAIL +\\u001b\[2J", capsys.readouterr().out)
    assert probes.show_probes(("right",), device="cpu", timeout=PATIENCE) == 0


def test_probes_are_read_with_what_they_declare_for_a_device(write):
    write("always", "return ''", ALWAYS)
    write("elsewhere", "return ''", device="cuda", devices=("cuda",))
    always, elsewhere = probes.read("cpu").probes
    assert (always.name, always.seen, always.concerns, always.declared) == (
        *("always", {"cpu": tasks.SeenOn(ALWAYS, ("2.4.1",))}, True, True),
    )
    assert (elsewhere.devices, elsewhere.concerns, elsewhere.declared) == (("cuda",), False, None)


def test_the_runner_itself_never_imports_torch():
    code = """
import sys
from conformance.commands import probes
if __name__ == "__main__":
    probes.read("cpu")
    found = probes.observe(("script_promotes_arithmetic",), "cpu", 120.0).findings
    print([f.status for f in found], "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout == "['EXPECTED'] False\n"


NAMES = sorted(path.stem for path in (ROOT / "zoo" / "probes").glob("[!_]*.py"))


@pytest.mark.parametrize("name", [n for n in NAMES if n not in NEEDS_INDUCTOR])
def test_this_torch_has_the_faults_declared_for_it(name):
    (finding,) = probes.observe((name,), "cpu", PATIENCE).findings
    assert not finding.red, finding
