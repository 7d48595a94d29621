"""`conformance explain` names the module and the stage that are wrong, and what it says is what is so."""

import re

import pytest
import torch
from harness.command import ROOT, conformance, run_folder
from harness.own_models import Net

import conformance as package
from conformance.commands.explain import Step, find_place
from conformance.records.cell import Cell, Observation, Verdict
from conformance.records.explained import Exit
from conformance.records.plan import SpecLocation
from zoo import internals
from zoo.probes.scaled_sum_of_product import PROBE

NETS = str(ROOT / "tests" / "specs" / "planted_nets.py")
FORWARD, BACKWARD = "at whose end the model is wrong, in forward", "at whose end the model is wrong, in backward"
LOSES = PROBE.seen["cpu"]
MUL = "The op is `aten.mul."
PLANTED = {
    "right[wrong_value-fp32-cpu]": (FORWARD, MUL, "begins with wrong_value", "Inductor computes the same rightly"),
    "right[wrong_gradient-fp32-cpu]": (BACKWARD, MUL, "begins with wrong_gradient"),
    "right[wrong_state-fp32-cpu]": (
        "in what forward leaves in buffers",
        "The op is `aten.add_.",
        "buffer layers.7.mean",
    ),
    "odd_gradient[scripted-fp32-cpu]": (BACKWARD, MUL, "begins with scripted", "None of the switches mends it"),
    "odd_error[scripted-fp32-cpu]": ("AssertionError",),
    "odd_dtype[scripted-fp32-cpu]": (FORWARD, "float64, should be float32"),
    "low_gradient[eager-amp_bf16-cpu]": (
        BACKWARD,
        "The op is `aten.mul.Tensor` at planted_nets.py:",
        "Eager is wrong",
        "the same in fp32 is right",
    ),
    "overflowing[eager-amp_fp16-cpu]": (
        FORWARD,
        "in `layers.7`, at planted_nets.py:90, gives the first infinity or NaN: in float16",
        "the same in fp32 and amp_bf16 is right",
    ),
    "misled[eager-fp32-cpu]": ("gradcheck", "Eager is wrong"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    chosen = " or ".join(f"({cell.replace('[', ' and ').replace('-', ' and ').rstrip(']')})" for cell in PLANTED)
    code, printed = conformance(folder, "run", NETS, "--no-speed", "-k", chosen)
    assert (code, f"{len(PLANTED)} cells" in printed) == (1, True), printed
    return run_folder(printed)


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "said"), PLANTED.items(), ids=[*PLANTED])
def test_the_module_and_the_stage_are_named(run, tmp_path, cell, said):
    code, told = conformance(tmp_path, "explain", run, cell, NETS)
    assert code == 0, told
    place = told.partition("\nThe place\n")[2].splitlines()[0]
    assert place.startswith("`layers.7` ("), told
    assert [text for text in said if text not in told] == []


@pytest.mark.slow
def test_of_a_green_cell_it_says_how_far_it_is_from_red(tmp_path):
    code, told = conformance(tmp_path, "explain", "merge[eager-fp32-cpu]")
    assert code == 0, told
    assert "The cell is not red: its worst error is 0." in told
    assert "The ladder" not in told


@pytest.mark.slow
def test_a_fault_that_is_declared_is_explained_too(tmp_path):
    known = tmp_path / "known.toml"
    known.write_text("[[odd_gradient]]\noutcome = 'FAIL'\nmodes = ['scripted']\nreason = 'on purpose'\n")
    code, printed = conformance(
        tmp_path, "run", NETS, "--no-speed", "--expect=known.toml", "-k", "odd_gradient and scripted and fp32"
    )
    assert (code, "1 cell: 1 expected" in printed) == (0, True), printed
    code, told = conformance(tmp_path, "explain", run_folder(printed), "odd_gradient[scripted-fp32-cpu]", NETS)
    assert code == 0, told
    assert "\nThe place\n`layers.7` (" in told
    assert "The fault begins with scripted" in told
    assert "It is declared: on purpose" in told


@pytest.mark.slow
def test_the_first_wrong_step_of_a_training_is_named(tmp_path):
    training = str(ROOT / "tests" / "specs" / "training_specs.py")
    code, told = conformance(tmp_path, "explain", "hasty[eager-amp_bf16-cpu]", training)
    assert code == 0, told
    assert "; step 1 is the first of output that is wrong: " in told  # the first step is taken with too large a rate


@pytest.mark.slow
def test_of_a_wrong_dtype_in_eager_the_first_module_that_gives_it_is_named(tmp_path):
    code, told = conformance(tmp_path, "explain", "late[eager-amp_bf16-cpu]", NETS)
    assert code == 0, told
    assert re.search(r"; from the end of `1` \(AsFloat32, planted_nets.py:\d+\) on the dtype is float32\n", told), told


@pytest.mark.slow
def test_the_switch_that_mends_a_known_fault_and_its_issue_are_named(tmp_path):
    code, told = conformance(tmp_path, "explain", "float32_island[compiled-amp_bf16-cpu]")
    assert code == 0, told
    assert "The fault begins with aot_eager." in told
    assert 'It is gone with `torch._functorch.config.backward_pass_autocast = "off"`.' in told
    assert "(backward_keeps_autocast, https://github.com/pytorch/pytorch/issues/179804)" in told


@pytest.mark.slow
@pytest.mark.skipif(not LOSES.shows_in(torch.__version__), reason="this torch has no such fault")
@pytest.mark.skipif(not hasattr(internals, "Bisector"), reason="this torch has no bisector")
def test_the_pass_of_inductor_that_is_to_blame_is_named(tmp_path):
    code, told = conformance(tmp_path, "explain", "losing[compiled-fp32-cpu]", NETS)
    assert code == 0, told
    assert "\nThe place\n`layers.7` (" in told
    assert re.search(
        r"\nBy torch's bisector it begins with `\w+`, number \d+ of Inductor's `post_grad_passes`\.\n", told
    ), told


@pytest.mark.slow
def test_a_report_explains_its_cells():
    report = package.check(Net(), torch.randn(6, 4), modes="eager", precisions="fp32")
    assert "The cell is not red: its worst error is 0." in report.explain("net[eager-fp32-cpu]")
    with pytest.raises(package.UsageError, match="the run has no cell net; known: net"):
        report.explain("net")


@pytest.mark.slow
def test_what_is_stored_is_executed_only_if_it_is_named(run, tmp_path):
    cell = "right[wrong_value-fp32-cpu]"
    code, told = conformance(tmp_path, "explain", run, cell)
    assert (code, f"would execute {NETS}; name its sources to allow it: conformance explain" in told) == (4, True)
    code, told = conformance(tmp_path, "explain", run, "right[wrong_valu-fp32-cpu]", NETS)
    assert (code, "did you mean right[wrong_value-fp32-cpu]" in told) == (4, True), told


def test_a_word_that_names_no_cell_is_refused(tmp_path):
    code, told = conformance(tmp_path, "explain", "merge")
    assert (code, "want [RUN] MODEL[MODE-PRECISION-DEVICE] [SOURCE…]" in told) == (4, True), told


# The search


def searched(wrong, unjudged=(), breaks=0):
    """The place that is found among ten parts, of which those are wrong, and others cannot be judged."""
    judged = []

    def judge(cell):
        number = int(cell.model)
        judged.append(number)
        status = "FAIL" if number in wrong else "INVALID" if number in unjudged else "PASS"
        return Verdict(cell.id, status, "so", observation=Observation("finished", facts={"graph breaks": breaks}))

    steps = [
        Step(
            Cell(str(n), "eager", "fp32", "cpu"),
            Exit(f"part {n}", "Linear", "", "float32", (f"part {n}",)),
            SpecLocation(),
        )
        for n in range(10)
    ]
    return find_place(steps, judge, Verdict("", "FAIL")), judged


@pytest.mark.parametrize("first", range(10))
def test_the_first_wrong_part_is_found_with_few_trials(first):
    place, judged = searched(set(range(first, 10)))
    assert place.end.path == f"part {first}"
    assert len(judged) <= 5


def test_a_fault_that_no_part_shows_lies_beside_them():
    place, _ = searched(set())
    assert place.end is None
    assert "No part shows it" in place.said[0]


def test_a_search_that_is_not_monotone_says_so():
    place, _ = searched({0, 1, 2, 3, 4, 5})
    assert any(
        "This is not sure. Up to the end of `part 7` (Linear), the verdict is PASS: so." in said for said in place.said
    )


def test_a_part_that_cannot_be_judged_is_named():
    place, _ = searched(set(range(7, 10)), unjudged={5})
    assert place.end.path == "part 7"
    assert any("Up to the end of `part 5` (Linear), the verdict is INVALID: so." in said for said in place.said)


def test_parts_that_are_compiled_in_more_graphs_than_the_whole_are_not_trusted():
    place, _ = searched(set(), breaks=1)
    assert any(said.startswith("This is not sure. This torch compiles parts in more graphs") for said in place.said)
