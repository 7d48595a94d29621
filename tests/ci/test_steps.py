"""Every `run:` step of every kind of job, executed in a clean folder; the network has stand-ins."""

import shutil

import pytest
from harness import stand_ins
from harness.command import ROOT
from harness.stand_ins import PYTHON, TORCH, Artifacts
from harness.workflow_steps import Job, read

EAGER = "--mode=eager --precision=amp_bf16 --device=cpu"
WRONG = f"docs/nets.py {EAGER}"  # with one model whose cells are red


@pytest.fixture
def artifacts(tmp_path):
    return Artifacts(tmp_path / "artifacts")


@pytest.fixture
def job(tmp_path, artifacts):
    """Makes a job in a checkout of its own."""
    variables = stand_ins.environment(tmp_path)
    count = iter(range(99))

    def make(models="", *, empty=False, **contexts):
        number = next(count)
        workspace = tmp_path / f"workspace{number}"
        workspace.mkdir() if empty else stand_ins.checkout(workspace)
        return Job(
            workspace,
            temporary=tmp_path / f"runner{number}",
            stand_ins=artifacts.actions(workspace),
            environment={**variables, "MODELS": models},
            **contexts,
        )

    return make


def steps(workflow, name):
    """The steps of a job."""
    return read(ROOT / ".github" / "workflows" / f"{workflow}.yml")["jobs"][name]["steps"]


def of_steps(job):
    """What the steps printed, for the message of a failing test."""
    return "\n".join(f"== {name} ({code})\n{printed}" for name, (code, printed) in job.results.items())


def test_the_shards_of_a_version_become_one_run_and_the_guardian_misses_none(job, artifacts):
    for shard in (1, 2):
        one = job(
            f"merge cube {EAGER}", matrix={"session": TORCH, "python": PYTHON, "shard": shard, "shards": 2}, github={}
        )
        assert one.run(steps("matrix", "judge")), of_steps(one)
    assert artifacts.names == [f"{TORCH}-1-of-2", f"{TORCH}-2-of-2"]
    merging = job(matrix={"session": TORCH, "python": PYTHON})
    assert merging.run(steps("matrix", "merge")), of_steps(merging)
    whole = artifacts.folder / f"run-{TORCH}"
    assert "<testcase" in (whole / f"{TORCH}.xml").read_text(encoding="utf-8")
    assert (whole / TORCH / "run.json").exists()
    assert "merge" in merging.summary
    assert "cube" in merging.summary


def guarded(job, artifacts, *, judge="success", missing=()):
    page = steps("matrix", "guardian")
    for name in page[1]["env"]["SHARDS"].split():
        if name not in missing:
            (artifacts.folder / name).mkdir(parents=True)
            (artifacts.folder / name / "run.json").touch()
    guardian = job(empty=True, needs={"judge": {"result": judge}, "merge": {"result": "success"}})
    return guardian.run(page), of_steps(guardian)


def test_the_guardian_is_green_when_all_is_there(job, artifacts):
    green, printed = guarded(job, artifacts)
    assert green, printed


def test_the_guardian_is_red_when_a_shard_is_missing(job, artifacts):
    green, printed = guarded(job, artifacts, missing=("2.8.0-2-of-2",))
    assert not green
    assert "::error::the run of shard 2.8.0-2-of-2 is missing or did not end" in printed


def test_the_guardian_is_red_when_a_job_did_not_succeed(job, artifacts):
    green, printed = guarded(job, artifacts, judge="cancelled")
    assert (green, "judge: cancelled, merge: success" in printed) == (False, True)


def test_the_weekly_probe_reports_drift_without_failing(job, artifacts):
    weekly = job(WRONG, matrix={"session": "newest", "python": PYTHON})
    assert weekly.run(steps("weekly", "probe")), of_steps(weekly)
    assert weekly.results["judge"][0] == 1
    assert "::warning title=Drift::with the newest torch" in weekly.results["Report drift"][1]
    assert (artifacts.names, "forgetful" in weekly.summary) == (["newest"], True)


def test_the_weekly_probe_fails_if_its_run_does_not_come_about(job):
    weekly = job("no_such_model", matrix={"session": "newest", "python": PYTHON})
    assert not weekly.run(steps("weekly", "probe"))
    assert "::error::the run of newest is missing" in weekly.results["The run came about"][1]


def test_linux_runs_the_script_of_ci(job):
    linux = job()
    assert linux.run(steps("ci", "linux")), of_steps(linux)
    assert "nox: --session lint types sample(2.13.0) sample(newest) sample(2.4.1) tests" in linux.results[".ci/run"][1]


def test_the_other_systems_judge_list_and_show(job):
    elsewhere = job()
    assert elsewhere.run(steps("ci", "elsewhere")), of_steps(elsewhere)
    assert len([code for code, printed in elsewhere.results.values() if printed]) == 4


def acted(job, *, targets=WRONG, baseline_run="", **inputs):
    """Run the action in a repository that holds a file of models."""
    page = read(ROOT / "action.yml")
    given = {name: about["default"] for name, about in page["inputs"].items()} | {"torch": TORCH, **inputs}
    target, _, args = targets.partition(" ")
    acting = job(
        inputs=given | {"targets": target, "args": f"--no-speed {args}"},
        github={"action_path": str(ROOT), "event": {"repository": {"default_branch": "main"}}, "token": "secret"},
        empty=True,
    )
    acting.environment |= {"BASELINE_RUN": str(baseline_run), "PYTHONPATH": str(ROOT)}
    (acting.workspace / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "nets.py", acting.workspace / "docs")
    return acting.run(page["runs"]["steps"]), acting


def test_the_action_judges_uploads_and_fails_on_red(job, artifacts):
    green, acting = acted(job)
    assert not green, of_steps(acting)
    assert (acting.results["judge"][0], acting.results["Verdict"][0]) == (0, 1)
    assert "branch main has no artifact conformance-models-torch-" in acting.results["baseline"][1]
    assert (len(artifacts.names), "forgetful" in acting.summary) == (1, True)
    assert (artifacts.folder / artifacts.names[0] / "run.json").exists()


def test_the_action_is_green_where_nothing_is_red_and_compares_nothing_if_told_so(job):
    green, acting = acted(job, targets=f"merge {EAGER}", baseline="none")
    assert green, of_steps(acting)
    assert "baseline" not in acting.results
    assert "compare" not in acting.results


def test_what_was_red_on_the_default_branch_is_not_new(job, artifacts):
    acted(job)
    stored = artifacts.folder / artifacts.names[0]
    kept = stored.rename(stored.with_name("of-the-default-branch"))
    green, acting = acted(job, baseline_run=kept, **{"fail-on": "new-red"})
    assert green, of_steps(acting)
    assert acting.results["compare"][0] == 0


def test_the_summary_says_what_differs_from_the_baseline(job, artifacts):
    acted(job, targets=f"merge {EAGER}")
    stored = artifacts.folder / artifacts.names[0]
    kept = stored.rename(stored.with_name("of-the-default-branch"))
    green, acting = acted(job, targets=f"merge docs/nets.py {EAGER}", baseline_run=kept)
    assert not green, of_steps(acting)
    summary = acting.summary
    assert "# ✗ 1 new red" in summary, of_steps(acting)
    assert "<code>forgetful&#91;eager-amp_bf16-cpu&#93;</code>" in summary
    assert summary.index("# ✗ 1 new red") > summary.index("red model")


def test_every_step_of_the_action_runs_and_none_hides_an_error(job, artifacts):
    steps = read(ROOT / "action.yml")["runs"]["steps"]
    assert not [step for step in steps if "|| true" in step.get("run", "")]
    _, first = acted(job)
    stored = artifacts.folder / artifacts.names[0]
    kept = stored.rename(stored.with_name("of-the-default-branch"))
    _, second = acted(job, baseline_run=kept, python="3.11")
    ran = {*first.results, *second.results}
    assert {step.get("id") or step["name"] for step in steps} == ran
    assert "compare" not in first.results


@pytest.mark.parametrize(
    ("inputs", "step", "told"),
    [
        ({"fail-on": "blue"}, "Check the inputs", "fail-on: want red or new-red, got blue"),
        ({"torch": "2.4.0"}, "install", f"torch 2.4.0 was asked for, and {TORCH}"),
        ({"targets": "no_such_model"}, "judge", "no_such_model"),
        ({"shard": "3/2"}, "judge", "3/2"),
    ],
)
def test_the_action_refuses_bad_inputs_in_one_line(job, artifacts, inputs, step, told):
    green, acting = acted(job, **inputs)
    assert not green
    assert told in acting.results[step][1]
    assert (list(acting.results)[-1], artifacts.names) == (step, [])
