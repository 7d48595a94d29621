"""Cells judged on a Ray cluster: the verdicts of a run on one machine, whatever becomes of nodes and judges.

The cluster is one of Ray's own for tests: nodes with one core each, on this machine.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conformance.commands.on_ray import TRIES, Work
from conformance.process import process_table
from conformance.records.cell import NODE
from conformance.store import run_files

ASKED = ["--mode", "eager,scripted", "--no-speed", "--fresh"]
NETS = str(Path(__file__).parents[3] / "docs" / "nets.py")
SECONDS = 180
START = """
import sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
nodes = [cluster.head_node, cluster.add_node(num_cpus=1)]
print(cluster.address, flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == "lose":
        cluster.remove_node(nodes.pop(), allow_graceful=False)
    elif word == "add":
        nodes.append(cluster.add_node(num_cpus=1))
    print(word, flush=True)
cluster.shutdown()
"""


class Cluster:
    """Two nodes on this machine, in a process that does as it is told."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-c", START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.address = self._answer(r"[\d.]+:\d+")

    @property
    def pid(self):
        """The process that started the nodes."""
        return self._process.pid

    def tell(self, word):
        """Lose a node, or add one."""
        print(word, file=self._process.stdin, flush=True)
        self._answer(word)

    def _answer(self, pattern):
        for line in self._process.stdout:
            if re.fullmatch(pattern, line.strip()):
                return line.strip()
        raise AssertionError("the cluster did not start")

    def end(self):
        """End all nodes."""
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray")
    found = Cluster()
    yield found
    found.end()


def start(folder, *words, address="", engine="ray"):
    return subprocess.Popen(
        [sys.executable, "-m", "conformance", "run", *words, "--store", str(folder), "--on", engine],
        env={**os.environ, "RAY_ADDRESS": address, "XDG_CACHE_HOME": str(folder / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process):
    said = process.communicate(timeout=SECONDS)[0]
    return process.returncode, said


def contents_in(folder):
    (run,) = (folder / "runs").iterdir()
    return run_files.read(run)


def told(contents):
    """What each cell's verdict is, without seconds and node."""
    return {
        cell: (verdict.status, verdict.text, [(str(d.tensor), d.measures) for d in verdict.observation.discrepancies])
        for cell, verdict in contents.verdicts.items()
    }


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """What one machine says."""
    folder = tmp_path_factory.mktemp("local")
    command = [sys.executable, "-m", "conformance", "run", NETS, *ASKED, "--store", str(folder)]
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    subprocess.run(command, env=env, capture_output=True, timeout=SECONDS, check=False)
    return told(contents_in(folder))


# Which node gets which cell


def cells(*names):
    return [f"{name}-fp32-cpu]" for name in names]


def test_a_node_keeps_its_models_and_then_helps():
    work = Work(cells("a[eager", "b[eager", "a[scripted", "b[scripted", "b[compiled"))
    taken = [work.take(node) for node in ("one", "two", "one", "one", "two", "two")]
    assert taken == [*cells("a[eager", "b[eager", "a[scripted", "b[scripted", "b[compiled"), ""]


def test_a_cell_whose_judges_die_is_tried_so_often_and_first():
    work = Work(cells("a[eager", "b[eager"))
    for _ in range(TRIES - 1):
        cell = work.take("one")
        assert cell == cells("a[eager")[0]
        assert work.put_back(cell)
    assert not work.put_back(work.take("one"))
    assert len(work) == 1


def test_what_a_lost_node_had_belongs_to_nobody():
    work = Work(cells("a[eager", "b[eager", "a[scripted"))
    work.take("one")
    assert work.take("two") == cells("b[eager")[0]
    work.forget("one")
    assert work.take("two") == cells("a[scripted")[0]


# Bad input


def test_an_address_where_nothing_is_gives_one_line(tmp_path):
    pytest.importorskip("ray")
    code, said = finish(start(tmp_path, NETS, *ASKED, engine="ray://127.0.0.1:9"))
    assert (code, said.count("\n")) == (4, 1)
    assert "--on ray://127.0.0.1:9: no Ray cluster answers there" in said
    assert not list((tmp_path / "runs").iterdir())


def test_without_ray_one_line_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "ray.py").write_text("raise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    code, said = finish(start(tmp_path / "store", NETS, *ASKED))
    assert (code, said.count("\n")) == (4, 1)
    assert "pip install 'ray[client]'" in said


# On two nodes

slow = pytest.mark.slow


@slow
def test_the_verdicts_are_those_of_one_machine(cluster, tmp_path, local):
    code, said = finish(start(tmp_path, NETS, *ASKED, address=cluster.address))
    found = contents_in(tmp_path)
    assert code == 1, said  # a model of the file is wrong
    assert told(found) == local
    assert len({verdict.observation.facts[NODE] for verdict in found.verdicts.values()}) == 2
    assert found.complete


@slow
def test_a_part_is_selected_and_a_red_cell_ends_it(cluster, tmp_path):
    code, _ = finish(start(tmp_path, NETS, *ASKED, "-k", "forgetful and bf16", "-x", address=cluster.address))
    found = contents_in(tmp_path)
    assert code == 1
    assert len(found.selected) == 2
    assert len(found.verdicts) <= 2
    assert any(verdict.red for verdict in found.verdicts.values())


@slow
def test_speeds_are_measured_after_all_cells(cluster, tmp_path):
    asked = ("softmax", "--mode=eager", "--precision=fp32", "--device=cpu", "--fresh", "--speed", "-n0")
    code, said = finish(start(tmp_path, *asked, address=cluster.address))
    assert code == 0, said
    assert contents_in(tmp_path).results


@slow
def test_a_lost_node_loses_no_verdict(cluster, tmp_path, local):
    process = start(tmp_path, NETS, *ASKED, address=cluster.address)
    wait_for_verdicts(tmp_path, 1)
    cluster.tell("lose")
    cluster.tell("add")
    code, said = finish(process)
    assert code == 1, said
    assert told(contents_in(tmp_path)) == local


@slow
@pytest.mark.parametrize("seed", range(3))
def test_killed_judges_lose_no_verdict(cluster, tmp_path, local, seed):
    chance = random.Random(seed)
    process = start(tmp_path, NETS, *ASKED, address=cluster.address)
    wait_for_verdicts(tmp_path, chance.randrange(4))
    kill_a_judge(cluster, chance)
    code, said = finish(process)
    assert code == 1, said
    assert told(contents_in(tmp_path)) == local


@slow
def test_what_the_driver_has_stored_stays(cluster, tmp_path, local):
    process = start(tmp_path, NETS, *ASKED, address=cluster.address)
    wait_for_verdicts(tmp_path, 1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (run,) = (tmp_path / "runs").iterdir()
    assert run_files.read(run).missing
    code, said = finish(start(tmp_path, NETS, "--resume", str(run), address=cluster.address))
    assert code == 1, said
    assert told(run_files.read(run)) == local


@slow
def test_a_node_that_has_another_source_is_left_out(cluster, tmp_path):
    """The plan knows a file as it is where the run was planned; here, the nodes see another."""
    source = tmp_path / "nets.py"
    source.write_text(Path(NETS).read_text())
    process = start(tmp_path, str(source), *ASKED, "-v", address=cluster.address)
    while not list(tmp_path.glob("runs/*/plan.json")):
        time.sleep(0.01)
    source.write_text(source.read_text() + "\n")
    code, said = finish(process)
    assert code == 4, said
    assert f"{source} has changed" in said
    assert not list((tmp_path / "runs").iterdir())  # nothing was judged


def wait_for_verdicts(folder, count):
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        lines = [path.read_bytes().count(b"\n") for path in folder.glob("runs/*/cells.jsonl")]
        if lines and lines[0] >= count:
            return
        time.sleep(0.02)
    raise AssertionError("no verdict came")


def kill_a_judge(cluster, chance):
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        judges = []
        for pid in process_table.descendants(cluster.pid):
            try:
                judges += [pid] * Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::Judge")
            except OSError:
                continue
        if judges:
            os.kill(chance.choice(judges), signal.SIGKILL)
            return
        time.sleep(0.02)
    raise AssertionError("there is no judge")
