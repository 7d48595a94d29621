"""The workflows are those that follow from nox's list, and GitHub takes them."""

import importlib.util
import re
import subprocess

import pytest
from harness.command import ROOT
from harness.workflow_steps import read

from conformance.torch_versions import PYTHONS, VERSIONS

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTION = ROOT / "action.yml"
found = importlib.util.spec_from_file_location("workflows", ROOT / ".ci" / "workflows.py")
generator = importlib.util.module_from_spec(found)
found.loader.exec_module(generator)


def checked(*command):
    """What a checker says; empty if it has nothing to say."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_the_workflows_follow_from_the_list_of_nox():
    pages = generator.pages()
    assert sorted(pages) == WORKFLOWS
    assert [path.name for path, text in pages.items() if path.read_text(encoding="utf-8") != text] == []


def test_the_matrix_judges_every_version_in_every_shard_and_the_guardian_knows_them_all():
    jobs = read(ROOT / ".github" / "workflows" / "matrix.yml")["jobs"]
    judged, merged = jobs["judge"]["strategy"]["matrix"], jobs["merge"]["strategy"]["matrix"]
    assert (judged["session"], merged["session"]) == (list(VERSIONS), list(VERSIONS))
    newest = {"session": f"python{PYTHONS[-1]}-{VERSIONS[-1]}", "python": PYTHONS[-1]}
    assert merged["include"] == [newest]
    assert judged["include"] == [{**newest, "shard": n, "shards": len(judged["shard"])} for n in judged["shard"]]
    assert judged["shard"] == list(range(1, judged["shards"][0] + 1))
    names = [
        f"{version}-{n}-of-{judged['shards'][0]}" for version in (*VERSIONS, newest["session"]) for n in judged["shard"]
    ]
    guardian = jobs["guardian"]
    assert guardian["steps"][1]["env"]["SHARDS"].split() == names
    assert (guardian["if"], guardian["needs"]) == ("${{ always() }}", ["judge", "merge"])


def test_a_new_version_reaches_every_list():
    text = "jobs:\n  # <versions>\n  torch: []\n  # </versions>\nsteps:\n"
    assert generator.written(text, {"versions": ['torch: ["2.99.0"]']}) == text.replace("[]", '["2.99.0"]')


def test_actionlint_finds_nothing():
    assert checked("actionlint", "-version") == "", "install the extra `tests`"
    assert checked("actionlint", *map(str, WORKFLOWS)) == ""


@pytest.mark.parametrize(
    ("schema", "files"),
    {
        "github-workflows": WORKFLOWS,
        "github-actions": [ACTION],
        "gitlab-ci": [ROOT / "examples" / "tiny_lm" / ".gitlab-ci.yml"],
        "citation-file-format": [ROOT / "CITATION.cff"],
    }.items(),
)
def test_the_files_match_their_schema(schema, files):
    assert checked("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, files)) == ""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("runs-on: ubuntu-latest", "runs-on: ubuntu"), ("matrix.session", "matrix.sesion"), ("with:", "whit:")],
)
def test_the_checkers_would_find_something(tmp_path, right, wrong):
    page = tmp_path / "matrix.yml"
    page.write_text((ROOT / ".github/workflows/matrix.yml").read_text(encoding="utf-8").replace(right, wrong, 1))
    assert wrong.split(": ")[-1].strip(":") in checked("actionlint", str(page))


EXAMPLES = re.findall(r"(?s)```yaml\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(encoding="utf-8"))
JOBS_BEFORE = "name: Conformance\non: push\njobs:\n"
MODELS = "  models:\n    runs-on: ubuntu-latest\n    steps:\n      - run: ls\n"


@pytest.mark.parametrize("example", EXAMPLES)
def test_actionlint_takes_each_example_of_the_page_and_the_action_has_its_inputs(tmp_path, example):
    part = "" if example.startswith("name:") else JOBS_BEFORE + ("" if "  models:" in example else MODELS)
    page = tmp_path / "page.yml"
    page.write_text(part + example)
    assert checked("actionlint", str(page)) == ""
    jobs = read(page)["jobs"].values()
    given = [step.get("with", {}) for job in jobs for step in job["steps"] if "torch-conf" in step.get("uses", "")]
    assert {name for inputs in given for name in inputs} <= set(read(ACTION)["inputs"])


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION], ids=lambda path: path.name)
def test_no_input_and_no_context_of_an_event_is_pasted_into_a_script(path):
    page = read(path)
    jobs = page.get("jobs", {"action": page.get("runs", {})})
    scripts = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert scripts
    assert [text for text in scripts if "inputs." in text or "${{ github." in text] == []
