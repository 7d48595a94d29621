"""The fixture of people's own test suites."""

import os
import shutil

import pytest
from harness.command import ROOT, python

NETS = """
import pytest
import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.left(x) * torch.sigmoid(self.right(x))


SEEN = []
"""
SAME = """
@pytest.mark.conformance(modes=["eager", "scripted"], precisions=["fp32", "amp_bf16"])
def test_gate(conformance):
    net = Gate()
    SEEN.append(net.left.weight)
    assert all(torch.equal(SEEN[0], weight) for weight in SEEN)
    assert conformance.check(net, torch.randn(6, 4)).ok


def test_generators_are_put_back():
    assert torch.initial_seed() == torch.default_generator.initial_seed() != 0
"""
EMPTY = """
@pytest.mark.conformance(modes="eager", precisions="fp32")
def test_nothing(conformance):
    Gate()


@pytest.mark.conformance(modes="eager", precisions="fp32")
def test_skips(conformance):
    pytest.skip("not today")
"""
AXES = """
@pytest.mark.conformance(modes="compiled")
class TestGate:
    def test_all(self, conformance):
        pass

    @pytest.mark.conformance(modes=("scripted", "eager"), devices=("cpu", "cuda"), precisions=("fp32", "tf32"))
    def test_some(self, conformance):
        pass


def test_plain(conformance):
    pass
"""


CONFTEST = """
import conformance


def mine(graph, examples):
    return graph.forward


def early(model):
    return lambda *arguments: model(*arguments) * 1.5


conformance.register_backend("mine", mine)
conformance.register_mode("early", early, compiles=False)
"""
REGISTERED = """
@pytest.mark.conformance(modes=["mine", "early"], precisions="fp32")
def test_gate(conformance):
    conformance.check(Gate(), torch.randn(6, 4))
"""


def suite(folder, source, *arguments, pyproject=""):
    """What pytest prints of a test file in a folder of its own."""
    (folder / "test_nets.py").write_text(NETS + source)
    if pyproject:
        (folder / "pyproject.toml").write_text(pyproject)
    plugins = ("-p", "conformance.own.fixture", "-p", "no:cacheprovider")
    return python(folder, "-m", "pytest", *plugins, f"--rootdir={folder}", "-c", os.devnull, "-q", *arguments)


def test_each_cell_is_an_item_and_a_red_one_fails_with_its_report(tmp_path):
    printed = suite(tmp_path, SAME + EMPTY)
    assert "FAILED test_nets.py::test_gate[scripted-amp_bf16-cpu] - conformance.NotConformingError" in printed
    assert "E       gate     amp_bf16     ✗ dtype" in printed
    assert "it has judged nothing; call conformance.check(model, x) in it" in printed
    assert "2 failed, 4 passed, 1 skipped" in printed
    assert "own/check.py" not in printed  # the traceback ends in the test


KNOWN = """
[[gate]]
outcome = "dtype"
reason = "TorchScript's autocast promotes the product"
modes = ["scripted"]
precisions = ["amp_bf16"]
tensor = "output"
dtype = "float32"
"""


def test_divergences_come_from_a_file_that_the_options_name(tmp_path):
    (tmp_path / "known.toml").write_text(KNOWN)
    table = '[tool.conformance]\nexpect = "known.toml"\n'
    assert "1 passed" in suite(tmp_path, SAME, "-k", "scripted-amp_bf16", pyproject=table)
    (tmp_path / "known.toml").write_text(KNOWN.replace("amp_bf16", "fp32"))
    assert "STALE" in suite(tmp_path, SAME, "-k", "scripted-fp32", pyproject=table)


def collected(folder, source, **options):
    lines = suite(folder, source, "--collect-only", **options).splitlines()
    return [name for line in lines if (name := line.partition("[")[2][:-1])]


def test_options_come_from_the_file_and_from_markers_and_without_any_there_are_nine_cells(tmp_path):
    table = '[tool.conformance]\nmodes = ["eager", "compiled"]\nprecisions = "amp_fp16"\n'
    names = collected(tmp_path, AXES, pyproject=table)
    of_some = [f"{m}-{p}" for p in ("fp32-cpu", "fp32-cuda", "tf32-cuda") for m in ("eager", "scripted")]
    assert names == ["compiled-amp_fp16-cpu", *of_some, "eager-amp_fp16-cpu", "compiled-amp_fp16-cpu"]
    names = collected(tmp_path, "\ndef test_gate(conformance):\n    pass\n", pyproject="[tool]\n")
    assert [name.removesuffix("-cpu") for name in names] == [
        f"{mode}-{precision}"
        for precision in ("fp32", "amp_fp16", "amp_bf16")
        for mode in ("eager", "scripted", "compiled")
    ]


@pytest.mark.parametrize(
    ("marker", "table", "message"),
    [
        ("modes='compield'", "", "unknown mode 'compield'; did you mean compiled?"),
        ("mods='eager'", "", "the marker conformance has an unknown option 'mods'; did you mean modes?"),
        (
            "'eager'",
            "",
            "takes keywords only, as in @pytest.mark.conformance(modes=['eager', 'compiled']), got 'eager'",
        ),
        ("precisions='tf32'", "", "no device has eager, scripted, compiled in tf32 on cpu"),
        ("devices=[]", "", "devices must be a name or a list of names, got []"),
        ("seed=-1", "", "seed must be a whole number from 0 on, got -1"),
        ("", "presicions = 'fp32'", "[tool.conformance] has an unknown option 'presicions'; did you mean precisions?"),
        ("", "seed = true", "seed must be a whole number from 0 on, got True"),
        ("", "seed 3", "pyproject.toml is no TOML file: Expected '=' after a key"),
    ],
)
def test_what_is_unknown_is_one_line(tmp_path, marker, table, message):
    source = f"\n@pytest.mark.conformance({marker})\ndef test_gate(conformance):\n    pass\n"
    printed = suite(tmp_path, source, "--collect-only", pyproject=f"[tool.conformance]\n{table}\n")
    assert message in printed
    assert "Traceback" not in printed
    assert "1 error" in printed


@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_modes_of_a_conftest_are_judged(tmp_path, mode):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    printed = suite(tmp_path, REGISTERED, f"--import-mode={mode}")
    assert "1 failed, 1 passed" in printed, printed
    assert "gate[early-fp32-cpu]  FAIL" in printed
    assert "unknown mode 'mein'; did you mean mine?" in suite(tmp_path, REGISTERED.replace('"mine"', '"mein"'))


# The example: its tests pass, they fail when its backward is wrong, and the tutorial shows what they print.

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


def test_the_tests_of_the_example_pass_and_the_tutorial_shows_it(example):
    assert "10 passed, 4 deselected" in printed_by(example, "not compiled")
    _, _, code = (EXAMPLE / "tests" / "test_conformance.py").read_text(encoding="utf-8").partition('"""\n\n')
    assert code in TUTORIAL
    assert f"-        {RIGHT}" in TUTORIAL


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
