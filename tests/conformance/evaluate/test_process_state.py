"""What a call leaves behind is found, and put back."""

import locale
import os
import random
import sys
import warnings

import pytest
import torch
from torch import nn

from conformance.evaluate import process_state
from conformance.evaluate.process_state import REGISTRIES, Watch
from zoo import internals
from zoo.case import Case, SpecError
from zoo.spec import Spec
from zoo.states import STATES

LEFT = {
    "grad mode": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "default dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "matmul precision": (lambda: torch.set_float32_matmul_precision("high"), torch.get_float32_matmul_precision),
    "backends": (lambda: torch.backends.cuda.enable_math_sdp(False), torch.backends.cuda.math_sdp_enabled),
    "threads": (lambda: torch.set_num_threads(torch.get_num_threads() + 1), torch.get_num_threads),
    "determinism": (lambda: torch.use_deterministic_algorithms(True), torch.are_deterministic_algorithms_enabled),
    "modes": (lambda: torch.overrides.TorchFunctionMode().__enter__(), internals.count_function_modes),
    "anomaly mode": (lambda: torch.autograd.set_detect_anomaly(True), torch.is_anomaly_enabled),
    "denormal numbers": (lambda: torch.set_flush_denormal(True), lambda: torch.tensor(2.0**-1030).double() * 2.0**-10),
    "warning filters": (lambda: warnings.simplefilter("ignore"), lambda: list(warnings.filters)),
    "environment variables": (lambda: os.environ.update(LEFT="1"), lambda: os.environ.get("LEFT")),
    "locale": (lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"), lambda: locale.setlocale(locale.LC_ALL)),
    "working folder": (lambda: os.chdir("/"), os.getcwd),
    "recursion limit": (lambda: sys.setrecursionlimit(5000), sys.getrecursionlimit),
}


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("state", LEFT)
def test_a_switch_is_put_back_and_noted_once_unless_it_is_declared(state, declared):
    leave, read = LEFT[state]
    before = read()
    watch = Watch(None, {}, (state,) if declared else (), noted=True)
    with watch.during("forward"):
        leave()
    with watch.during("backward"):
        pass
    assert [change.subject for change in watch.changes] == ([] if declared else [state])
    assert read() == before


def test_autograd_s_own_threads_are_put_back():
    before = process_state.read()
    torch.autograd.set_multithreading_enabled(False)
    assert process_state.restore(before) == {"threads": "from on to off"}
    assert torch.autograd.is_multithreading_enabled()


def test_what_an_import_changes_is_no_work_of_the_call(tmp_path, monkeypatch):
    changes = ("import warnings", "warnings.simplefilter('ignore')", "import torch", "torch.set_flush_denormal(True)")
    (tmp_path / "changing_things.py").write_text("\n".join(changes))
    monkeypatch.syspath_prepend(tmp_path)
    with warnings.catch_warnings():
        before = process_state.read()
        __import__("changing_things")
        assert process_state.restore(before) == {}
        assert warnings.filters[0][0] == "ignore"  # kept
    assert sys.float_info.min * 0.5 > 0  # undone


@pytest.mark.skipif(not hasattr(internals, "get_saving_hooks"), reason="torch cannot tell its saved tensors hooks")
def test_saved_tensors_hooks_left_on_are_popped():
    before = process_state.read()
    torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t).__enter__()
    assert "hooks" in process_state.restore(before)
    assert process_state.restore(before) == {}


@pytest.mark.parametrize("draw", [random.random, lambda: torch.rand(1)])
def test_a_draw_from_a_generator_is_noted_with_its_owner(draw):
    watch = Watch(None, {}, (), noted=True)
    with watch.during("forward"):
        draw()
    (change,) = watch.changes
    assert change.subject == "random generator"
    assert ("Python's" in change.text) == (draw is random.random)


def test_a_model_s_own_generators_are_seeded_and_watched():
    model = nn.Sequential(nn.ReLU())
    model[0].generator = torch.Generator().manual_seed(5)
    drawn = []
    for declared in ((), ("random generator",), ("random generator",)):
        watch = Watch(model, {}, declared, noted=True)
        with watch.during("forward"):
            drawn.append(torch.rand(2, generator=model[0].generator))
        text = "forward changed it by drawing from its own, or seeding it"
        assert [change.text for change in watch.changes] == ([] if declared else [text])
    assert torch.equal(drawn[1], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])


def test_every_generator_is_seeded_if_draws_are_declared(monkeypatch):
    numpy = pytest.importorskip("numpy")
    monkeypatch.delitem(sys.modules, "numpy.random", raising=False)  # NumPy loads it at its first use
    found = []
    for _ in range(2):
        process_state.seed_draws(("random generator",), None)
        found.append((random.random(), numpy.random.rand(), torch.rand(1).item()))
    assert found[0] == found[1]


def test_a_module_and_its_leaves_are_put_back():
    model = nn.Linear(3, 2)
    bias = model.bias
    watch = Watch(model, dict(model.named_parameters()), (), noted=True)
    with watch.during("forward"):
        model.eval()
        model.bias = nn.Parameter(torch.ones(2))
        model.register_forward_hook(lambda *_: None)
        model.weight.register_hook(lambda _: None)
        model.weight.grad = torch.ones(2, 3)
    assert model.training
    assert model.bias is bias
    assert not model._forward_hooks
    assert not model.weight._backward_hooks
    assert model.weight.grad is None
    assert {c.subject for c in watch.changes} == {"training", "parameters", "hooks", "gradients"}


def test_every_state_that_is_judged_can_be_declared_and_the_other_way_round():
    of_leaves = {"gradients", "requires_grad", "training", "random generator"}
    assert {s.state for s in process_state.SWITCHES} | set(REGISTRIES.values()) | of_leaves == set(STATES)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("changes_state", ("mood",), "changes_state: 'mood' is none of"),
        ("changes_state", "training", "must be a tuple of names"),
        ("aliases", ("output", "x"), "a pair of aliases must be a tuple of names"),
        ("aliases", (("output",),), "has two names"),
        ("aliases", "output", "must be a tuple of pairs"),
    ],
)
def test_a_wrong_declaration_is_refused(field, value, text):
    case = Case(name="typical", inputs=lambda _: (torch.ones(2),))
    with pytest.raises(SpecError, match=text):
        Spec(name="m", summary="m", source="m", build=nn.Identity, cases=(case,), **{field: value})
