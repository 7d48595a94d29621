"""The example gates itself without GitHub: the script of its GitLab job runs, and with it its noxfile."""

import re
import shutil
import subprocess

import pytest
from harness import stand_ins
from harness.command import ROOT
from harness.stand_ins import TORCH
from harness.workflow_steps import Job, read

from conformance.torch_versions import DEFAULT, VERSIONS

EXAMPLE = ROOT / "examples" / "tiny_lm"
JOB = read(EXAMPLE / ".gitlab-ci.yml")["models"]
ADDRESS = "git+https://github.com/OWNER/torch-conformance"
RIGHT = "return 2 * x.relu() * grad"


def replaced(page, old, new):
    """Replace what stands in a page."""
    text = page.read_text(encoding="utf-8")
    assert old in text
    page.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture
def example(tmp_path):
    """A copy of the example that takes a repository of this checkout, and the torch that is installed."""
    repository = stand_ins.checkout(tmp_path / "torch-conformance")
    for words in ("init", "add .", "-c user.name=a -c user.email=a@b commit -m all"):
        subprocess.run(["git", *words.split()], cwd=repository, check=True, capture_output=True)
    copy = shutil.copytree(EXAMPLE, tmp_path / "tiny_lm")
    replaced(copy / "pyproject.toml", ADDRESS, f"git+file://localhost{repository}")  # old pip wants a host
    replaced(copy / "noxfile.py", DEFAULT, TORCH)
    return copy


def gitlab(example, expression):
    """The job of one version, after its script has run with the tests that an expression of pytest selects."""
    variables = {**stand_ins.environment(example.parent), "PYTEST_ADDOPTS": f"-k '{expression}'", "TORCH": TORCH}
    job = Job(example, temporary=example.parent / "runner", environment=variables)
    job.run([{"run": line} for line in JOB["script"]])
    return job


def test_the_job_of_gitlab_judges_the_example_and_keeps_a_report(example):
    job = gitlab(example, "not compiled")
    assert not job.failed, job.printed
    report = (example / JOB["artifacts"]["reports"]["junit"]).read_text(encoding="utf-8")
    assert 'failures="0"' in report
    assert report.count("<testcase") == 10


def test_the_job_fails_when_a_backward_is_wrong(example):
    replaced(example / "tiny_lm" / "squared_relu.py", RIGHT, RIGHT.replace("2 * ", ""))
    job = gitlab(example, "squared and not compiled and bf16")
    assert job.failed
    assert "2 failed" in job.printed


def test_both_files_list_the_same_versions_and_all_pages_the_same_address():
    (matrix,) = JOB["parallel"]["matrix"]
    listed = re.search(r"VERSIONS = \[(.*)\]", (EXAMPLE / "noxfile.py").read_text(encoding="utf-8"))[1]
    assert re.findall(r'"(.*?)"', listed) == matrix["TORCH"]
    assert set(matrix["TORCH"]) <= set(VERSIONS)
    for page in (ROOT / "README.md", EXAMPLE / "pyproject.toml"):
        assert ADDRESS in page.read_text(encoding="utf-8"), page
