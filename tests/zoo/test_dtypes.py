"""The table of dtypes: what it shows of a model's modules, what it refuses, and that it leaves all as it found it."""

import random
import re
import warnings

import pytest
import torch
from torch import nn

import zoo
from zoo.dtypes import DtypeRow, DtypeTrace, trace_dtypes

F32, F16, BF16, I64 = torch.float32, torch.float16, torch.bfloat16, torch.int64


def bf16():
    return torch.autocast("cpu", torch.bfloat16)


def by_name(trace):
    """The rows of a trace in which every module has one row."""
    assert len({row.module for row in trace.rows}) == len(trace.rows)
    return {row.module: row for row in trace.rows}


def scripted(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(module)


class Island(nn.Module):
    """A layer under autocast, and one in a region that turns it off."""

    def __init__(self):
        super().__init__()
        self.low, self.high, self.spare = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(2, 2)

    def forward(self, x, scale=None):
        x = self.low(x)
        with torch.autocast("cpu", enabled=False):
            x = self.high(x.float())
        return {"out": x if scale is None else x * scale, "index": x.argmax(-1)}


def test_the_table_says_where_a_dtype_changes_and_what_is_not_called():
    with bf16():
        trace = zoo.trace_dtypes(Island(), torch.ones(3, 4))
    assert str(trace).splitlines() == [
        "module    type    parameters    autocast    input    output          calls",
        "--------  ------  ------------  ----------  -------  --------------  -------  ----------",
        "(model)   Island                bfloat16    float32  float32, int64  1",
        "low       Linear  float32       bfloat16    float32  bfloat16        1        changes",
        "high      Linear  float32       off         float32  float32         1",
        "spare     Linear  float32                                            0        not called",
    ]
    assert [row.module for row in trace.rows if row.changes] == ["low"]
    assert by_name(trace)["spare"] == DtypeRow(module="spare", kind="Linear", parameters=(F32,))
    row = trace_dtypes(Island(), torch.ones(3, 4), scale=torch.ones((), dtype=torch.float64)).rows[0]
    assert (row.inputs, row.outputs) == ((F32, torch.float64), (F32, I64))


@pytest.mark.parametrize("dtype", [None, F16, BF16])
def test_the_autocast_is_that_around_the_call(dtype):
    with torch.autocast("cpu", dtype or BF16, enabled=dtype is not None):
        (row,) = trace_dtypes(nn.Linear(2, 2), torch.ones(1, 2)).rows
    assert (row.autocast, row.inputs, row.outputs) == (dtype, (F32,), (dtype or F32,))
    assert row.changes is (dtype is not None)


@pytest.mark.filterwarnings("ignore:.*CUDA is not available:UserWarning")
def test_autocast_of_another_device_does_not_count():
    with torch.autocast("cuda", F16):
        (row,) = trace_dtypes(nn.Linear(2, 2), torch.ones(1, 2)).rows
    assert (row.autocast, row.outputs) == (None, (F32,))


def test_equal_calls_are_counted_others_have_rows_and_containers_that_cannot_be_called_none():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.acts = nn.ModuleList([nn.ReLU()])

        def forward(self, x):
            (act,) = self.acts
            return act(act(act(x)).bfloat16())

    trace = trace_dtypes(Twice(), torch.ones(2))
    assert [(row.module, row.inputs, row.calls) for row in trace.rows] == [
        ("", (F32,), 1),
        ("acts.0", (F32,), 2),
        ("acts.0", (BF16,), 1),
    ]


def test_a_shared_module_has_all_its_names():
    layer = nn.Linear(2, 2)
    model = nn.ModuleDict({"a": layer, "b": nn.Sequential(layer)})
    model.forward = lambda x: model["b"](model["a"](x))
    with bf16():
        rows = trace_dtypes(model, torch.ones(1, 2)).rows
    assert [(row.module, row.inputs) for row in rows] == [
        ("", (F32,)),
        ("a, b.0", (F32,)),
        ("b", (BF16,)),
        ("a, b.0", (BF16,)),
    ]


@pytest.mark.parametrize(
    ("inputs", "outputs", "parameters", "changes"),
    [
        ((F32,), (F32,), (), False),
        ((F32,), (BF16,), (), True),
        ((F32, BF16), (BF16,), (), False),
        ((F32,), (I64, torch.bool), (), False),
        ((I64,), (F32,), (F32,), False),  # an embedding
        ((I64,), (BF16,), (F32,), True),
        ((F32,), (torch.complex64,), (), True),
        ((), (F32,), (), False),
        ((F32,), (), (), False),
    ],
)
def test_what_counts_as_a_change(inputs, outputs, parameters, changes):
    row = DtypeRow(module="m", kind="M", inputs=inputs, outputs=outputs, parameters=parameters)
    assert row.changes is changes
    assert ("changes" in str(DtypeTrace((row,)))) is changes


def test_a_function_is_one_row():
    def product(x, *, y):
        return x @ y

    with bf16():
        (row,) = trace_dtypes(product, torch.ones(2, 2), y=torch.ones(2, 2)).rows
    assert row == DtypeRow(
        module="product", kind="function", autocast=BF16, inputs=(F32, F32), outputs=(BF16,), calls=1
    )


def test_a_script_is_one_row_with_all_its_parameters():
    model = scripted(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    (row,) = trace_dtypes(model, torch.randn(3, 2)).rows
    assert row == DtypeRow(
        module="", kind="Sequential (scripted)", parameters=(F32,), inputs=(F32,), outputs=(F32,), calls=1
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_script_inside_a_module_is_seen_as_a_whole():
    model = nn.Sequential(scripted(nn.Sequential(nn.Linear(2, 2))), nn.ReLU(), scripted(nn.Linear(2, 2)))
    assert [(row.module, row.kind, row.inputs, row.calls) for row in trace_dtypes(model, torch.ones(1, 2)).rows] == [
        ("", "Sequential", (F32,), 1),
        ("0", "Sequential (scripted)", (F32,), 1),
        ("1", "ReLU", (F32,), 1),
        ("2", "Linear (scripted)", (F32,), 1),
    ]
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_a_call_whose_error_the_model_catches_has_no_output():
    class Cautious(nn.Module):
        def __init__(self):
            super().__init__()
            self.fast, self.slow = nn.Linear(3, 2), nn.Linear(2, 2)

        def forward(self, x):
            try:
                return self.fast(x)
            except RuntimeError:
                return self.slow(x)

    rows = by_name(trace_dtypes(Cautious(), torch.ones(1, 2)))
    assert [(row.outputs, row.calls) for row in rows.values()] == [((F32,), 1), ((), 1), ((F32,), 1)]


def test_a_compiled_part_is_refused():
    inside = nn.Sequential(nn.ReLU(), nn.Linear(2, 2))
    inside[1].compile()
    for model, where in ((torch.compile(nn.ReLU()), "model"), (inside, "1")):
        line = f"^trace_dtypes: {where} must not be compiled, because hooks do not run in compiled code$"
        with pytest.raises(ValueError, match=line):
            trace_dtypes(model, torch.ones(1, 2))


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_a_lazy_module_is_refused_until_it_has_its_parameters():
    for lazy in (nn.LazyLinear(2), nn.LazyBatchNorm1d(affine=False)):
        model = nn.Sequential(lazy)
        line = f"trace_dtypes: 0 must have its parameters, got a lazy {type(lazy).__name__}: call the model once before"
        with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
            trace_dtypes(model, torch.ones(2, 3))
        model(torch.ones(2, 3))
        assert len(trace_dtypes(model, torch.ones(2, 3)).rows) == 2


# the model, the generators and autocast are as they were


class Busy(nn.Module):
    """Changes all that a forward can change: buffers, attributes, generators, its mode."""

    def __init__(self, *, fails=False):
        super().__init__()
        self.fails, self.calls, self.seen, self.cache = fails, 0, [], {}
        self.body = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout())
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("rebound", torch.zeros(3))
        self.plain = torch.zeros(3)

    def forward(self, x):
        x = self.body(x)
        self.total += x.detach().sum(0)
        self.plain.add_(1)
        self.rebound, self.late, self.cache["x"] = x.detach()[0], x, x
        self.calls += 1 + int(10 * random.random())
        self.seen.append(x)
        self.eval()
        self.register_forward_hook(lambda *_: None)
        if self.fails:
            raise RuntimeError("as it must")
        return x


def content(model):
    """Everything that a model holds, comparable by ==."""

    def plain(value):
        return value.tolist() if isinstance(value, torch.Tensor) else dict(value) if isinstance(value, dict) else value

    kept = ("_parameters", "_buffers")  # whose tensors the state holds
    return [
        {key: plain(value) for key, value in {**vars(module), **module.state_dict()}.items() if key not in kept}
        for module in model.modules()
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_and_the_generators_are_as_they_were(fails):
    model = Busy(fails=fails)
    objects = [*model.parameters(), *model.buffers(), model.plain, model.seen, model.cache, model._forward_hooks]
    before, generators = content(model), (torch.get_rng_state(), random.getstate())
    if fails:
        with pytest.raises(RuntimeError, match=r"^as it must$"):
            trace_dtypes(model, torch.randn(4, 3))
    else:
        trace_dtypes(model, torch.ones(4, 3))
        generators_after = (torch.get_rng_state(), random.getstate())
        assert torch.equal(generators_after[0], generators[0])
        assert generators_after[1] == generators[1]
    assert content(model) == before
    after = [*model.parameters(), *model.buffers(), model.plain, model.seen, model.cache, model._forward_hooks]
    assert all(a is b for a, b in zip(objects, after, strict=True))
    assert not hasattr(model, "late")


def test_hooks_buffers_and_the_cache_of_autocast_are_as_they_were():
    model = nn.Sequential(nn.Linear(2, 2))
    handle = model[0].register_forward_hook(lambda _module, _args, output: output.double())
    assert trace_dtypes(model, torch.ones(1, 2)).rows[1].outputs == (torch.float64,)
    assert list(model[0]._forward_hooks) == [handle.id]
    norm = nn.BatchNorm1d(2).eval()
    out = norm(torch.randn(3, 2))
    trace_dtypes(norm, torch.randn(3, 2))
    out.backward(torch.ones(3, 2))  # a buffer that did not change can still be used
    layer = nn.Linear(2, 2)
    with bf16():
        trace_dtypes(layer, torch.ones(1, 2))
        assert torch.is_autocast_cache_enabled()
        with torch.no_grad():
            layer.weight.zero_()
        assert torch.equal(layer(torch.ones(1, 2)), layer.bias.bfloat16().unsqueeze(0))
