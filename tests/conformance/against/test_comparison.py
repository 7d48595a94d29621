"""Two revisions beside each other: counters decide, clocks never; and what cannot be compared is said."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conformance.against import checkout, comparison
from conformance.axes import UsageError
from conformance.against.worker import Delegate, DelegateError

ROOT = Path(__file__).parent.parent.parent
NETS = """
import torch
from zoo.spec import Case, Spec
from layers import forward

def spec(name, rows=4):
    case = Case(name="typical", inputs=lambda g: (torch.randn(rows, 3, generator=g),))
    return Spec(name=name, summary=name, source="a test", build=lambda: forward, cases=(case,))

NET = spec("net")
"""
LEAN = "def forward(x):\n    return x.exp()\n"
WASTEFUL = "def forward(x):\n    return x.exp().sin().exp()\n"
EAGER = {"modes": ["eager"], "precisions": ["fp32"], "devices": ["cpu"], "speed": False}
OF_THE_ZOO = "from zoo import catalog; from conformance.against.worker import serve; import zoo; print(zoo.__file__)"


def git(folder, *arguments):
    command = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder, **files):
    """Write the files, with their endings, and commit them; returns the short name."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "--allow-empty", "-q", "-m", "more")
    return git(folder, "rev-parse", "--short", "HEAD")


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "-q")
    return tmp_path


def compare(folder, rev, capsys, **options):
    code = comparison.main([str(folder / "nets.py")], rev, **{**EAGER, **options})
    return code, capsys.readouterr().out


def test_more_bytes_are_red_and_less_are_not(repository, capsys):
    lean = commit(repository, nets=NETS, layers=LEAN)
    wasteful = commit(repository, layers=WASTEFUL)
    code, output = compare(repository, "HEAD~1", capsys)
    assert code == 1, output
    assert f"against HEAD~1 ({lean})" in output
    assert "1 cells compared, 4 counters differ" in output
    assert row(output, "saved bytes") == ["net[eager-fp32-cpu]", "saved", "bytes", "48", "96", "✗", "more"]
    commit(repository, layers=LEAN)
    code, output = compare(repository, wasteful, capsys)
    assert code == 0, output
    assert row(output, "saved bytes") == ["net[eager-fp32-cpu]", "saved", "bytes", "96", "48", "✓", "less"]
    assert git(repository, "status", "--porcelain", "--ignored").replace("?? ", "!! ") in ("", "!! __pycache__/")
    assert git(repository, "worktree", "list").count("\n") == 0


def row(output, word):
    return next(line.split() for line in output.splitlines() if f"  {word} " in line)


def test_what_is_gone_red_or_of_another_case_is_red_what_is_new_is_named(repository, capsys):
    four = NETS + 'GONE = spec("gone")\nWIDER = spec("wider")\nRED = spec("red")\n'
    commit(repository, nets=four, layers=LEAN)
    unstable = "import dataclasses\nRED = dataclasses.replace(NET, name='red', build=lambda: torch.rand_like)\n"
    commit(repository, nets=NETS + 'WIDER = spec("wider", 5)\nFRESH = spec("fresh")\n' + unstable)
    code, output = compare(repository, "HEAD~1", capsys)
    assert code == 1, output
    assert "1 cells compared, 0 counters differ" in output
    assert "✗ gone: gone" in output
    assert "✗ wider: its first case was (4, 3) float32, now it is (5, 3) float32" in output
    assert "✗ red[eager-fp32-cpu]: was green, now " in output
    assert "· fresh: new" in output


def test_compiled_graphs_are_counted(repository, capsys):
    commit(repository, nets=NETS, layers=LEAN)
    broken = "import torch\n\ndef forward(x):\n    y = x.exp()\n    torch._dynamo.graph_break()\n    return y * 2\n"
    commit(repository, layers=broken)
    code, output = compare(repository, "HEAD~1", capsys, modes=["compiled"])
    assert code == 1, output
    assert row(output, "graphs") == ["net[compiled-fp32-cpu]", "graphs", "1", "2", "✗", "more"]
    assert row(output, "graph breaks") == ["net[compiled-fp32-cpu]", "graph", "breaks", "0", "1", "✗", "more"]


def test_times_are_read_beside_and_never_decide(repository, capsys):
    commit(repository, nets=NETS, layers=LEAN)
    slow = LEAN.replace("    return", "    for _ in range(100_000):\n        pass\n    return")
    commit(repository, layers=slow)
    code, output = compare(repository, "HEAD~1", capsys, speed=True)
    assert code == 0, output
    assert "Times of forward and backward beside" in output
    assert "They never decide." in output
    said = [line for line in output.splitlines() if line.startswith("net[eager-fp32-cpu]")]
    assert len(said) == 1, output
    assert any(word in said[0] for word in ("▼", "too noisy", "too slow", "control failed", "no steady state")), output


def test_an_interrupt_leaves_no_folder_and_no_process(repository, tmp_path_factory):
    commit(repository, nets=NETS, layers=LEAN)
    code = "import sys; from conformance import against; sys.exit(comparison.main(['nets.py'], 'HEAD'))"
    scratch = tmp_path_factory.mktemp("scratch")
    environment = {**os.environ, "TMPDIR": str(scratch)}
    command = [sys.executable, "-u", "-c", code]
    with subprocess.Popen(command, cwd=repository, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline().startswith("against HEAD")
        while len(started := children(running.pid)) < 2:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 2
    assert not list(scratch.glob("conformance-against-*"))
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.parametrize(
    ("sources", "rev", "message"),
    [
        (["nets.py"], "nonsense", "--against nonsense: no such revision in "),
        (["nets.py"], "--all", "--against --all: no such revision in "),
        (["later.py"], "HEAD", "--against HEAD: later.py is not in "),
        (["none.py"], "HEAD", "--against HEAD: no file "),
        (["nets.py", "merge"], "HEAD", "beside models of the zoo"),
        (["zoo.ops.softmax"], "HEAD", "zoo.ops.softmax is a module; name its file"),
    ],
)
def test_what_cannot_be_had_is_refused(repository, monkeypatch, sources, rev, message):
    commit(repository, nets=NETS, layers=LEAN)
    (repository / "later.py").write_text(NETS)
    monkeypatch.chdir(repository)
    with pytest.raises(UsageError) as refused:
        comparison.main(sources, rev, **EAGER)
    assert message in str(refused.value)


def test_no_repository_is_refused_with_the_words_of_git(tmp_path):
    (tmp_path / "nets.py").write_text(NETS)
    with pytest.raises(UsageError, match=r"nets\.py is in no git repository \(fatal: .*not a git repository"):
        comparison.main([str(tmp_path / "nets.py")], "HEAD", **EAGER)


def test_the_revision_s_own_folder_is_taken_even_inside_a_hook(repository, tmp_path_factory, monkeypatch):
    commit(repository, nets=NETS, layers=LEAN)
    (repository / "layers.py").write_text(WASTEFUL)
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    old = checkout.then(checkout.now([str(repository / "nets.py")]), "HEAD", tmp_path_factory.mktemp("then"))
    assert Path(old.sources[0]).read_text() == NETS
    assert (Path(old.sources[0]).parent / "layers.py").read_text() == LEAN


def test_a_delegate_imports_from_its_own_folders_whatever_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "zoo.py").write_text("def where(task):\n    return [__file__, task]\n")
    monkeypatch.chdir(ROOT)
    with Delegate([tmp_path], {}) as delegate:
        assert delegate.ask("zoo:where", 7) == [str(tmp_path / "zoo.py"), 7]


def test_a_delegate_says_what_went_wrong(tmp_path):
    code = "import os, sys, time\n\ndef leave(task):\n    print('farewell', file=sys.stderr)\n    sys.exit(task)\n"
    (tmp_path / "odd.py").write_text(code + "\ndef sleep(task):\n    time.sleep(task)\n")
    with Delegate([tmp_path], {}, 0.5) as delegate, pytest.raises(DelegateError, match=r"no answer within 0\.5 s"):
        delegate.ask("odd:sleep", 60)
    with Delegate([tmp_path], {}, 60.0) as delegate:
        with pytest.raises(DelegateError, match=r"ImportError|AttributeError"):
            delegate.ask("odd:nothing")
        with pytest.raises(DelegateError, match="left with exit code 3: farewell"):
            delegate.ask("odd:leave", 3)


def test_a_zoo_too_old_is_refused_by_name(repository, tmp_path_factory, monkeypatch):
    (repository / "zoo").mkdir()
    (repository / "zoo" / "__init__.py").write_text("OLD = True\n")
    name = commit(repository)
    monkeypatch.setattr(checkout, "_home", lambda package: (repository if package == "zoo" else ROOT) / package)
    old = checkout.then(checkout.now(["merge"]), "HEAD", tmp_path_factory.mktemp("then"))
    assert old.name == name
    task = {"modes": ["eager"], "precisions": ["fp32"], "devices": ["cpu"], "seed": 0, "deadline": 60.0}
    with pytest.raises(UsageError, match=r"its zoo has no zoo\.case, which this conformance needs"):
        comparison._Comparison(old, old, task, tmp_path_factory.mktemp("work"))


def test_the_zoo_of_the_revision_is_judged_by_the_conformance_of_now(tmp_path):
    old = checkout.then(checkout.now(["merge"]), "HEAD", tmp_path)
    assert old.path[0] == tmp_path
    assert old.path[1:] == (ROOT,)
    assert {p.name for p in tmp_path.iterdir()} == {"zoo"}
    assert os.environ.get("PYTHONPATH", "") != str(tmp_path)
    assert sys.modules.get("zoo") is None or str(tmp_path) not in str(sys.modules["zoo"].__file__)
