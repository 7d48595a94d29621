"""The recipes of docs/scale.md, each run with a stand-in for its scheduler that starts the shards as processes."""

import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from harness.command import FP32, ROOT, environment_of
from harness.tiny import models
from harness.workflow_steps import filled
from ruamel.yaml import YAML

from conformance.store import run_files

PAGE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
MOST_LINES = 10
COUNT = 3  # of the shards in each recipe
LOST = "LOST"  # a variable: the shard, from 1, that the scheduler loses
PROGRAMS = {
    "conformance": '[ "$1" = run ] && set -- "$@" {fp32} -n1\nexec {python} -m conformance "$@"',
    # an array starts at once, the last --array counts, and each job ends before the next one begins
    "sbatch": """
case "$*" in *--wrap=*) exec sh -c "${*##*--wrap=}" ;; esac
for script; do :; done
asked=$(sed -n 's/^#SBATCH//p' "$script"; printf '%s\\n' "$@")
array=$(printf '%s\\n' "$asked" | sed -n 's/.*--array=\\([0-9-]*\\).*/\\1/p' | tail -1)
for i in $(seq "${array%-*}" "${array#*-}"); do
  [ "$i" = "$LOST" ] || SLURM_ARRAY_TASK_ID=$i sh "$script" >&2 &
done
wait
echo 17""",
    "kubectl": '[ "$1" != apply ] || PYTHONPATH={tests}:$PYTHONPATH exec {python} {here} "$3"',
    "buildkite-agent": 'mkdir -p shards && cp -r "$ARTIFACTS/." shards',
}


def blocks(title):
    """The code under a heading of the page, a text each."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"```\w+\n(.*?)```", section, re.DOTALL)


def loaded(text):
    return YAML(typ="safe").load(text)


class Cluster:
    """A folder with two models, and the stand-ins on its PATH."""

    def __init__(self, folder):
        self.folder = folder / "work"
        self.folder.mkdir()
        models(self.folder, one="same", two="same")
        programs = folder / "programs"
        programs.mkdir()
        holes = {"fp32": " ".join(FP32), "python": sys.executable, "here": __file__, "tests": str(ROOT / "tests")}
        for name, text in PROGRAMS.items():
            filled_in = re.sub(r"\{(fp32|python|here|tests)\}", lambda hole: holes[hole[1]], text)
            (programs / name).write_text(f"#!/bin/sh\n{filled_in}\n")
            (programs / name).chmod(0o755)
        path = os.pathsep.join([str(programs), os.environ["PATH"]])
        self.variables = {**environment_of(ROOT), "PATH": path, "ARTIFACTS": str(folder / "artifacts")}

    def start(self, script, **variables):
        command = ["sh", "-c", script]
        return subprocess.Popen(command, cwd=self.folder, env={**self.variables, **variables}, text=True, **BOTH)

    def run(self, script, **variables):
        """The exit code of a script, and what it printed."""
        process = self.start(script, **variables)
        printed, _ = process.communicate(timeout=240)
        return process.returncode, printed

    def run_at_once(self, scripts, lost):
        """Run the commands of all shards but the lost one, each with variables of its own; none may fail."""
        started = [self.start(*each[:1], **each[1]) for shard, each in enumerate(scripts, 1) if str(shard) != lost]
        assert len(scripts) == COUNT
        for process in started:
            printed, _ = process.communicate(timeout=240)
            assert process.returncode == 0, printed


BOTH = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}


def slurm(cluster, lost):
    script, commands = blocks("Slurm")
    (cluster.folder / "judge.sbatch").write_text(script)
    return cluster.run(commands, **{LOST: lost})


def kubernetes(cluster, lost):
    job, commands = blocks("Kubernetes")
    (cluster.folder / "judge.yaml").write_text(job)
    return cluster.run(commands, **{LOST: lost})


def indexed(path):
    """What `kubectl apply` of an indexed job leads to: a process for each index, all at once."""
    job = loaded(Path(path))["spec"]
    assert (job["completionMode"], job["parallelism"]) == ("Indexed", job["completions"])
    (container,) = job["template"]["spec"]["containers"]
    indices = [i for i in range(job["completions"]) if str(i + 1) != os.environ[LOST]]
    pods = [subprocess.Popen(container["command"], env={**os.environ, "JOB_COMPLETION_INDEX": str(i)}) for i in indices]
    return max(pod.wait() for pod in pods)


def buildkite(cluster, lost):
    (pipeline,) = blocks("Buildkite")
    judge, wait, merge = loaded(pipeline)["steps"]
    count = judge["parallelism"]
    variables = {"BUILDKITE_PARALLEL_JOB_COUNT": str(count)}
    command = judge["command"].replace("$$", "$")  # as it is uploaded
    shards = [(command, {**variables, "BUILDKITE_PARALLEL_JOB": str(i)}) for i in range(count)]
    cluster.run_at_once(shards, lost)
    assert wait == {"wait": None, "continue_on_failure": True}
    stored = [path for path in cluster.folder.rglob("*") if path.is_file()]
    names = [path.relative_to(cluster.folder).as_posix() for path in stored]
    assert {name for name in names if fnmatch(name, judge["artifact_paths"])} == set(names) - {"nets.py"}
    shutil.move(cluster.folder / "shards", cluster.variables["ARTIFACTS"])
    return cluster.run(merge["command"].replace("$$", "$"))


def github(cluster, lost):
    (workflow,) = blocks("GitHub")
    jobs = loaded(workflow)["jobs"]
    judge, merge = jobs["judge"], jobs["merge"]
    run, upload = judge["steps"]
    shards = []
    for shard in judge["strategy"]["matrix"]["shard"]:
        contexts = {"matrix": {"shard": shard}}
        place = Path(cluster.variables["ARTIFACTS"], filled(upload["with"]["name"], contexts))
        command = filled(run["run"], contexts).replace("nets.py", str(cluster.folder / "nets.py"))
        shards.append((f"mkdir -p {place} && cd {place} && {command} && mv shards/* . && rmdir shards", {}))
    cluster.run_at_once(shards, lost)
    download, join = merge["steps"]
    assert (merge["needs"], upload["with"]["path"], download["with"]["path"]) == ("judge", "shards", "shards")
    for artifact in Path(cluster.variables["ARTIFACTS"]).iterdir():
        if fnmatch(artifact.name, download["with"]["pattern"]):
            shutil.copytree(artifact, cluster.folder / "shards" / artifact.name)
    return cluster.run(join["run"])


@pytest.mark.parametrize("lost", ["", "2"])
@pytest.mark.parametrize(
    ("title", "scheduler"),
    {"Slurm": slurm, "Kubernetes": kubernetes, "Buildkite": buildkite, "GitHub": github}.items(),
)
def test_a_recipe_judges_every_cell_and_a_lost_shard_is_noticed(tmp_path, title, scheduler, lost):
    assert all(len(block.splitlines()) <= MOST_LINES for block in blocks(title))
    cluster = Cluster(tmp_path)
    code, printed = scheduler(cluster, lost)
    assert code == bool(lost), printed
    assert (f"missing: shard {lost} of {COUNT}, with " in printed) == bool(lost), printed
    contents = run_files.read(cluster.folder / "whole")
    assert (len(contents.verdicts) == 2, contents.complete) == (not lost, not lost)


def test_slurm_starts_the_missing_shards_again_as_the_merge_names_them(tmp_path):
    cluster = Cluster(tmp_path)
    code, printed = slurm(cluster, "2")
    missing = re.search(r"missing: shards? (\S+) of", printed)[1]
    again = f"sbatch --array={missing} judge.sbatch && conformance merge shards/*/runs/* --into new"
    assert (code, cluster.run(again)[0]) == (1, 0)
    assert run_files.read(cluster.folder / "new").complete


if __name__ == "__main__":
    sys.exit(indexed(sys.argv[1]))
