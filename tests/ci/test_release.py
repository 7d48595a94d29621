"""A release: its changelog, and the workflow up to the upload, whose wheel runs away from the checkout."""

import subprocess
import sys
import zipfile

import pytest
from harness import stand_ins
from harness.command import ROOT
from harness.stand_ins import Artifacts
from harness.workflow_steps import Job, read

from conformance import __version__
from conformance.torch_versions import DEFAULT

STEPS = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]["build"]["steps"]
FRAGMENTS = [path for path in (ROOT / "changelog.d").iterdir() if path.suffix == ".md"]
NEXT = "9.9.9"  # a version that no release has had
WIDEST = 118  # a release puts "- " before it


def towncrier(folder, *arguments):
    """The exit code of the command that writes the changelog, and what it printed."""
    command = [sys.executable, "-m", "towncrier", "build", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def checkout(tmp_path):
    """A copy of the project, with the number of its next version."""
    copy = stand_ins.checkout(tmp_path / "checkout")
    page = copy / "conformance" / "__init__.py"
    page.write_text(page.read_text(encoding="utf-8").replace(f'"{__version__}"', f'"{NEXT}"'), encoding="utf-8")
    return copy


def test_every_change_is_a_fragment_of_a_known_kind_and_a_sentence():
    code, printed = towncrier(ROOT, "--draft")
    assert code == 0, printed
    for text in (path.read_text(encoding="utf-8") for path in FRAGMENTS):
        assert text.endswith(".\n"), text
        assert max(map(len, text.splitlines())) <= WIDEST, text
        assert text.splitlines()[0] in printed


@pytest.mark.parametrize("name", ["+new.nice.md", "new.md"])
def test_a_fragment_of_another_kind_is_refused(checkout, name):
    (checkout / "changelog.d" / name).write_text("Something.\n")
    code, printed = towncrier(checkout, "--draft")
    assert code == 1
    assert name in printed


def test_a_release_dates_its_section_which_has_all_that_was_written(checkout):
    page = checkout / "CHANGELOG.md"
    before = page.read_text(encoding="utf-8")
    assert towncrier(checkout, "--yes", "--date=2030-01-02")[0] == 0
    start, heading, section = page.read_text(encoding="utf-8").partition(f"\n## [{NEXT}] - 2030-01-02\n")
    assert heading
    head, mark, body = before.partition("<!-- releases -->\n")
    assert (start, section.endswith(body.lstrip())) == (head + mark, True)
    assert all(path.read_text(encoding="utf-8").splitlines()[0] in section for path in FRAGMENTS)
    assert [path.name for path in (checkout / "changelog.d").iterdir()] == [".gitkeep"]


def released(checkout, *, tag=f"v{NEXT}"):
    """The job that builds a release, in a checkout, and its artifacts."""
    variables = {
        "PATH": stand_ins.environment(checkout.parent)["PATH"],
        "PYTHONPATH": "",
        "GITHUB_REF_NAME": tag,
    }
    artifacts = Artifacts(checkout.parent / "artifacts")
    job = Job(
        checkout,
        temporary=checkout.parent / "runner",
        stand_ins=artifacts.actions(checkout),
        environment=variables,
    )
    job.run(STEPS)
    return job, artifacts


@pytest.mark.parametrize(
    ("tag", "told"),
    [
        (f"v{__version__}", f"the tag is v{__version__}, and the version {NEXT}"),
        (f"v{NEXT}", f"has no date for {NEXT}"),
    ],
)
def test_a_tag_of_another_version_and_a_changelog_without_its_date_are_not_released(checkout, tag, told):
    job, artifacts = released(checkout, tag=tag)
    assert told in job.printed
    assert list(job.results)[-1].startswith("The tag")
    assert artifacts.names == []


@pytest.mark.slow
def test_a_release_holds_what_its_examples_need(checkout):
    assert towncrier(checkout, "--yes")[0] == 0
    job, artifacts = released(checkout)
    assert not job.failed, job.printed
    assert f"torch {DEFAULT}" in job.printed
    assert "9 cells: 7 pass, 2 fail" in job.printed
    source, wheel = sorted((artifacts.folder / "dist").iterdir(), key=lambda path: path.suffix)
    assert (source.suffix, wheel.suffix) == (".gz", ".whl")
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert tops == {"zoo", "conformance", f"torch_conformance-{NEXT}.dist-info"}


def test_a_citation_names_the_version():
    assert read(ROOT / "CITATION.cff")["version"] == __version__
