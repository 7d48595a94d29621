"""What a model may raise and say: each cell has its verdict and a bounded record, and the cells beside it are green."""

import json
import re

import pytest
from harness.command import FP32, conformance, run_folder
from harness.spec_files import MODEL

from conformance.store import run_files
from conformance.store.run_files import RECORD_BYTES

RAISED = """
import torch
from conformance import Prepared, register_mode

class Odd(BaseException):
    pass

class Mute(Exception):
    def __str__(self):
        raise SystemExit("no words")

KINDS = {
    "interrupt": KeyboardInterrupt("by the model"),
    "leaving": SystemExit(0),
    "generator": GeneratorExit("closed"),
    "odd": Odd("a kind of its own"),
    "mute": Mute(),
    "long": ValueError("x" * 10_000_000),
    "surrogate": ValueError("half \\ud800 of a pair"),
    "escapes": ValueError("\\x1b[31mred\\x07\\n\\x00::error::"),
}

def throwing(problem):
    def throw(*args):
        raise problem
    return throw

class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, which):
        ctx.which = which
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise KINDS[ctx.which]

for name, problem in KINDS.items():
    register_mode(f"call_{name}", lambda model, p=problem: Prepared(throwing(p), dict), compiles=False)
    register_mode(f"prepare_{name}", lambda model, p=problem: throwing(p)(), compiles=False)
    register_mode(
        f"backward_{name}",
        lambda model, n=name: Prepared(lambda x: Backward.apply(model(x), n), dict),
        compiles=False,
    )
register_mode("facts", compiles=False, prepare=lambda model: Prepared(model, lambda: {
    "nan": float("nan"), "infinity": [float("inf")], "set": {1}, "text": "x" * 10**6,
    "many": dict.fromkeys(range(10**5)),
    10**5000: torch.ones(3), "deep": eval("[" * 50 + "]" * 50), "\\ud800": "\\ud800",
}))
"""
WEIGHTED = """
class Weighted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3))

    def forward(self, x):
        return x * self.weight
"""
TEXTS = {
    "interrupt": "KeyboardInterrupt: by the model",
    "leaving": "SystemExit: 0",
    "generator": "GeneratorExit: closed",
    "odd": "Odd: a kind of its own",
    "mute": r"Mute: \(its text raises SystemExit\)",
    "long": "ValueError: x+ … x+",
    "surrogate": r"ValueError: half \\ud800 of a pair",
    "escapes": r"ValueError: \\x1b\[31mred\\x07 \\x00::error::",
}

RAISED_AT = [("call", name) for name in TEXTS]
RAISED_AT += [(place, name) for place in ("prepare", "backward") for name in ("interrupt", "mute", "surrogate")]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The verdicts of one run by mode, and the lengths of their lines."""
    folder = tmp_path_factory.mktemp("exceptions")
    spec = MODEL.format(name="weighted", expectations="").replace("torch.nn.Identity()", "Weighted()")
    (folder / "weighted.py").write_text(RAISED + WEIGHTED + spec)
    modes = ["eager", "facts", *(f"{place}_{name}" for place, name in RAISED_AT)]
    words = [f"--mode={mode}" for mode in modes]
    code, output = conformance(folder, "run", "weighted.py", *FP32[1:], "-n1", *words)
    assert code == 1, output
    run = run_folder(output)
    lines = (run / run_files.LINES).read_bytes().splitlines()
    verdicts = {cell.split("[")[1].split("-")[0]: v for cell, v in run_files.read(run).verdicts.items()}
    return verdicts, max(map(len, lines)), output


@pytest.mark.parametrize(("place", "name"), RAISED_AT)
def test_what_a_mode_raises_is_an_error_that_names_its_type(stored, place, name):
    verdict = stored[0][f"{place}_{name}"]
    assert verdict.status == "ERROR"
    assert re.search(f"^in phase [a-z ]+: {TEXTS[name]}$", verdict.text), verdict.text


def test_the_neighbours_are_green_and_the_records_are_bounded(stored):
    verdicts, longest, output = stored
    assert {verdicts["eager"].status, verdicts["facts"].status} == {"PASS"}
    assert longest <= RECORD_BYTES
    assert "\x1b" not in output.replace("\x1b[0m", "")


def test_facts_that_no_record_holds_become_text(stored):
    facts = stored[0]["facts"].observation.facts
    assert (facts["nan"], facts["infinity"], facts["set"]) == ("nan", "[inf]", "{1}")
    assert len(facts["text"]) == 400
    assert len(json.dumps(facts)) < 50_000


THROWING = """
import torch

class Odd(BaseException):
    pass

class Throws(torch.nn.Module):
    def __init__(self, place, problem):
        super().__init__()
        self.place, self.problem = place, problem
        if place == "constructor":
            raise problem

    def forward(self, x):
        raise self.problem
"""


def test_what_a_model_always_raises_is_an_error_that_names_its_type(tmp_path):
    code, wanted = THROWING, {}
    for place in ("constructor", "forward"):
        for kind in ("KeyboardInterrupt", "Odd"):
            name = f"{place}_{kind.lower()}"
            build = f"Throws({place!r}, {kind}('stop'))"
            code += MODEL.format(name=name, expectations="").replace("torch.nn.Identity()", build)
            wanted[name] = f"{kind}: stop"
    (tmp_path / "throws.py").write_text(code)
    code, output = conformance(tmp_path, "run", "throws.py", *FP32)
    assert code == 1
    found = dict(re.findall(r"✗ (\w+)\[eager-fp32-cpu\]  ERROR  .*?(\w+: stop)$", output, re.MULTILINE))
    assert found == wanted, output
