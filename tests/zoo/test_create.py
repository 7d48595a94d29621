"""`create_model` returns what its name says, for every entry of the catalogue: what the matrix judges."""

import copy
import inspect
import io
import warnings

import pytest
import torch
from torch.utils import _pytree as pytree

import zoo
from conformance.float64.wide import prepared_model

NAMES = zoo.list_models()
TRAININGS = zoo.list_models(module="training")


def floats(found):
    return [x for x in pytree.tree_leaves(found) if isinstance(x, torch.Tensor) and x.is_floating_point()]


def called(model, args):
    """What a call of a copy of the model returns, so that buffers and weights stay as they were."""
    torch.manual_seed(0)
    return copy.deepcopy(model)(*args) if isinstance(model, torch.nn.Module) else model(*args)


def refused(name, mode):
    """The declared refusals of a mode in fp32 here, such as that of a product of mixed dtypes, or without NumPy."""
    return [
        e
        for e in zoo.get_spec(name).expectations
        if e.outcome in ("refuses", "ERROR") and e.concerns(mode, "fp32", "cpu", torch.__version__)
    ]


@pytest.fixture(params=NAMES)
def name(request):
    if refused(request.param, "eager"):
        pytest.skip(f"declared: {refused(request.param, 'eager')[0].reason}")
    return request.param


def test_every_entry_is_created_called_and_differentiated(name):
    spec, model = zoo.get_spec(name), zoo.create_model(name, seed=0)
    args = zoo.example_inputs(name)
    if spec.differentiable:
        args = tuple(x.requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args)
    found = floats(model(*(leaves(args) if spec.mutates else args)))
    assert all(output.isfinite().all() for output in found)
    if not spec.differentiable:
        return
    outputs = [output for output in found if output.requires_grad]
    sources = [*floats(args), *(model.parameters() if isinstance(model, torch.nn.Module) else ())]
    gradients = torch.autograd.grad(outputs, sources, [torch.randn_like(o) for o in outputs], allow_unused=True)
    reached = [gradient for gradient in gradients if gradient is not None]
    assert any(gradient.any() for gradient in reached)
    assert all(gradient.isfinite().all() for gradient in reached)


def leaves(args):
    """Copies that may be changed in place."""
    return tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in args)


def test_every_entry_is_as_the_matrix_judges_it(name):
    """Weights, buffers and training mode are those of the matrix, apart from the rounding of its weights."""
    model, judged = zoo.create_model(name, seed=3), prepared_model(zoo.get_spec(name), 3)
    if isinstance(model, zoo.Trainer):
        model = model.model
    assert type(model).__name__ == type(judged).__name__
    if not isinstance(model, torch.nn.Module):
        return
    assert [m.training for m in model.modules()] == [m.training for m in judged.modules()]
    for (key, value), other in zip(model.state_dict().items(), judged.state_dict().values(), strict=True):
        torch.testing.assert_close(value, other, rtol=2**-7, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}")


def scripted(name, model):
    """The model under TorchScript; the test is skipped where the spec declares that a script is refused."""
    if refused(name, "scripted"):
        pytest.skip(f"declared: {refused(name, 'scripted')[0].reason}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(model)


def defaults(model, args):
    """The arguments that a call leaves out: TorchScript stores a function without their values."""
    if isinstance(model, torch.nn.Module | torch.jit.ScriptFunction):
        return ()
    return tuple(p.default for p in list(inspect.signature(model).parameters.values())[len(args) :])


def test_every_entry_is_scripted_saved_and_loaded(name):
    model, args = zoo.create_model(name, seed=0), zoo.example_inputs(name)
    model = model.model if isinstance(model, zoo.Trainer) else model
    graph, file = scripted(name, model), io.BytesIO()
    if "^" in str(graph.inlined_graph):  # TorchScript's mark of a Python function
        with pytest.raises(RuntimeError, match="Could not export Python function"):
            torch.jit.save(graph, file)
        pytest.skip("TorchScript runs a custom Function, and cannot store it")
    torch.jit.save(graph, file)
    file.seek(0)
    loaded = torch.jit.load(file)
    if zoo.get_spec(name).fit is None:
        found, wanted = called(loaded, (*leaves(args), *defaults(model, args))), called(model, leaves(args))
        for one, other in zip(floats(found), floats(wanted), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", [n for n in NAMES if isinstance(zoo.create_model(n), torch.nn.Module)])
def test_a_state_dict_is_saved_and_loaded(name):
    model, other, file = zoo.create_model(name, seed=0), zoo.create_model(name, seed=1), io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    for one, two in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_names_say_what_comes():
    assert isinstance(zoo.create_model("batch_gather_scripted"), torch.jit.ScriptFunction)
    scripted = zoo.create_model("checkerboard_scripted")
    assert isinstance(scripted, torch.jit.ScriptModule)
    assert scripted.state_dict()["net.0.weight"].shape == (256, 2, 1, 1)
    frozen = zoo.create_model("checkerboard_eval")
    assert not frozen.training
    assert not torch.equal(frozen.net[1].running_mean, torch.zeros(32))
    assert isinstance(zoo.create_model("merge").activation, torch.nn.ReLU)


def curve(found):
    """The loss of each step: the first result of a training, and the sum of several losses."""
    losses = found[0] if isinstance(found, tuple) else found
    return losses.flatten(1).sum(1) if losses.dim() > 1 else losses


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_is_called_like_a_model(name):
    """Its first loss is that of a fresh model, in every precision the loss falls, and a second call goes on."""
    for precision in ("fp32", "amp_fp16", "amp_bf16"):
        trainer, inputs = zoo.create_model(name, seed=0), zoo.example_inputs(name)
        assert isinstance(trainer, zoo.Trainer)
        losses, more = (curve(trainer(*inputs, precision=precision)) for _ in range(2))
        assert losses[-1] < losses[0]
        assert more[0] < losses[0]


def test_a_seed_gives_equal_weights_and_leaves_the_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, same, other = (zoo.create_model("mlp", seed=seed)[0].weight for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(before, torch.get_rng_state())
    zoo.create_model("mlp")
    assert not torch.equal(before, torch.get_rng_state())


def test_a_device_moves_parameters_and_buffers():
    model = zoo.create_model("checkerboard_eval", device="meta")
    assert {t.device.type for t in model.state_dict().values()} == {"meta"}
    assert zoo.create_model("fit_line", device="meta").model.linear.weight.is_meta


def test_bad_arguments_are_named():
    with pytest.raises(TypeError, match=r"^create_model: seed must be an integer, got str$"):
        zoo.create_model("merge", seed="0")
    with pytest.raises(TypeError, match="in1"):
        zoo.create_model("merge", in1=5)
    with pytest.raises(TypeError, match=r"^create_model: name must be a string, got None$"):
        zoo.create_model(None)
    with pytest.raises(TypeError, match=r"^example_inputs: case must be a string, got list$"):
        zoo.example_inputs("merge", [])
    with pytest.raises(KeyError, match=r"^\w+ has no case 'tipical'; it has \w"):
        zoo.example_inputs("merge", "tipical")
    with pytest.raises(ValueError, match=r"^Merge: out_features must be at least 1, got -1$"):
        zoo.create_model("merge", out_features=-1)
    with pytest.raises(TypeError, match=r"^Merge: x1 must be a tensor, got list$"):
        zoo.create_model("merge")([1.0], torch.ones(6))
    with pytest.raises(TypeError, match=r"^Merge: activation must be a module, a function or None, got str$"):
        zoo.create_model("merge", activation="relu")


@pytest.mark.parametrize("function", [zoo.create_model, zoo.example_inputs])
def test_a_device_that_is_not_there_is_refused(function):
    with pytest.raises(ValueError, match=rf"^{function.__name__}: device must be .*, got nope: [^\n]+$"):
        function("merge", device="nope")
    if not hasattr(torch, "xpu") or not torch.xpu.is_available():
        with pytest.raises(ValueError, match=rf"^{function.__name__}: device must be .*, got xpu: [^\n]+$"):
            function("merge", device="xpu")
