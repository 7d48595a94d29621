"""Every scale of the zoo builds and draws, and models that compute the same have the same scale and inputs."""

import pytest
import torch

import zoo

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
UNSCALED = {  # integers, a function that returns its input, and one that float32 refuses
    "arithmetic",
    "logic_of_booleans",
    "logic_of_integers",
    "seeded_dropout_eval",
    "add_and_matmul_half",
}
SIZE_NAMES = {
    "merge": "width",
    "mlp": "width",
    "checkerboard": "side",
    "clipped_relu": "width",
    "conv_bn": "batch",
    "layer_norm": "width",
    "rms_norm": "width",
    "rotary_embedding": "tokens",
    "attention": "tokens",
    "embedding": "tokens",
    "transformer": "tokens",
    "line": "numbers",
    "quadratic": "numbers",
    "batch_gather_loop": "batch",
    "row_sum": "rows",
    "softmax": "classes",
    "softmax_cross_entropy": "classes",
    "sum_explicit": "rows",
    "ratio_safe": "numbers",
    "sinh": "numbers",
    "cube_cpp": "numbers",
    "cube_numpy": "numbers",
    "matmul_amp": "width",
    "fused_conv_bn2d": "batch",
    "autocast_region": "width",
    "float32_island": "rows",
    "conv_then_bn": "channels",
    "folded_conv_bn": "channels",
    "in_place_on_copy": "numbers",
    "exp_fp32": "numbers",
    "relu_amp": "numbers",
    "batch_norm2d": "batch",
    "conv2d": "batch",
    "add_and_matmul": "width",
    "lstm_cell": "width",
    "resnet": "width",
    "seeded_dropout": "numbers",
}


def _drawn(name, size, seed=0):
    return zoo.get_spec(name).at(size).cases[0].draw(torch.Generator().manual_seed(seed)).args


def _prepared(spec):
    torch.manual_seed(0)
    return spec.initialised(spec.build())


def test_size_names():
    assert {name: zoo.get_spec(name).scale.size_name for name in SIZE_NAMES} == SIZE_NAMES
    assert set(SCALED) == set(SIZE_NAMES).union(*SAME)


def test_every_model_has_a_size_at_which_the_matrix_times_it():
    timed = {name for name in SCALED if zoo.get_spec(name).scale.working and zoo.get_spec(name).scale.working_on_cuda}
    fits = {name for name in zoo.list_models() if zoo.get_spec(name).fit is not None}
    assert timed == set(zoo.list_models()) - fits - UNSCALED


@pytest.mark.parametrize("name", SCALED)
def test_a_scale_has_three_to_five_powers_of_two(name):
    sizes = zoo.get_spec(name).scale.sizes
    assert 3 <= len(sizes) <= 5
    assert all(size.bit_count() == 1 for size in sizes)


@pytest.mark.parametrize("name", SCALED)
def test_at_a_size_there_is_one_case_named_after_it(name):
    spec = zoo.get_spec(name)
    for size in spec.scale.sizes:
        sized = spec.at(size)
        assert sized.name == f"{name}@{size}"
        assert [case.name for case in sized.cases] == [f"{spec.scale.size_name}-{size}"]


@pytest.mark.parametrize("name", SCALED)
def test_every_size_builds_and_draws_more_numbers_than_the_last(name):
    counts = []
    for size in zoo.get_spec(name).scale.sizes:
        spec = zoo.get_spec(name).at(size)
        model = spec.build()
        assert callable(model)
        counts.append(sum(x.numel() for x in _drawn(name, size) if isinstance(x, torch.Tensor)))
    assert counts == sorted(set(counts))


@pytest.mark.parametrize("name", SCALED)
def test_inputs_come_from_the_generator_alone(name):
    size = zoo.get_spec(name).scale.sizes[0]
    one, again, other = _drawn(name, size), _drawn(name, size), _drawn(name, size, seed=1)
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one[0], other[0])


@pytest.mark.parametrize("name", [n for n in SCALED if zoo.get_spec(n).scale.sizes[0] <= TINY])
def test_the_smallest_size_runs_and_meets_its_reference(name):
    spec = zoo.get_spec(name).at(zoo.get_spec(name).scale.sizes[0])
    model = _prepared(spec)
    model = model.double() if isinstance(model, torch.nn.Module) else model
    args = [
        x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in spec.cases[0].draw(torch.Generator().manual_seed(0)).args
    ]
    expected = spec.reference(model, *args)
    torch.testing.assert_close(model(*args), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [n for n in SCALED if zoo.get_spec(n).scale.scripted])
def test_a_script_made_by_hand_computes_what_the_model_does(name):
    spec = zoo.get_spec(name).at(zoo.get_spec(name).scale.sizes[0])
    model, scripted = spec.build(), spec.scripted()
    if isinstance(model, torch.nn.Module):
        scripted.load_state_dict(model.state_dict())
    torch.testing.assert_close(scripted(*_drawn(name, 8)), model(*_drawn(name, 8)))


@pytest.mark.parametrize("group", SAME, ids=min)
def test_compared_models_have_one_scale(group):
    scales = [zoo.get_spec(name).scale for name in sorted(group)]
    assert len({(scale.size_name, scale.sizes) for scale in scales}) == 1
    size = scales[0].sizes[0]
    if "log_clamped" in group:  # it takes only the divisor
        group = group - {"log_clamped"}
    first, *others = (_drawn(name, size) for name in sorted(group))
    for drawn in others:
        assert all(torch.equal(a, b) for a, b in zip(first, drawn, strict=False) if isinstance(a, torch.Tensor))


def test_the_scripted_loop_is_a_script():
    spec = zoo.get_spec("batch_gather_scripted").at(8)
    assert isinstance(spec.build(), torch.jit.ScriptFunction)


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
    assert [list(x.shape) for x in _drawn(model, int(size))] == shapes


def test_the_width_of_a_model_is_that_of_its_parameters():
    for name, count in [("merge", 2 * (64 * 64 + 64)), ("mlp", 2 * (64 * 64 + 64)), ("clipped_relu", 64 * 64 + 64)]:
        assert sum(p.numel() for p in zoo.get_spec(name).at(64).build().parameters()) == count
