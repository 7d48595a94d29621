"""The command: exit codes, what is printed, resuming, and the table."""

import hashlib
import json
import re

import pytest
from harness.command import FP32, conformance, run_folder

from conformance.records.cell import model_of
from conformance.store import run_files

GREEN = """
import torch
from zoo import Case, Spec

def spec(name, build):
    case = Case(name="typical", inputs=lambda g: (torch.randn(4, 3, generator=g),))
    return Spec(name=name, summary=name, source="a test", build=build, cases=(case,), dtypes="input")

DOUBLING = spec("doubling", lambda: lambda x: x * 2)
HALVING = spec("halving", lambda: lambda x: x / 2)
"""
RED = GREEN + 'RANDOM = spec("random", lambda: lambda x: x + torch.rand_like(x))'


@pytest.fixture(scope="module")
def green(tmp_path_factory):
    """A folder with a green run in it: folder, exit code, output."""
    folder = tmp_path_factory.mktemp("green")
    (folder / "nets.py").write_text(GREEN)
    return folder, *conformance(folder, "run", "nets.py", *FP32, "-n", "1")


def test_a_green_run_is_zero_and_the_table_shows_every_cell(green):
    _, code, output = green
    assert code == 0, output
    assert re.search(r"model +precision +eager", output)
    assert re.search(r"doubling +fp32 +✓ \d", output)
    assert re.search(r"halving +fp32 +✓ \d", output)
    assert "2 cells: 2 pass" in output


def test_a_run_is_stored_whole_and_shown_again(green):
    folder, _, output = green
    stored = run_folder(output)
    assert stored.is_relative_to(folder / ".conformance" / "runs")
    assert {p.name for p in stored.iterdir()} >= {"plan.json", "cells.jsonl", "run.json"}
    both = (stored / "plan.json").read_bytes() + (stored / "cells.jsonl").read_bytes()
    assert json.loads((stored / "run.json").read_text())["sha256"] == hashlib.sha256(both).hexdigest()
    code, shown = conformance(folder, "show", str(stored))
    assert code == 0
    assert re.search(r"doubling +fp32 +✓ \d", shown)
    assert "2 cells: 2 pass" in shown


def test_the_reference_of_a_model_is_made_once_for_all_workers(tmp_path):
    (tmp_path / "nets.py").write_text(GREEN)
    axes = ("--mode=eager", "--mode=scripted", "--device=cpu", "--no-speed")
    code, output = conformance(tmp_path, "run", "nets.py", *axes, "-n", "2")
    assert code in (0, 1), output
    made = {}
    for cell, verdict in run_files.read(run_folder(output)).verdicts.items():
        made.setdefault(model_of(cell), set()).add(verdict.observation.seconds["reference"])
    assert {name: len(seconds) for name, seconds in made.items()} == {"doubling": 1, "halving": 1}
    assert 0.0 not in set().union(*made.values())


def test_a_killed_run_is_red_until_it_is_resumed(green):
    folder, _, output = green
    stored = run_folder(output)
    lines = (stored / "cells.jsonl").read_bytes().splitlines(keepends=True)
    (stored / "cells.jsonl").write_bytes(b"".join(lines)[:-7])
    (stored / "run.json").unlink()
    code, shown = conformance(folder, "show", str(stored))
    assert code == 1
    assert "1 notrun" in shown
    assert f"conformance run {folder / 'nets.py'} --resume {stored}" in shown
    code, resumed = conformance(folder, "run", "nets.py", "--resume", str(stored), "-n", "1")
    assert code == 0, resumed
    assert "2 cells: 2 pass" in resumed
    after = (stored / "cells.jsonl").read_bytes().splitlines(keepends=True)
    assert after[: len(lines) - 1] == lines[:-1]
    assert sum(b'"verdict":' in line for line in after) == 2
    assert (stored / "run.json").exists()


def test_resuming_a_finished_run_shows_it(green):
    folder, _, output = green
    code, shown = conformance(folder, "run", "nets.py", "--resume", str(run_folder(output)))
    assert code == 0
    assert "2 cells: 2 pass" in shown


def test_a_red_cell_is_one_and_named_with_its_reason(tmp_path):
    (tmp_path / "nets.py").write_text(RED)
    code, output = conformance(tmp_path, "run", "nets.py", *FP32, "-n", "1")
    assert code == 1
    assert re.search(r"✗ random\[eager-fp32-cpu\]  UNSTABLE  output: two identical float64 runs differ", output)
    assert "3 cells: 2 pass, 1 unstable" in output
    code, shown = conformance(tmp_path, "show", str(run_folder(output)))
    assert code == 1
    assert "1 unstable" in shown


def test_a_choice_runs_those_cells_alone_and_is_complete(tmp_path):
    (tmp_path / "nets.py").write_text(RED)
    code, output = conformance(tmp_path, "run", "nets.py", *FP32, "-n", "1", "-k", "doubling")
    assert code == 0, output
    assert "judging those of 3 cells of 3 models that match -k 'doubling', stored in" in output
    assert "this takes" not in output
    assert "1 cell: 1 pass" in output
    assert "halving" not in output
    assert "random" not in output


def test_what_a_terminal_could_take_for_a_command_is_spelt_out(tmp_path):
    (tmp_path / "nets.py").write_text(
        GREEN.replace("x / 2", "1 / 0 if x.sum() < 9e9 else x").replace(
            "lambda x: x * 2", "lambda x: (_ for _ in ()).throw(ValueError('\\x1b[2J\\u202e'))"
        )
    )
    code, output = conformance(tmp_path, "run", "nets.py", *FP32, "-n", "1")
    assert code == 1
    assert "\x1b[2J" not in output
    assert "\u202e" not in output
    assert r"\x1b[2J\u202e" in output


def test_probes_report_what_this_torch_does(tmp_path):
    code, output = conformance(tmp_path, "probes", "script_promotes_arithmetic")
    assert code == 0, output
    assert re.search(r"≠ script_promotes_arithmetic +EXPECTED +twice a bfloat16 product is float32", output)


FUNCTION = """
import torch
from zoo import Case, Spec

class Steep(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].cos() * FACTOR

STEEP = Spec(
    name="steep",
    summary="a gradient by hand",
    source="a test",
    build=lambda: Steep.apply,
    cases=(Case(name="typical", inputs=lambda g: (torch.randn(8, 5, generator=g),)),),
    surrogate_gradient=lambda _, x: FACTOR * x.sin(),
)
"""


def test_a_changed_backward_is_never_served_from_the_compile_cache(tmp_path):
    for factor in ("1.0", "3.0", "1.0"):
        (tmp_path / "steep.py").write_text(FUNCTION.replace("FACTOR", factor))
        axes = ("--mode=compiled", "--precision=fp32", "--device=cpu")
        code, output = conformance(tmp_path, "run", "steep.py", *axes, XDG_CACHE_HOME=str(tmp_path))
        assert code == 0, output
