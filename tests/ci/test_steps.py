"""Every `run:` step of every kind of job, executed in a clean folder; the network has stand-ins."""

import shutil

import pytest
from harness import stand_ins
from harness.command import ROOT
from harness.stand_ins import PYTHON, TORCH, Artifacts
from harness.workflow_steps import Job, read

EAGER = "--mode=eager --precision=amp_bf16 --device=cpu"
WRONG = f"docs/nets.py {EAGER}"  # with one model whose cells are red


class Jobs:
    """Makes jobs, each with a folder of its own; they share their artifacts."""

    def __init__(self, folder):
        self.folder, self.artifacts = folder, Artifacts(folder / "artifacts")
        self.variables, self.count = stand_ins.environment(folder), 0

    def make(self, models="", *, checkout=True, **contexts):
        self.count += 1
        workspace = self.folder / f"workspace{self.count}"
        stand_ins.checkout(workspace) if checkout else workspace.mkdir()
        return Job(
            workspace,
            temporary=self.folder / f"runner{self.count}",
            stand_ins=self.artifacts.actions(workspace),
            environment={**self.variables, "MODELS": models},
            **contexts,
        )


@pytest.fixture
def jobs(tmp_path):
    return Jobs(tmp_path)


def steps(workflow, name):
    """The steps of a job."""
    return read(ROOT / ".github" / "workflows" / f"{workflow}.yml")["jobs"][name]["steps"]


def test_the_shards_of_a_version_become_one_run_and_the_guardian_misses_none(jobs):
    for shard in (1, 2):
        one = jobs.make(
            f"merge cube {EAGER}", matrix={"session": TORCH, "python": PYTHON, "shard": shard, "shards": 2}, github={}
        )
        assert one.run(steps("matrix", "judge")), one.printed
    assert jobs.artifacts.names == [f"{TORCH}-1-of-2", f"{TORCH}-2-of-2"]
    merging = jobs.make(matrix={"session": TORCH, "python": PYTHON})
    assert merging.run(steps("matrix", "merge")), merging.printed
    whole = jobs.artifacts.folder / f"run-{TORCH}"
    assert "<testcase" in (whole / f"{TORCH}.xml").read_text(encoding="utf-8")
    assert (whole / TORCH / "run.json").exists()
    assert "merge" in merging.summary
    assert "cube" in merging.summary


@pytest.mark.parametrize(
    ("judge", "missing", "said"),
    [
        ("success", (), ""),
        ("success", ("2.8.0-2-of-2",), "::error::the run of shard 2.8.0-2-of-2 is missing or did not end"),
        ("cancelled", (), "judge: cancelled, merge: success"),
    ],
)
def test_the_guardian_is_red_when_a_shard_is_missing_or_a_job_did_not_succeed(jobs, judge, missing, said):
    page = steps("matrix", "guardian")
    for name in page[1]["env"]["SHARDS"].split():
        if name not in missing:
            (jobs.artifacts.folder / name).mkdir(parents=True)
            (jobs.artifacts.folder / name / "run.json").touch()
    guardian = jobs.make(checkout=False, needs={"judge": {"result": judge}, "merge": {"result": "success"}})
    assert guardian.run(page) is not bool(said), guardian.printed
    assert said in guardian.printed


def test_the_weekly_probe_reports_drift_without_failing(jobs):
    weekly = jobs.make(WRONG, matrix={"session": "newest", "python": PYTHON})
    assert weekly.run(steps("weekly", "probe")), weekly.printed
    assert weekly.results["judge"][0] == 1
    assert "::warning title=Drift::with the newest torch" in weekly.results["Report drift"][1]
    assert (jobs.artifacts.names, "forgetful" in weekly.summary) == (["newest"], True)


def test_the_weekly_probe_fails_if_its_run_does_not_come_about(jobs):
    weekly = jobs.make("no_such_model", matrix={"session": "newest", "python": PYTHON})
    assert not weekly.run(steps("weekly", "probe"))
    assert "::error::the run of newest is missing" in weekly.results["The run came about"][1]


def test_linux_runs_the_script_of_ci_and_the_other_systems_judge_list_and_show(jobs):
    linux, elsewhere = jobs.make(), jobs.make()
    assert linux.run(steps("ci", "linux")), linux.printed
    assert "nox: --session lint types sample(2.13.0) sample(newest) sample(2.4.1) tests" in linux.results[".ci/run"][1]
    assert elsewhere.run(steps("ci", "elsewhere")), elsewhere.printed
    assert len([code for code, printed in elsewhere.results.values() if printed]) == 4


def acted(jobs, *, targets=WRONG, baseline_run="", **inputs):
    """Run the action in a repository that holds a file of models."""
    page = read(ROOT / "action.yml")
    given = {name: about["default"] for name, about in page["inputs"].items()} | {"torch": TORCH, **inputs}
    target, _, args = targets.partition(" ")
    acting = jobs.make(
        inputs=given | {"targets": target, "args": f"--no-speed {args}"},
        github={"action_path": str(ROOT), "event": {"repository": {"default_branch": "main"}}, "token": "secret"},
        checkout=False,
    )
    acting.environment |= {"BASELINE_RUN": str(baseline_run), "PYTHONPATH": str(ROOT)}
    (acting.workspace / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "nets.py", acting.workspace / "docs")
    return acting.run(page["runs"]["steps"]), acting


def left_by(folder, *, is_green, **given):
    """The job of a run of the action, and the artifact that it left."""
    jobs = Jobs(folder)
    ended, acting = acted(jobs, **given)
    assert ended is is_green, acting.printed
    (name,) = jobs.artifacts.names
    return acting, jobs.artifacts.folder / name


@pytest.fixture(scope="module")
def red(tmp_path_factory):
    """A red run."""
    return left_by(tmp_path_factory.mktemp("red"), is_green=False)


@pytest.fixture(scope="module")
def green(tmp_path_factory):
    """A green run that compares nothing, as it is told."""
    return left_by(tmp_path_factory.mktemp("green"), is_green=True, targets=f"merge {EAGER}", baseline="none")


def test_the_action_judges_uploads_and_fails_on_red(red, green):
    acting, artifact = red
    assert (acting.results["judge"][0], acting.results["Verdict"][0]) == (0, 1)
    assert "branch main has no artifact conformance-models-torch-" in acting.results["baseline"][1]
    assert "forgetful" in acting.summary
    assert (artifact / "run.json").exists()
    assert not {"baseline", "compare"} & set(green[0].results)  # as it was told


def test_what_was_red_on_the_default_branch_is_not_new_and_no_step_hides_an_error(jobs, red):
    first, artifact = red
    is_green, second = acted(jobs, baseline_run=artifact, python="3.11", **{"fail-on": "new-red"})
    assert is_green, second.printed
    assert second.results["compare"][0] == 0
    steps = read(ROOT / "action.yml")["runs"]["steps"]
    assert not [step for step in steps if "|| true" in step.get("run", "")]
    assert {step.get("id") or step["name"] for step in steps} == {*first.results, *second.results}
    assert "compare" not in first.results


def test_the_summary_says_what_differs_from_the_baseline(jobs, green):
    is_green, acting = acted(jobs, targets=f"merge docs/nets.py {EAGER}", baseline_run=green[1])
    assert not is_green, acting.printed
    summary = acting.summary
    assert "# ✗ 1 new red" in summary, acting.printed
    assert "<code>forgetful&#91;eager-amp_bf16-cpu&#93;</code>" in summary
    assert summary.index("# ✗ 1 new red") > summary.index("red model")


@pytest.mark.parametrize(
    ("inputs", "step", "told"),
    [
        ({"fail-on": "blue"}, "Check the inputs", "fail-on: want red or new-red, got blue"),
        ({"torch": "2.4.0"}, "install", f"torch 2.4.0 was asked for, and {TORCH}"),
        ({"targets": "no_such_model"}, "judge", "no_such_model"),
        ({"shard": "3/2"}, "judge", "3/2"),
    ],
)
def test_the_action_refuses_bad_inputs_in_one_line(jobs, inputs, step, told):
    is_green, acting = acted(jobs, **inputs)
    assert not is_green
    assert told in acting.results[step][1]
    assert (list(acting.results)[-1], jobs.artifacts.names) == (step, [])
