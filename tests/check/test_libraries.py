"""Architectures of libraries by name, with stand-ins for the libraries: the tests install none of them."""

import copy
import importlib
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from harness.command import FP32, conformance, stored_runs
from torch import nn

from conformance import check
from conformance.errors import UsageError
from conformance.own import forms
from conformance.own.forms import architecture, settle_statistics
from conformance.own.spec import spec_of
from conformance.plan import matrix
from conformance.process.child_side import ChildProcess
from conformance.records.plan import OwnModel
from conformance.records.tasks import PlanRequest

TIMM = '''"""Stands in for timm."""

from types import SimpleNamespace

from torch import nn


def list_models():
    return ["flat", "flatter"]


def get_pretrained_cfg(name):
    return SimpleNamespace(input_size=(3, 4, 4))


class Flat(nn.Module):
    def __init__(self, img_size=4, width=2, pretrained=False):
        super().__init__()
        self.linear, self.drop = nn.Linear(3 * img_size**2, width), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.linear(x.flatten(1)))


def create_model(name, **settings):
    return Flat(**settings)
'''


@pytest.fixture
def timm(tmp_path, monkeypatch):
    """A working folder, and the stand-in before all that is installed, for this process and its children."""
    before = tmp_path / "before"
    before.mkdir()
    (before / "timm.py").write_text(TIMM)
    monkeypatch.syspath_prepend(before)
    monkeypatch.setenv("PYTHONPATH", str(before), prepend=":")
    yield tmp_path
    sys.modules.pop("timm", None)


def drawn(text):
    """The model and the first argument of its call."""
    known = architecture(text)
    call = known.inputs(torch.Generator())
    return known.build(), next(iter((*call.args, *call.kwargs.values())))


def test_settings_reach_the_constructor_and_fit_the_inputs_and_a_batch_norm_in_train_mode_gets_more(timm):
    model, x = drawn("timm:flat?width=5")
    assert (model.linear.out_features, x.shape) == (5, (2, 3, 4, 4))
    model, x = drawn("timm:flat?img_size=8")
    assert model(x).shape == (2, 2)
    assert drawn("timm:flat?size=6")[1].shape == (2, 3, 6, 6)
    spec, _ = spec_of(OwnModel(name="flat", library="timm:flat", training="train"), None)
    (x,) = spec.cases[0].inputs(torch.Generator()).args
    assert x.shape == (4, 3, 4, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("timm:flatte", "no architecture 'flatte'; did you mean flatter, flat?"),
        ("timm:flat?wide=3", "cannot be built: TypeError: .*unexpected keyword argument 'wide'"),
        ("timm:flat?pretrained=true", "pretrained would fetch weights; weights are random here"),
        ("torchvision:resnet18", "torchvision is not installed; pip install torchvision"),
    ],
)
def test_what_a_library_does_not_have(timm, text, message, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torchvision" else found(name))
    with pytest.raises(UsageError, match=message):
        architecture(text).build()


def test_a_library_that_does_not_import(tmp_path, monkeypatch):
    (tmp_path / "timm.py").write_text("raise RuntimeError('broken')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="timm:flat: timm does not import: RuntimeError: broken"):
        architecture("timm:flat")


def transformers(config, main_input):
    """Stands in for transformers, with one model type "tiny"."""
    model = type("Model", (), {"main_input_name": main_input})
    auto = SimpleNamespace(for_model=lambda _, **settings: vars(config).update(settings) or config)
    return SimpleNamespace(
        CONFIG_MAPPING={"tiny": type(config)},
        AutoConfig=auto,
        AutoModel=SimpleNamespace(from_config=lambda config: nn.Linear(config.hidden_size, 1)),
        MODEL_MAPPING={type(config): model},
    )


def test_a_configuration_of_transformers_is_small_and_takes_settings(monkeypatch):
    config = SimpleNamespace(hidden_size=768, num_hidden_layers=12, vocab_size=30000, is_encoder_decoder=True)
    monkeypatch.setattr(forms, "_import", lambda *_: transformers(config, "input_ids"))
    known = architecture("transformers:tiny?layers=3")
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (3, 32, 64)
    call = known.inputs(torch.Generator())
    shapes = {name: tuple(ids.shape) for name, ids in call.kwargs.items()}
    assert shapes == {"input_ids": (2, 8), "decoder_input_ids": (2, 8)}
    assert known.build().in_features == 32
    with pytest.raises(UsageError, match="no setting 'vocab_sise'; did you mean vocab_size"):
        architecture("transformers:tiny?vocab_sise=3")
    with pytest.raises(UsageError, match="no model type 'tony'; did you mean tiny"):
        architecture("transformers:tony")


def test_inputs_that_nobody_knows_must_be_described(monkeypatch):
    config = SimpleNamespace(hidden_size=8)
    monkeypatch.setattr(forms, "_import", lambda *_: transformers(config, "input_features"))
    with pytest.raises(UsageError, match="takes input_features; describe its inputs, such as --input input_features="):
        architecture("transformers:tiny").inputs(torch.Generator())


def planned(text, **given):
    plan = matrix.make(PlanRequest((text,), given=OwnModel(**given), devices=("cpu",)), ChildProcess())
    return next(iter(plan.models.values()))


def test_it_is_in_eval_mode_unless_asked_otherwise_and_inputs_may_be_described(timm):
    assert "the model is in eval mode, as asked" in planned("timm:flat").assumed
    assert "the model is in train mode, as asked" in planned("timm:flat", training="train").assumed
    assert planned("timm:flat", inputs=("5,3,4,4",)).location.own.inputs == ("5,3,4,4",)


def test_it_is_judged_by_its_name_on_the_command_line_and_one_that_does_not_exist_is_one_line(timm):
    code, output = conformance(timm, "run", "timm:flat?width=3", *FP32)
    assert code == 0, output
    assert re.search(r"^flat +fp32 +✓", output, re.MULTILINE)
    told = "conformance: timm:flattest: no architecture 'flattest'; did you mean flatter, flat?\n"
    assert conformance(timm, "run", "timm:flattest", *FP32) == (4, told)
    assert len(stored_runs(timm)) == 1  # the second has none


def test_check_takes_its_name_alone(timm):
    report = check("timm:flat", modes="eager", precisions="fp32")
    assert report.ok, report
    assert "the model is in eval mode, as asked" in report.assumed
    with pytest.raises(UsageError, match="check: no inputs"):
        check("package.nets:Net", modes="eager", precisions="fp32")


@pytest.mark.parametrize(
    ("names", "loads", "declared"),
    [
        (["_C.so"], True, []),
        (["_C_stable.so"], True, []),  # from 0.29 on
        (["_C.so"], False, ["nms", "qnms"]),
        (["_C_stable.so"], False, ["nms", "qnms"]),
        ([], False, []),
    ],
)
def test_operators_are_declared_where_no_library_of_torchvision_loads(tmp_path, monkeypatch, names, loads, declared):
    package = tmp_path / "torchvision"
    package.mkdir()
    for name in ("__init__.py", *names):
        (package / name).touch()
    tried, found = [], []

    def load(path):
        tried.append(path)
        if not loads:
            raise OSError("it is built for another torch")

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(torch.ops, "load_library", load)
    monkeypatch.setattr(torch.library, "define", lambda name, _: found.append(name.removeprefix("torchvision::")))
    forms.declare_operators()
    assert (tried, found) == ([str(package / name) for name in names], declared)


# Batch norms of new architectures get the statistics of a batch, so that deep ones keep their activations.


DEPTH = 30


def deep(**options):
    torch.manual_seed(0)
    layers = []
    for _ in range(DEPTH):
        layers += [nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4, **options), nn.ReLU()]
    return nn.Sequential(*layers, nn.Dropout(0.5))


def batch(count=8):
    return torch.randn(count, 4, 16, 16, generator=torch.Generator().manual_seed(1))


def test_activations_of_a_deep_network_do_not_vanish_in_eval_mode():
    with torch.no_grad():
        assert float(deep().eval()(batch()).std()) < 1e-5
        assert 0.1 < float(settle_statistics(deep(), batch()).eval()(batch()).std()) < 10.0


def test_any_number_of_threads_gives_the_same_statistics():
    before, states = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        states.append(settle_statistics(deep(), batch()).state_dict())
    torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*(s.values() for s in states), strict=True))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_all_else_is_as_before(momentum):
    model = deep(momentum=momentum).train()
    model[-1].eval()
    before = copy.deepcopy(model)
    assert settle_statistics(model, batch()) is model
    assert [m.training for m in model.modules()] == [m.training for m in before.modules()]
    assert all(m.momentum == momentum for m in model if isinstance(m, nn.BatchNorm2d))
    pairs = zip(model.named_parameters(), before.parameters(), strict=True)
    assert all(torch.equal(mine, theirs) and mine.dtype == torch.float32 for (_, mine), theirs in pairs)


def test_a_model_without_such_statistics_does_not_run():
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(5, track_running_stats=False))
    assert settle_statistics(model, batch()) is model
