"""A run under GitHub Actions: the summary of the step, the annotations, and who may give commands."""

import re
import xml.etree.ElementTree as ET

import pytest
from harness.command import FP32, conformance, run_folder
from harness.tiny import models

RAISING = "lambda: (_ for _ in ()).throw(ValueError('::error::forged\\n::add-mask::x <b>'))"
JUNIT = "--junitxml=results/junit.xml"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A red run under GitHub Actions: its folder and what it printed."""
    folder = tmp_path_factory.mktemp("repository")
    (folder / "specs").mkdir()
    source = models(folder / "specs", one="same", two=RAISING)
    (folder / "summary.md").write_text("# another step\n")
    told = {"GITHUB_WORKSPACE": str(folder), "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    code, output = conformance(folder, "run", f"specs/{source}", *FP32, "-n", "1", JUNIT, GITHUB_ACTIONS="true", **told)
    assert code == 1, output
    return folder, output


def commands(output):
    """The lines that GitHub executes."""
    stopped, found = "", []
    for line in output.splitlines():
        command = line.strip()
        if stopped:
            stopped = "" if command == f"::{stopped}::" else stopped
        elif command.startswith("::stop-commands::"):
            stopped = command.removeprefix("::stop-commands::")
        elif command.startswith("::") or "##[" in command:
            found.append(command)
    assert not stopped
    return found


def test_annotations_are_the_only_commands_and_the_summary_is_appended_and_equals_what_show_prints(run):
    folder, output = run
    (command,) = commands(output)
    assert re.match(r"::error file=specs/nets\.py,line=\d+,title=two%3A 1 cell \w+::", command)
    summary = (folder / "summary.md").read_text()
    assert summary.startswith("# another step\n## ✗ 2 cells, 1 red · ")
    code, shown = conformance(folder, "show", str(run_folder(output)), "--md")
    assert code == 1
    assert summary.removeprefix("# another step\n") == shown


def test_junit_is_written_beside_the_working_folder_and_again_by_show(run):
    folder, output = run
    written = (folder / "results" / "junit.xml").read_text()
    names = {case.get("name"): case.get("classname") for case in ET.fromstring(written.encode()).iter("testcase")}
    assert names == {"one[eager-fp32-cpu]": "one", "two[eager-fp32-cpu]": "two"}
    conformance(folder, "show", str(run_folder(output)), "--junit-xml=again.xml")
    assert (folder / "again.xml").read_text() == written


def test_elsewhere_nothing_is_written_and_no_command_printed(run):
    folder, output = run
    before = (folder / "summary.md").read_text()
    _, shown = conformance(folder, "show", str(run_folder(output)))
    assert "::stop-commands::" not in shown
    assert (folder / "summary.md").read_text() == before


def test_a_page_is_printed_as_it_is(run):
    folder, output = run
    shown = conformance(folder, "show", str(run_folder(output)), "--md")
    assert conformance(folder, "show", str(run_folder(output)), "--md", GITHUB_ACTIONS="true") == shown
    assert commands(shown[1]) == []


def test_a_summary_that_cannot_be_written_is_said_and_changes_no_verdict(tmp_path):
    source = models(tmp_path, one="same")
    code, output = conformance(tmp_path, "run", source, *FP32, "-n", "1", GITHUB_STEP_SUMMARY=str(tmp_path))
    assert code == 0, output
    assert f"conformance: GITHUB_STEP_SUMMARY {tmp_path}: Is a directory; the step has no summary of this run" in output


def test_a_junit_file_that_cannot_be_written_is_refused_before_anything_is_planned(tmp_path):
    source = models(tmp_path, one="same")
    (tmp_path / "file").touch()
    code, output = conformance(tmp_path, "run", source, *FP32, "--junitxml=file/junit.xml")
    assert code == 4, output
    assert output == "conformance: --junitxml file/junit.xml: Not a directory\n"
    assert not (tmp_path / ".conformance").exists()
    (tmp_path / "folder").mkdir()
    code, output = conformance(tmp_path, "run", source, *FP32, "-n", "1", "--junitxml=folder")
    assert code == 1, output
    assert output.splitlines()[-1] == "conformance: --junitxml folder: Is a directory"
    assert "1 cell: 1 pass" in output
