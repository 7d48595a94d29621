"""Every entry of the zoo: its texts, cases, error inputs, source, reference and scale, and what its name creates."""

import copy
import inspect
import io
import re
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils import _pytree as pytree

import zoo
from conformance.float64.wide import prepared_model
from zoo.sources import SOURCES

COUNTEREXAMPLES = zoo.list_models(module="counterexamples")
ALL = [*zoo.list_models(), *COUNTEREXAMPLES]


@pytest.mark.parametrize("name", ALL)
def test_a_spec_has_all_its_texts_and_its_cases_draw_inputs_of_fixed_shapes(name):
    spec = zoo.get_spec(name)
    for text in (spec.summary, spec.formula, spec.shapes, spec.source):
        assert text
        assert text == " ".join(text.split())
    assert "→" in spec.shapes
    assert spec.expectations or name not in COUNTEREXAMPLES  # these say what is wrong
    for expected in spec.expectations:
        assert expected.reason
        assert not expected.link or expected.link.startswith("https://")
    for case in spec.cases:
        one, two = zoo.example_inputs(name, case.name, seed=1), zoo.example_inputs(name, case.name, seed=1)
        assert [getattr(x, "shape", x) for x in one] == [getattr(x, "shape", x) for x in two]


# sources: known ones or papers, all on the page

PAGE = (Path(__file__).parents[2] / "docs" / "sources.md").read_text(encoding="utf-8")
PAPER = re.compile(r"\b(19|20)\d\d\b|arXiv:\d{4}\.\d{4,5}")  # a year, such as "Ba et al. 2016", or a number


@pytest.mark.parametrize("name", zoo.list_models())
def test_a_source_is_known_or_is_a_paper(name):
    source = zoo.get_spec(name).source
    assert source.startswith(tuple(SOURCES)) or PAPER.search(source), f"add to zoo/sources.py: {source}"


def test_the_page_of_sources_has_every_title_and_address_and_no_name_of_one_begins_another():
    assert [s for s in SOURCES.values() if f"[{s.title}]({s.url})" not in PAGE] == []
    names = list(SOURCES)
    assert [(a, b) for a in names for b in names if a != b and b.startswith(a)] == []


# references: each model agrees with its independent formula in float64

NAMED = [name for name in zoo.list_models() if zoo.get_spec(name).reference is not None]
TWINS = [name for name in zoo.list_models() if zoo.get_spec(name).twin]


def formula_of(spec, model):
    """The reference as a function of the inputs; a trusted implementation gets the model's parameters."""
    if not spec.trusts_model:
        return partial(spec.reference, model)
    trusted = spec.reference()
    if isinstance(trusted, torch.nn.Module):
        trusted.double().load_state_dict(model.state_dict())
    return trusted


def doubled(args):
    return tuple(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args)


@pytest.mark.parametrize("name", NAMED)
def test_model_agrees_with_its_reference(name):
    spec = zoo.get_spec(name)
    for declared in refused(name, "eager"):
        if declared.outcome == "refuses" and not declared.precisions:  # eager takes the model on no account here
            pytest.skip(f"NOT TESTED: {name}, because {declared.reason}")
    torch.manual_seed(0)
    model = spec.initialised(spec.build())
    model = model.double() if isinstance(model, torch.nn.Module) else model
    for case in spec.cases:
        args = doubled(case.draw(torch.Generator().manual_seed(1)).args)
        wanted = formula_of(spec, model)(*args)
        found = spec.fit(model, model, "fp32", *args) if spec.fit else model(*args)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", TWINS)
def test_twins_share_parameters_and_cases_and_have_the_same_results_and_gradients(name):
    spec = zoo.get_spec(name)
    other = zoo.get_spec(spec.twin)
    assert [case.name for case in spec.cases] == [case.name for case in other.cases]
    one, its = prepared(spec), prepared(other)
    if isinstance(one, torch.nn.Module):
        its.double().load_state_dict(one.double().state_dict())
    for case in spec.cases:
        args = doubled(case.draw(torch.Generator().manual_seed(1)).args)
        mine, theirs = (results_and_gradients(model, args) for model in (one, its))
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def prepared(spec):
    torch.manual_seed(0)
    return spec.initialised(spec.build())


def results_and_gradients(model, args):
    """What a call gives, and its gradients by all floating inputs and parameters, for the same cotangents each time."""
    args = [x.detach().requires_grad_() if floats(x) else x for x in args]
    found = floats(model(*args))
    generator = torch.Generator().manual_seed(2)
    cotangents = [torch.randn(y.shape, generator=generator, dtype=y.dtype) for y in found]
    sources = [*floats(args), *(model.parameters() if isinstance(model, torch.nn.Module) else ())]
    return [*found, *torch.autograd.grad(found, sources, cotangents, allow_unused=True)]


# create_model: what the matrix judges

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


def test_a_batch_of_any_size_is_drawn_and_the_outputs_have_it(name):
    spec = zoo.get_spec(name)
    given, returned = (
        [one.split(", ") for one in re.findall(r"\(([^()]*)\)", side)] for side in spec.shapes.split("→")
    )
    if not any("batch" in words or (words[0] in ("...", "…") and words[0] not in words[1:]) for words in given):
        with pytest.raises(
            ValueError, match=f"^example_inputs: batch_size: no input of {name} has a batch in case 'ty"
        ):
            zoo.create_model_and_inputs(name, batch_size=7)
        return
    for size in (2, 7):
        model, args = zoo.create_model_and_inputs(name, batch_size=size)
        for words, output in zip(returned, pytree.tree_leaves(model(*leaves(args))), strict=False):
            if "batch" in words or words[0] in ("...", "…"):
                assert output.size(words.index("batch") if "batch" in words else 0) == size
    assert torch.equal(
        zoo.example_inputs(name, batch_size=7, seed=3)[0], zoo.example_inputs(name, batch_size=7, seed=3)[0]
    )


def pickled(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_every_entry_is_pickled(name):
    """A module with all that it holds, and a function by its name. TorchScript has a format of its own."""
    model, args = zoo.create_model(name, seed=0), zoo.example_inputs(name)
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        pytest.skip("torch.jit.save stores a script, see test_every_entry_is_scripted_saved_and_loaded")
    again = pickled(model)
    assert again is model or isinstance(model, torch.nn.Module)
    for one, other in zip(floats(called(again, leaves(args))), floats(called(model, leaves(args))), strict=True):
        assert torch.equal(one, other)


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
    name = "batch_gather_scripted"
    for model in (zoo.get_spec(name).at(8).build(), zoo.create_model(name)):
        assert model is zoo.ops.batch_gather_scripted
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


@pytest.mark.parametrize("mode", ["eager", "scripted"])
@pytest.mark.parametrize("name", [n for n in NAMES if zoo.get_spec(n).error_inputs])
def test_every_error_input_raises_its_error(name, mode):
    spec = zoo.get_spec(name)
    model = scripted(name, spec.build()) if mode == "scripted" else spec.build()
    for given in spec.error_inputs:
        call = given.draw(torch.Generator().manual_seed(0))
        for _ in range(3):  # meanwhile TorchScript optimises
            with pytest.raises(Exception) as raised:  # noqa: PT011 -- the next line looks at it
                model(*call.args, **call.kwargs)
            assert given.describes(raised.value, str(raised.value)), f"{raised.value!r}, not {given.wanted}"


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


def test_a_device_moves_parameters_and_buffers_and_one_that_is_not_there_is_refused():
    model = zoo.create_model("checkerboard_eval", device="meta")
    assert {t.device.type for t in model.state_dict().values()} == {"meta"}
    assert zoo.create_model("fit_line", device="meta").model.linear.weight.is_meta
    for device in ("nope", *(() if hasattr(torch, "xpu") and torch.xpu.is_available() else ("xpu",))):
        for function in (zoo.create_model, zoo.example_inputs):
            line = rf"^{function.__name__}: device must be .*, got {device}: [^\n]+$"
            with pytest.raises(ValueError, match=line):
                function("merge", device=device)


# scales: each builds and draws, and models that compute the same share theirs

SCALED = [name for name in zoo.list_models() if zoo.get_spec(name).scale]
TINY = 32  # the largest size at which a test runs the model
SAME = (
    {"merge", "merge_tiled"},
    {"batch_gather_loop", "batch_gather_scripted", "batch_gather_vectorised", "batch_gather_native"},
    {"row_sum", "row_sum_sliced", "row_sum_unbind"},
    {"softmax", "softmax_naive"},
    {"softmax_cross_entropy", "softmax_cross_entropy_naive", "softmax_cross_entropy_native"},
    {"conv_bn", "fused_conv_bn"},
    {"layer_norm", "layer_norm_native"},
    {"rms_norm", "rms_norm_native"},
    {"attention", "attention_fused"},
    {"embedding", "tied_embedding"},
    {"transformer", "transformer_fused"},
    {"checkerboard", "checkerboard_eval", "checkerboard_scripted"},
    {"affine", "line"},
    {"conv_then_bn", "folded_conv_bn"},
    {"lstm_cell", "lstm_cell_native"},
    {"resnet", "resnet_eval"},
    {"ratio_naive", "ratio_safe", "log_clamped"},
    {"folded_conv_bn", "folded_grouped_conv_bn"},
    {"in_place_on_copy", "in_place_on_input"},
    *({name, f"{name}_op"} for name in ("square", "cube", "exp", "sinh", "matmul_amp", "fused_conv_bn2d")),
    *({name, f"{name}_op"} for name in ("exp_fp32", "relu_amp", "batch_norm2d", "conv2d")),
)
UNSCALED = set(  # integers, a function that returns its input, and one that float32 refuses
    "arithmetic logic_of_booleans logic_of_integers seeded_dropout_eval add_and_matmul_half".split()
)
SIZE_NAMES = {
    "width": "merge mlp clipped_relu layer_norm rms_norm matmul_amp autocast_region add_and_matmul lstm_cell resnet",
    "side": "checkerboard",
    "batch": "conv_bn batch_gather_loop fused_conv_bn2d batch_norm2d conv2d",
    "tokens": "rotary_embedding attention embedding transformer",
    "numbers": "line quadratic ratio_safe sinh cube_cpp cube_numpy in_place_on_copy exp_fp32 relu_amp seeded_dropout "
    "negative_square",
    "rows": "row_sum sum_explicit float32_island add_created",
    "classes": "softmax softmax_cross_entropy",
    "channels": "conv_then_bn folded_conv_bn",
}


def drawn_at(name, size, seed=0):
    return zoo.get_spec(name).at(size).cases[0].draw(torch.Generator().manual_seed(seed)).args


def test_size_names_and_the_width_of_a_model_is_that_of_its_parameters():
    named = {name: size for size, names in SIZE_NAMES.items() for name in names.split()}
    assert {name: zoo.get_spec(name).scale.size_name for name in named} == named
    assert set(SCALED) == set(named).union(*SAME)
    for name, count in [("merge", 2 * (64 * 64 + 64)), ("mlp", 2 * (64 * 64 + 64)), ("clipped_relu", 64 * 64 + 64)]:
        assert sum(p.numel() for p in zoo.get_spec(name).at(64).build().parameters()) == count


def test_every_model_has_a_size_at_which_the_matrix_times_it():
    timed = {name for name in SCALED if zoo.get_spec(name).scale.working and zoo.get_spec(name).scale.working_on_cuda}
    fits = {name for name in zoo.list_models() if zoo.get_spec(name).fit is not None}
    assert timed == set(zoo.list_models()) - fits - UNSCALED


@pytest.mark.parametrize("name", SCALED)
def test_a_scale_has_three_to_five_powers_of_two_and_each_builds_and_draws_more_numbers_than_the_last(name):
    sizes, size_name = zoo.get_spec(name).scale.sizes, zoo.get_spec(name).scale.size_name
    assert 3 <= len(sizes) <= 5
    counts = []
    for size in sizes:
        assert size.bit_count() == 1
        spec = zoo.get_spec(name).at(size)
        assert (spec.name, [case.name for case in spec.cases]) == (f"{name}@{size}", [f"{size_name}-{size}"])
        assert callable(spec.build())
        counts.append(sum(x.numel() for x in drawn_at(name, size) if isinstance(x, torch.Tensor)))
    assert counts == sorted(set(counts))


@pytest.mark.parametrize("name", SCALED)
def test_inputs_come_from_the_generator_alone(name):
    size = zoo.get_spec(name).scale.sizes[0]
    one, again, other = drawn_at(name, size), drawn_at(name, size), drawn_at(name, size, seed=1)
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one[0], other[0])


@pytest.mark.parametrize("name", [n for n in SCALED if zoo.get_spec(n).scale.sizes[0] <= TINY])
def test_the_smallest_size_runs_and_meets_its_reference(name):
    spec = zoo.get_spec(name).at(zoo.get_spec(name).scale.sizes[0])
    model = prepared(spec)
    model = model.double() if isinstance(model, torch.nn.Module) else model
    args = doubled(spec.cases[0].draw(torch.Generator().manual_seed(0)).args)
    torch.testing.assert_close(model(*args), spec.reference(model, *args), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [n for n in SCALED if zoo.get_spec(n).scale.scripted])
def test_a_script_made_by_hand_computes_what_the_model_does(name):
    spec = zoo.get_spec(name).at(zoo.get_spec(name).scale.sizes[0])
    model, scripted = spec.build(), spec.scripted()
    if isinstance(model, torch.nn.Module):
        scripted.load_state_dict(model.state_dict())
    torch.testing.assert_close(scripted(*drawn_at(name, 8)), model(*drawn_at(name, 8)))


@pytest.mark.parametrize("group", SAME, ids=min)
def test_compared_models_have_one_scale(group):
    scales = [zoo.get_spec(name).scale for name in sorted(group)]
    assert len({(scale.size_name, scale.sizes) for scale in scales}) == 1
    size = scales[0].sizes[0]
    if "log_clamped" in group:  # it takes only the divisor
        group = group - {"log_clamped"}
    first, *others = (drawn_at(name, size) for name in sorted(group))
    for drawn in others:
        assert all(torch.equal(a, b) for a, b in zip(first, drawn, strict=False) if isinstance(a, torch.Tensor))


@pytest.mark.parametrize(("name", "shapes"), [
    ("merge@64", [[8, 8, 64], [8, 1, 64]]),
    ("row_sum_sliced@500", [[500, 10]]),
    ("batch_gather_loop@32", [[32, 8, 4], [32, 4]]),
    ("checkerboard@16", [[1, 2, 16, 16]]),
    ("fused_conv_bn@4", [[4, 1, 28, 28]]),
    ("softmax_cross_entropy@64", [[32, 64], [32, 64]]),
])  # fmt: skip
def test_shapes_at_a_size(name, shapes):
    model, size = name.split("@")
    assert [list(x.shape) for x in drawn_at(model, int(size))] == shapes
