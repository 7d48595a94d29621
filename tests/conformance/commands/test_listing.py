"""`conformance list`: names, summaries and cases of the zoo's models, and of a file."""

import pytest
from harness.command import conformance

import zoo
from conformance.commands.probes import list_models
from conformance.errors import ExitCode

NETS = """
import torch
from zoo import Case, Spec

def case(name):
    return Case(name=name, inputs=lambda g: (torch.randn(4, 3, generator=g),))

DOUBLING = Spec(
    name="doubling", summary="two \\x1b[2J times", source="a test", build=lambda: lambda x: x * 2,
    cases=(case("typical"), case("second")),
)
HALVING = Spec(name="halving", summary="half of it", source="a test", build=lambda: lambda x: x / 2,
               cases=(case("typical"),))
"""


@pytest.fixture
def nets(tmp_path):
    """A folder with a file of two models."""
    (tmp_path / "nets.py").write_text(NETS)
    return tmp_path


def rows(output):
    """The rows below the head of the table, with single spaces."""
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert lines[0] == "model summary cases"
    return lines[2:]


def test_models_of_the_zoo_and_of_a_file_are_listed_in_the_order_asked_for(nets):
    code, output = conformance(nets, "list", "merge", "nets.py")
    assert code == ExitCode.OK, output
    merge = zoo.get_spec("merge")
    assert rows(output) == [
        f"merge {merge.summary} {', '.join(case.name for case in merge.cases)}",
        r"doubling two \u001b[2J times typical, second",
        "halving half of it typical",
    ]


def test_a_list_without_names_has_every_model_of_the_zoo(capsys):
    assert list_models(()) == ExitCode.OK
    listed = [row.split()[0] for row in rows(capsys.readouterr().out)]
    assert len(listed) == len(set(listed))
    assert set(listed) == {*zoo.list_models(), *zoo.list_models(module="counterexamples")}


def test_a_file_with_a_broken_spec_is_four_in_one_line(nets):
    (nets / "nets.py").write_text(NETS.replace('name="halving"', 'name="Half"'))
    code, output = conformance(nets, "list", "merge", "nets.py")
    assert (code, len(output.splitlines())) == (ExitCode.USAGE, 1)
    assert "nets.py does not import: SpecError: " in output
