"""A fault of this project is told as its own, in every phase: the cell is not judged, and no model is blamed."""

import errno
import re

import pytest
import torch
from harness.command import FP32, conformance, stored_runs

from conformance import errors
from conformance.evaluate import inputs
from zoo import Call, Case

PLANTED = """
import importlib
import torch
import conformance.errors
from zoo import Case, Spec

def plant(place):
    module, _, name = place.rpartition(".")
    scope = {}
    text = "def fault(*args, **kwargs):\\n    return {}['planted']\\n"
    exec(compile(text, conformance.errors.__file__, "exec"), scope)
    setattr(importlib.import_module(f"conformance.{module}"), name, scope["fault"])

def spec(place):
    def build():
        plant(place)
        return lambda x: x * 2
    name = f"at_{place.replace('.', '_')}"
    case = Case(name="typical", inputs=lambda g: (torch.randn(4, 3, generator=g),))
    return Spec(name=name, summary=name, source="a test", build=build, cases=(case,), dtypes="input")
"""
PHASES = {  # a function of ours that runs in a phase, and where the fault shows
    "oracle.draws.scale_for": "reference",
    "evaluate.evaluation.evaluate": "reference",
    "evaluate.containers.tensors_of": "reference",
    "evaluate.weights.fingerprint": "reference",
    "cell.modes.prepare": "prepare",
    "cell.observe.compare_overwritten": "call",
    "cell.changes.over_draws": "redraw",
    "cell.session.criteria_for": "judge",
    "cell.observe.check_operator": "opcheck",
    "cell.changes.after_changes": "change",
    "cell.otherwise.compare_ways": "otherwise",
    "cell.places.of_faults": "place",
    "cell.observe.plain_observation": "the end",
}


def test_a_fault_in_any_phase_is_no_verdict_on_the_model(tmp_path):
    specs = (f"S{number} = spec({place!r})\n" for number, place in enumerate(PHASES))
    (tmp_path / "planted.py").write_text(PLANTED + "".join(specs))
    code, output = conformance(tmp_path, "run", "planted.py", *FP32, "-n1")
    assert code == 1, output
    assert f"{len(PHASES)} cells: {len(PHASES)} notrun" in output
    told = "a fault of conformance, and of no model, in conformance/errors.py, line 2: KeyError: 'planted'"
    blamed = set(re.findall(rf"at_(\w+?)(?:\[\S+)? was not (?:made|judged): {re.escape(told)}", output))
    assert blamed == {place.replace(".", "_") for place in PHASES}
    assert "the model raises" not in output


def test_a_fault_while_a_model_is_tried_is_not_its_refusal(tmp_path):
    (tmp_path / "planted.py").write_text(
        f"{PLANTED}\nplant('evaluate.evaluation.evaluate')\ndouble = lambda x: x * 2\n"
    )
    code, output = conformance(tmp_path, "run", "planted.py:double", "--input", "2,3", *FP32)
    assert code != 0
    assert "a fault of conformance, and of no model" in output
    assert "does not take these inputs" not in output
    assert stored_runs(tmp_path) == []


def raised(action):
    """What an action raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 -- the test asks what it is
        action()
    return caught.value


def own(source):
    """A function of a file of this project."""
    scope = {}
    exec(compile(source, errors.__file__, "exec"), scope)
    return scope["f"]


X = Call((torch.ones(3),), {})


@pytest.mark.parametrize(
    "action",
    [
        lambda: inputs.invoke(lambda x: x["a"], X),
        lambda: inputs.invoke(torch.reshape, Call((X.args[0], (7,)), {})),  # an op, called by a line of ours
        own(f"def f():\n    raise OSError({errno.ENOSPC}, 'no room')\n"),  # the machine
        lambda: errors.call_theirs(lambda x: x),  # which takes an argument
        lambda: Case(name="typical", inputs=lambda: ()).draw(torch.Generator()),
        lambda: own("def f(op, *args):\n    return op(*args)\n")(lambda: 1 / 0),
        lambda: own("def f(e):\n    raise e\n")(errors.of_model(TypeError("no such form"))),
        lambda: own("def f(e):\n    raise e\n")(errors.UsageError("no")),
    ],
)
def test_what_a_model_or_an_op_raises_is_not_ours(action):
    assert errors.own_fault(raised(action)) == ""


@pytest.mark.parametrize("line", ["{}['a']", "1 / 0", "int('x')", "None.a", "import_module('no.such')", "loads('{')"])
def test_what_a_line_of_ours_raises_is_ours(line):
    source = f"from importlib import import_module\nfrom json import loads\ndef f():\n    return {line}\n"
    told = "a fault of conformance, and of no model, in conformance/errors.py, line 4: no"
    assert errors.blame(raised(own(source)), "no") == told
