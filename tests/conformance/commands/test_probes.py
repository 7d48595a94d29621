"""The runner of probes: each verdict, processes and caches of their own, the table, the page in docs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.commands import probes
from conformance.axes import UsageError
from conformance.run.child import Ending

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 120.0
NEEDS_INDUCTOR = {"compile_cache_mixes_dtypes", "round_trip_removed", "two_sums_do_not_compile"}  # C++, many seconds

SAW_IT = Ending("answered", {"saw": "a wrong number"})
DIED_OF_IT = Ending("crashed", message="killed by SIGSEGV")


@pytest.mark.parametrize(
    ("ending", "symptom", "declared", "status", "seen"),
    [
        (SAW_IT, "a wrong number", True, "EXPECTED", "a wrong number"),
        (SAW_IT, "a wrong number", False, "FAIL", "a wrong number; declared for this torch: nothing"),
        (SAW_IT, "an old number", True, "FAIL", "a wrong number; declared for this torch: an old number"),
        (SAW_IT, "an old number", False, "FAIL", "a wrong number; declared for this torch: nothing"),
        (Ending("answered", {"saw": ""}), "a wrong number", False, "PASS", ""),
        (
            Ending("answered", {"saw": ""}),
            "a wrong number",
            True,
            "STALE",
            "not seen; declared for this torch: a wrong number",
        ),
        (DIED_OF_IT, "killed by SIGSEGV", True, "EXPECTED", "killed by SIGSEGV"),
        (DIED_OF_IT, "killed by SIGSEGV", False, "FAIL", "killed by SIGSEGV; declared for this torch: nothing"),
        (DIED_OF_IT, "a wrong number", True, "CRASH", "killed by SIGSEGV; declared for this torch: a wrong number"),
        (
            Ending("crashed", message="killed by SIGABRT"),
            "killed by SIGSEGV",
            True,
            "CRASH",
            "killed by SIGABRT; declared for this torch: killed by SIGSEGV",
        ),
        (
            Ending("timed out", message="no answer within 2 s"),
            "a wrong number",
            False,
            "TIMEOUT",
            "no answer within 2 s; declared for this torch: nothing",
        ),
        (
            Ending("answered", {"raised": "a wrong number"}),
            "a wrong number",
            True,
            "ERROR",
            "a wrong number; declared for this torch: a wrong number",
        ),
        (Ending("answered", {"unavailable": "no cache here"}), "a wrong number", True, "UNSUPPORTED", "no cache here"),
    ],
)
def test_a_verdict_follows_from_what_was_seen_and_declared(ending, symptom, declared, status, seen):
    probe = {"name": "p", "symptom": symptom, "declared": declared, "issue": "", "source": "a source"}
    assert probes.judge_probe(probe, "cpu", ending) == probes.Finding("p", status, seen, "a source")


@pytest.mark.parametrize(
    ("ending", "status", "seen"),
    [
        (SAW_IT, "INCONCLUSIVE", "a wrong number; nothing is declared for cuda"),
        (Ending("answered", {"saw": ""}), "INCONCLUSIVE", "not seen; nothing is declared for cuda"),
        (Ending("answered", {"saw": "another"}), "INCONCLUSIVE", "another; nothing is declared for cuda"),
        (Ending("answered", {"raised": "LookupError: x"}), "ERROR", "LookupError: x; nothing is declared for cuda"),
        (Ending("crashed", message="a wrong number"), "INCONCLUSIVE", "a wrong number; nothing is declared for cuda"),
        (Ending("crashed", message="killed by SIGABRT"), "CRASH", "killed by SIGABRT; nothing is declared for cuda"),
        (Ending("timed out", message="too slow"), "TIMEOUT", "too slow; nothing is declared for cuda"),
        (Ending("answered", {"unavailable": "no cache here"}), "UNSUPPORTED", "no cache here"),
    ],
)
def test_where_nothing_is_declared_what_was_seen_is_said_and_decides_nothing(ending, status, seen):
    probe = {"name": "p", "symptom": "a wrong number", "declared": None, "issue": "", "source": "a source"}
    assert probes.judge_probe(probe, "cuda", ending) == probes.Finding("p", status, seen, "a source")


def test_the_link_goes_before_the_source():
    probe = {"name": "p", "symptom": "s", "declared": False, "issue": "https://issue", "source": "a source"}
    assert probes.judge_probe(probe, "cpu", SAW_IT).issue == "https://issue"


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


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A package of miniature probes in place of the zoo's; returns a function that adds one."""
    folder = tmp_path / f"miniatures_{tmp_path.name}"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(probes, "PACKAGE", folder.name)
    monkeypatch.setenv("CONFORMANCE_PRELOAD", "")  # restored afterwards, whatever `main` sets
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")

    def add(name, body, torch=NEVER, **words):
        words = {"symptom": "a wrong number", "device": "cpu", "devices": (), **words}
        (folder / f"{name}.py").write_text(MINIATURE.format(name=name, body=body, torch=torch, **words))

    return add


@pytest.mark.parametrize(
    ("body", "torch", "symptom", "status"),
    [
        ("return ''", NEVER, "a wrong number", "PASS"),
        ("return 'a wrong number'", ALWAYS, "a wrong number", "EXPECTED"),
        ("return 'a wrong number'", NEVER, "a wrong number", "FAIL"),
        ("return ''", ALWAYS, "a wrong number", "STALE"),
        ("return device", ALWAYS, "cpu", "EXPECTED"),
        ("return None", NEVER, "a wrong number", "ERROR"),
        ("raise LookupError('gone')", ALWAYS, "LookupError: gone", "ERROR"),
        ("raise Unavailable('no such thing')", ALWAYS, "a wrong number", "UNSUPPORTED"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", ALWAYS, "killed by SIGSEGV", "EXPECTED"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", NEVER, "killed by SIGSEGV", "FAIL"),
        ("os.kill(os.getpid(), signal.SIGABRT)", ALWAYS, "killed by SIGSEGV", "CRASH"),
        ("os._exit(0)", ALWAYS, "a wrong number", "CRASH"),
    ],
)
def test_every_way_to_end_gets_its_verdict(write, body, torch, symptom, status):
    write("mine", body, torch, symptom=symptom)
    (finding,) = probes.run([], "cpu", PATIENCE)
    assert (finding.probe, finding.status) == ("mine", status)


@pytest.mark.parametrize(("body", "said"), [("return ''", "not seen"), ("return 'a wrong number'", "a wrong number")])
def test_a_device_without_a_declaration_is_red_whatever_is_seen(write, capsys, body, said):
    write("mine", body, ALWAYS, device="cuda")
    assert probes.main([], device="cpu", timeout=PATIENCE) == 1
    words = f"? mine INCONCLUSIVE {said}; nothing is declared for cpu a source"
    assert capsys.readouterr().out.splitlines()[2].split() == words.split()


def test_a_probe_about_another_device_is_not_run(write, capsys):
    write("mine", "os.kill(os.getpid(), signal.SIGKILL)", device="cuda", devices=("cuda",))
    assert probes.main([], device="cpu", timeout=PATIENCE) == 0
    words = "· mine SKIPPED not run: it is about cuda alone a source"
    assert capsys.readouterr().out.splitlines()[2].split() == words.split()


def test_an_unknown_device_is_a_usage_error():
    with pytest.raises(UsageError, match="unknown device 'tpu'; known: cpu, cuda"):
        probes.run([], "tpu", PATIENCE)


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
    (finding,) = probes.run([], "cpu", 3.0)
    assert (finding.status, finding.seen[:22]) == ("TIMEOUT", "no answer within 3 s; ")


def test_one_that_dies_takes_no_other_with_it(write):
    write("first", "os.kill(os.getpid(), signal.SIGKILL)")
    write("second", "return ''")
    assert [(f.probe, f.status) for f in probes.run([], "cpu", PATIENCE)] == [("first", "CRASH"), ("second", "PASS")]


def test_each_has_a_process_and_an_empty_cache_of_its_own(write, tmp_path):
    for name in ("first", "second"):
        body = f"""cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    Path({str(tmp_path / name)!r}).write_text(f"{{os.getpid()}} {{cache}} {{len(list(cache.iterdir()))}}")
    return ''"""
        write(name, body)
    assert [f.status for f in probes.run([], "cpu", PATIENCE)] == ["PASS", "PASS"]
    first, second = ((tmp_path / name).read_text().split() for name in ("first", "second"))
    assert first[0] != second[0]
    assert first[1] != second[1]
    assert first[2] == second[2] == "0"
    assert not Path(first[1]).exists()


def test_names_choose_and_set_the_order(write):
    for name in ("one", "two", "three"):
        write(name, "return ''")
    assert [f.probe for f in probes.run(["two", "one"], "cpu", PATIENCE)] == ["two", "one"]


def test_an_unknown_name_is_told_its_neighbours(write):
    write("double_backward", "return ''")
    with pytest.raises(UsageError, match=r"no probe named 'double_backwards'; did you mean double_backward\?"):
        probes.run(["double_backwards"], "cpu", PATIENCE)
    with pytest.raises(UsageError, match=r"no probe named 'zzz'; there are double_backward"):
        probes.run(["zzz"], "cpu", PATIENCE)


def test_probes_that_cannot_be_read_are_a_usage_error(write):
    write("mine", "return ''", torch="whenever")
    with pytest.raises(UsageError, match=r"does not import: SpecError: .*whenever"):
        probes.run([], "cpu", PATIENCE)


def test_a_zoo_that_does_not_import_is_a_usage_error(monkeypatch):
    def refuse(*_, **__):
        raise EOFError("unexpected EOF")  # what a fork server that died at its start leaves

    monkeypatch.setattr(probes.isolation, "run", refuse)
    with pytest.raises(UsageError, match="fork server does not start"):
        probes.run([], "cpu", PATIENCE)


def test_the_table_shows_all_and_the_exit_code_says_whether_any_is_red(write, capsys):
    write("right", "return ''")
    write("wrong", "return 'a wrong number'", ALWAYS)
    assert probes.main([], device="cpu", timeout=PATIENCE) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["probe", "verdict", "seen", "issue"]
    assert lines[2].split() == ["✓", "right", "PASS", "a", "source"]
    assert lines[3].split() == ["≠", "wrong", "EXPECTED", "a", "wrong", "number", "a", "source"]
    write("wrong", "return 'a wrong number'", NEVER)
    assert probes.main([], device="cpu", timeout=PATIENCE) == 1
    assert "✗ wrong" in capsys.readouterr().out
    assert probes.main(["right"], device="cpu", timeout=PATIENCE) == 0


def test_what_a_probe_says_cannot_command_the_terminal(write, capsys):
    write("mine", r"return '\x1b[2J'")
    assert probes.main([], device="cpu", timeout=PATIENCE) == 1
    assert "\\u001b[2J" in capsys.readouterr().out


def test_the_page_is_the_declarations():
    """Write it anew with: python docs/build.py."""
    assert (ROOT / "docs" / "probes.md").read_text(encoding="utf-8") == probes.markdown()


def test_the_page_has_a_row_for_each_probe_with_a_link_or_a_source(write):
    write("mine", "return ''", ALWAYS)
    page = probes.markdown()
    assert page.splitlines()[-3:] == [
        "| probe | at risk | what is seen | issue or source | CPU: shows in | CPU: run with |",
        "| --- | --- | --- | --- | --- | --- |",
        f"| [mine](../{probes.PACKAGE}/mine.py) | s | a wrong number | a source | `>=2.4` | 2.4.1 |",
    ]
    assert "On CUDA none was run yet" in page


def test_the_page_has_columns_for_each_device_on_which_any_probe_was_run(write):
    write("first", "return ''", ALWAYS)
    write("second", "return ''", device="cuda")
    page = probes.markdown()
    assert [line.split(" | ")[4:] for line in page.splitlines()[-4:]] == [
        ["CPU: shows in", "CPU: run with", "CUDA: shows in", "CUDA: run with |"],
        ["---", "---", "---", "--- |"],
        ["`>=2.4`", "2.4.1", "", " |"],
        ["", "", "`never`", "2.4.1 |"],
    ]
    assert "none was run yet" not in page


def test_the_runner_itself_never_imports_torch():
    code = """
import sys
from conformance.commands import probes
if __name__ == "__main__":
    probes.markdown()
    print([f.status for f in probes.run(["script_promotes_arithmetic"], "cpu", 120.0)], "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout == "['EXPECTED'] False\n"


NAMES = sorted(path.stem for path in (ROOT / "zoo" / "probes").glob("[!_]*.py"))


@pytest.mark.parametrize("name", [n for n in NAMES if n not in NEEDS_INDUCTOR])
def test_this_torch_has_the_faults_declared_for_it(name):
    (finding,) = probes.run([name], "cpu", PATIENCE)
    assert not finding.red, finding
