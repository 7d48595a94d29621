"""The example: its tests pass, they fail when its backward is wrong, and the tutorial shows what they print."""

import os
import shutil

import pytest
from harness.command import ROOT, python

EXAMPLE = ROOT / "examples" / "tiny_lm"
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
RIGHT = "return 2 * x.relu() * grad"


@pytest.fixture
def example(tmp_path):
    """A copy of the example."""
    return shutil.copytree(EXAMPLE, tmp_path / "tiny_lm")


def printed_by(folder, expression):
    """What the tests of the example print, without compiled cells: these would take a minute."""
    path = os.pathsep.join([str(ROOT), str(folder)])
    return python(folder, "-m", "pytest", "-p", "conformance.own.fixture", "-q", "-k", expression, path=path)


def test_its_tests_pass(example):
    assert "10 passed, 4 deselected" in printed_by(example, "not compiled")


def test_a_wrong_backward_fails(example):
    source = example / "tiny_lm" / "squared_relu.py"
    assert RIGHT in source.read_text()
    source.write_text(source.read_text().replace(RIGHT, RIGHT.replace("2 * ", "")))
    printed = printed_by(example, "squared and not compiled and bf16")
    assert "2 failed" in printed
    line = (
        "✗ squared_re_lu[eager-amp_bf16-cpu]  INVALID  gradcheck in float64: Jacobian mismatch: gradient of x at (0, 4)"
    )
    assert line in printed
    assert line in TUTORIAL


def test_the_tutorial_shows_the_example():
    _, _, code = (EXAMPLE / "tests" / "test_conformance.py").read_text(encoding="utf-8").partition('"""\n\n')
    assert code in TUTORIAL
    assert f"-        {RIGHT}" in TUTORIAL
