"""The declared dtypes under CUDA's autocast, on machines without a GPU.

A fake tensor of device "cuda" holds no numbers, but dispatches like a real one. It uses CUDA's lists of the
operations that autocast lowers and widens, which differ from the CPU's. In a torch built without CUDA some operations
need the CUDA runtime, so this test cannot check them; only there it leaves them out.
"""

from contextlib import contextmanager
from dataclasses import replace
from functools import reduce

import pytest
import torch
from packaging.version import Version
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

import zoo
from conformance.evaluate import inputs
from zoo.functions.exp import _exp
from zoo.functions.sinh import _sinh

AUTOCAST = {"fp32": None, "amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}
COUNTEREXAMPLES = zoo.list_models(module="counterexamples")
READ_NUMBERS = {"cube_cpp", "cube_numpy", "gather_check_lost"}  # a fake tensor has none
EVERY = {*zoo.list_models(), *COUNTEREXAMPLES} - READ_NUMBERS
OWN_REGIONS = {"autocast_region"}  # without a GPU, torch.autocast disables itself in it
NAMES = sorted(n for n in EVERY - OWN_REGIONS if zoo.get_spec(n).fit is None)
UNSCRIPTABLE = set(
    "every_worker_reads_all global_rng hidden_state sinh_gradients_ignored sinh_non_differentiable "
    "add_created".split()  # torch.tensor in a script writes its numbers to the device, here none: the process dies
)
if Version(torch.__version__) >= Version("2.14.dev0"):  # TorchScript takes no Function
    UNSCRIPTABLE |= {"fused_conv_bn_twice", "gradient_sample_dropped", "gradient_too_large", "sinh_kept_on_ctx"}
WIDENED = {
    "arithmetic": "output.pow",
    **dict.fromkeys(("layer_norm_native", "log_clamped", "rms_norm_native", "softmax", "softmax_naive"), "output"),
    **dict.fromkeys((f"softmax_cross_entropy{end}" for end in ("", "_naive", "_native")), "output"),
    **dict.fromkeys(("row_sum", "row_sum_sliced", "row_sum_unbind", "sum_explicit"), "output"),
}
NO_RUNTIME = "not linked with support for cuda"


@contextmanager
def cuda_autocast(dtype):
    """Do the same as torch.autocast("cuda") on a machine with a GPU; without a GPU it disables itself."""
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", dtype is not None)
    torch.set_autocast_dtype("cuda", dtype or before)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", before)
        torch.clear_autocast_cache()


@pytest.fixture(autouse=True)
def _no_fused_kernels():
    """Switch off TorchScript's fuser, which would compile kernels for the GPU and run them."""
    fuser, on_gpu = torch._C._jit_texpr_fuser_enabled(), torch._C._jit_can_fuse_on_gpu()
    torch._C._jit_set_texpr_fuser_enabled(False)
    torch._C._jit_override_can_fuse_on_gpu(False)
    yield
    torch._C._jit_set_texpr_fuser_enabled(fuser)
    torch._C._jit_override_can_fuse_on_gpu(on_gpu)


def fake(leaf):
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="cuda")


def build(spec, mode):
    model = spec.scripted() if mode == "scripted" and spec.scripted else spec.build()
    spec.initialised(model)
    return torch.jit.script(model) if mode == "scripted" else model


def found(spec, case, mode, precision):
    """Return the dtype of every output, by name."""
    drawn = inputs.draw(case, 0, 0)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        args, kwargs = pytree.tree_map(fake, (drawn.args, dict(drawn.kwargs)))
        with torch.device("cuda"):
            model = build(spec, mode)
        for parameter in model.parameters() if isinstance(model, torch.nn.Module) else ():
            parameter.requires_grad_(False)  # autograd would need the CUDA runtime
        with cuda_autocast(AUTOCAST[precision]):
            for _ in range(4 if mode == "scripted" else 1):  # TorchScript optimises during the first three calls
                output = model(*args, **kwargs)
    return {name: leaf.dtype for name, leaf in inputs.named_leaves(output, "output").items() if leaf is not None}


def is_unseen(spec, case, precision):
    """Return whether eager needs a runtime that this torch was built without; scripts shorten that message."""
    if torch.backends.cuda.is_built():
        return False
    try:
        found(spec, case, "eager", precision)
    except RuntimeError as problem:
        return NO_RUNTIME in str(problem)
    return False


def wanted(spec, case, leaf, precision):
    """Return the declared dtype of an output; None if the spec declares nothing."""
    word = spec.dtype_word(leaf, "cuda")
    if word == "follows":
        return AUTOCAST[precision] or torch.float32
    if word == "input":
        given = inputs.draw(case, 0, 0)
        leaves = pytree.tree_leaves((given.args, dict(given.kwargs)))
        return reduce(torch.promote_types, [x.dtype for x in leaves if inputs.is_rounded(x)])
    return getattr(torch, word) if word else None


def differences(spec, mode, precision):
    """Return the unexpected dtypes as texts; None if this torch cannot check any case."""
    declared = [e for e in spec.expectations if e.concerns(mode, precision, "cuda", torch.__version__)]
    if any(e.outcome == "refuses" for e in declared):
        return []
    renamed = {e.tensor: getattr(torch, e.dtype) for e in declared if e.outcome == "dtype"}
    unexpected, seen = [], 0
    for case in spec.cases:
        try:
            dtypes = found(spec, case, mode, precision)
        except RuntimeError:
            if is_unseen(spec, case, precision):
                continue
            raise
        seen += 1
        for leaf, dtype in dtypes.items():
            want = renamed.get(leaf, wanted(spec, case, leaf, precision))
            if want is not None and dtype != want:
                unexpected.append(f"{precision}, case {case.name}: {leaf} is {dtype}, want {want}")
    return unexpected if seen else None


def check(spec, mode):
    """Fail if a dtype is wrong; skip if a precision cannot be checked."""
    unexpected = {precision: differences(spec, mode, precision) for precision in AUTOCAST}
    assert [text for texts in unexpected.values() for text in texts or ()] == []
    if None in unexpected.values():
        pytest.skip(f"this torch is {NO_RUNTIME}: {', '.join(p for p, texts in unexpected.items() if texts is None)}")


@pytest.mark.parametrize(
    ("name", "mode"), [(n, m) for n in NAMES for m in ("eager", "scripted") if m == "eager" or n not in UNSCRIPTABLE]
)
def test_dtypes_are_the_contracts_or_declared(name, mode):
    check(zoo.get_spec(name), mode)


def lowered(case):
    """Return the case with float16 instead of float32."""

    def draw(generator):
        call = case.draw(generator)
        low = pytree.tree_map(lambda x: x.half() if inputs.is_rounded(x) else x, (call.args, dict(call.kwargs)))
        return zoo.Call(*low)

    return replace(case, inputs=draw)


LISTED = [n for n in zoo.list_models() if n not in READ_NUMBERS]


@pytest.mark.parametrize("name", [n for n in LISTED if "input" in zoo.get_spec(n)._dtype_words()])
def test_low_inputs_give_low_outputs_except_where_the_docstring_says_float32(name):
    spec = zoo.get_spec(name)
    unexpected = differences(replace(spec, cases=(lowered(spec.cases[0]),), expectations=()), "eager", "amp_fp16")
    if unexpected is None:
        pytest.skip(f"this torch is {NO_RUNTIME}")
    widened = [f": {leaf} is torch.float32, want torch.float16" for leaf in WIDENED.get(name, "").split()]
    assert [text[text.index(": ") :] for text in unexpected] == widened


@pytest.mark.parametrize("operator", [_exp, _sinh], ids=["exp_op", "sinh_op"])
def test_an_operator_returns_what_its_fake_promises(operator):
    """Compiled code uses the fake; eager calls run the operator itself, with autocast still on."""
    with FakeTensorMode(), cuda_autocast(torch.bfloat16):
        x = torch.empty(4, dtype=torch.bfloat16, device="cuda")
        assert {x.dtype for x in pytree.tree_leaves(operator._init_fn(x))} == {torch.bfloat16}


def softmax_of_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * y.half(), -1)


@pytest.mark.parametrize("mode", ["eager", "scripted"])
def test_a_contract_that_holds_only_on_the_cpu_is_seen(mode):
    """On the CPU, autocast does not change a softmax of halves; on CUDA it computes it in float32."""
    halves = zoo.Case(name="halves", inputs=lambda _: (torch.ones(2, 2).half(), torch.ones(2, 2)))
    fields = {"build": lambda: softmax_of_product, "cases": (halves,), "dtypes": "float16", "reference": None}
    spec = replace(zoo.get_spec("merge"), **fields, expectations=())
    x, y = halves.draw(torch.Generator()).args
    with torch.autocast("cpu", dtype=torch.float16):
        assert spec.build()(x, y).dtype == torch.float16
    assert differences(spec, mode, "fp32") == []
    assert differences(spec, mode, "amp_fp16") == ["amp_fp16, case halves: output is torch.float32, want torch.float16"]
    with pytest.raises(AssertionError, match=r"output is torch\.float32"):
        check(spec, mode)


def test_a_declared_dtype_that_does_not_come_out_is_seen():
    declared = replace(zoo.get_spec("merge").expectations[0], modes=("eager",), dtype="float64")
    spec = replace(zoo.get_spec("square"), expectations=(declared,))
    assert differences(spec, "eager", "fp32") == []
    assert len(differences(spec, "eager", "amp_bf16")) == len(spec.cases)
