"""The operators of the zoo: gathers, row sums, stable formulas, broadcasting, overloaded, in place, autocast rules."""

import math
import operator

import pytest
import torch
from packaging.version import Version
from torch.autograd import gradcheck
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

import zoo
from zoo.ops.autocast_rules import add_and_matmul
from zoo.ops.batch_gather import batch_gather_loop, batch_gather_native, batch_gather_scripted, batch_gather_vectorised
from zoo.ops.broadcasting import sum_explicit
from zoo.ops.cross_entropy import softmax_cross_entropy, softmax_cross_entropy_naive, softmax_cross_entropy_native
from zoo.ops.in_place import augment, augment_copy
from zoo.ops.operators import Arithmetic, Logic, arithmetic, logic
from zoo.ops.ratio import log_clamped, ratio_naive, ratio_safe
from zoo.ops.row_sum import row_sum, row_sum_sliced, row_sum_unbind
from zoo.ops.softmax import softmax, softmax_naive

# batch_gather: the four agree bit for bit, and none reads another row


GATHERS = (batch_gather_loop, batch_gather_scripted, batch_gather_vectorised, batch_gather_native)


def gathered_with_gradient(gather, tensor, index):
    tensor = tensor.detach().requires_grad_()
    out = gather(tensor, index)
    cotangent = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return out, torch.autograd.grad(out, tensor, cotangent)[0]


@pytest.mark.parametrize("case", zoo.get_spec("batch_gather_loop").cases, ids=lambda c: c.name)
def test_all_agree_bit_for_bit_gradients_too(case):
    tensor, index = case.inputs(torch.Generator().manual_seed(0))
    out, gradient = gathered_with_gradient(batch_gather_loop, tensor, index)
    assert out.shape == index.shape + tensor.shape[2:]
    for gather in GATHERS[1:]:
        its_out, its_gradient = gathered_with_gradient(gather, tensor, index)
        assert torch.equal(its_out, out)
        assert torch.equal(its_gradient, gradient)


@pytest.mark.parametrize("gather", GATHERS, ids=lambda f: f.__name__)
def test_gradients_of_duplicates_accumulate_and_no_row_to_pick_from_is_out_of_range_unless_none_is_picked(gather):
    tensor = torch.zeros(1, 3, requires_grad=True)
    gather(tensor, torch.tensor([[1, 1, 2]])).backward(torch.tensor([[10.0, 1.0, 5.0]]))
    assert tensor.grad.tolist() == [[0, 11, 5]]
    with pytest.raises(IndexError, match=r"index must lie in \[0, 0\)"):
        gather(torch.zeros(2, 0, 4), torch.zeros(2, 1, dtype=torch.int64))
    assert gather(torch.zeros(2, 0, 4), torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0, 4)


def test_compiled_out_of_range_is_refused_too():
    compiled = torch.compile(batch_gather_vectorised, backend="aot_eager", fullgraph=True)
    tensor = torch.zeros(2, 3, 4)
    compiled(tensor, torch.tensor([[0, 2], [1, 2]]))
    with pytest.raises(RuntimeError, match=r"index must lie in \[0, 3\)"):
        compiled(tensor, torch.tensor([[0, 3], [1, 2]]))


# row_sum: one result in float64, and the rounding errors of a loop


@pytest.mark.parametrize("total", [row_sum, row_sum_sliced, row_sum_unbind], ids=lambda f: f.__name__)
def test_no_rows_sum_to_zeros_that_backward_can_reach_and_a_script_sums_any_number(total):
    x = torch.zeros(0, 3, requires_grad=True)
    out = total(x)
    assert out.tolist() == [0, 0, 0]
    out.backward(torch.randn(3))
    assert x.grad.shape == (0, 3)
    scripted = torch.jit.script(total)
    for rows in (0, 1, 5):
        assert scripted(torch.ones(rows, 2)).tolist() == [rows, rows]


def test_a_loop_in_float16_sticks_at_2048():
    ones = torch.ones(4096, 1, dtype=torch.float16)
    assert row_sum(ones).item() == 4096
    assert row_sum_sliced(ones).item() == row_sum_unbind(ones).item() == 2048


# sum_explicit

COLUMN, VECTOR = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 2.0])


def test_an_unintended_broadcast_gives_12_and_is_refused():
    assert (COLUMN + VECTOR).sum().item() == 12
    with pytest.raises(ValueError, match=r"a and b must have the same number of axes, got shapes \[2, 1\] and \[2\]"):
        sum_explicit(COLUMN, VECTOR, 0)


def test_gradient_of_an_extended_axis_counts_its_copies():
    a, b = torch.zeros(5, 1, requires_grad=True), torch.zeros(1, 7, requires_grad=True)
    sum_explicit(a, b, 0).backward(torch.tensor([1.0, 0, 0, 2, 0, 0, -4]))
    assert a.grad.flatten().tolist() == [-1] * 5
    assert b.grad.flatten().tolist() == [5, 0, 0, 10, 0, 0, -20]


# softmax and cross entropy, and the limits of their naive forms

ENTROPIES = (softmax_cross_entropy, softmax_cross_entropy_naive, softmax_cross_entropy_native)
LARGEST_SAFE = [
    (torch.float16, 11.0859375, 11.09375),
    (torch.bfloat16, 88.5, 89.0),
    (torch.float32, 88.72283172607422, 88.72283935546875),
    (torch.float64, 709.782712893384, 709.7827128933841),
]


@pytest.mark.parametrize(("dtype", "safe", "unsafe"), LARGEST_SAFE)
def test_largest_safe_logit_of_the_naive_softmax_beside_zero_and_beside_itself(dtype, safe, unsafe):
    x = torch.tensor([safe, 0.0], dtype=dtype)
    assert torch.nextafter(x, torch.full_like(x, math.inf))[0] == unsafe
    assert softmax_naive(x).tolist()[0] == 1
    x[0] = unsafe
    assert softmax_naive(x).isnan().tolist() == [True, False]
    assert softmax(x).tolist()[0] == 1
    x[:] = safe
    assert softmax_naive(x).tolist() == [0, 0]
    assert softmax(x).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("function", [softmax, softmax_naive])
def test_softmax_agrees_with_torch_along_any_dim_and_its_shift_leaves_no_trace_in_the_gradient(function):
    x = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    for dim in (0, 1, -1):
        torch.testing.assert_close(function(x, dim), F.softmax(x, dim))
    assert gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,))


@pytest.mark.parametrize("function", ENTROPIES)
def test_cross_entropy_of_1000_is_500_and_the_naive_one_infinite(function):
    logits = torch.tensor([[1000.0, 0.0]], requires_grad=True)
    loss = function(logits, torch.tensor([[0.5, 0.5]]))
    loss.backward(torch.tensor([3.0]))
    if function is softmax_cross_entropy_naive:
        assert loss.tolist() == [math.inf]
        assert logits.grad.isnan().all()
    else:
        assert (loss.tolist(), logits.grad.tolist()) == ([500], [[1.5, -1.5]])


@pytest.mark.parametrize("function", ENTROPIES)
def test_each_row_is_shifted_by_its_own_maximum(function):
    logits = torch.tensor([[80.0, 0.0], [0.0, -1.0]])
    loss = function(logits, torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    torch.testing.assert_close(loss, torch.tensor([80.0, 1.3132616875]))


@pytest.mark.parametrize("function", [softmax_cross_entropy, softmax_cross_entropy_native])
@pytest.mark.parametrize("name", ["typical", "one-hot", "extreme", "non-contiguous"])
def test_cross_entropy_agrees_with_torch_gradients_too(function, name):
    case = zoo.get_spec("softmax_cross_entropy").case(name)
    logits, labels = (t.double() for t in case.inputs(torch.Generator().manual_seed(0)))
    logits.requires_grad_()
    loss, wanted = function(logits, labels), -(labels * F.log_softmax(logits, 1)).sum(1)
    torch.testing.assert_close(loss, wanted)
    cotangent = torch.randn_like(loss)
    (slope,) = torch.autograd.grad(loss, logits, cotangent)
    torch.testing.assert_close(slope, torch.autograd.grad(wanted, logits, cotangent)[0])


@pytest.mark.parametrize("function", ENTROPIES)
@pytest.mark.parametrize("second", [[1.0, 0.5], [0.4375, 0.5], [0.0, 0.0], [math.nan, 1.0], [math.inf, 0.0]])
def test_labels_that_do_not_sum_to_one_are_refused(function, second):
    with pytest.raises(ValueError, match=f"labels must sum to one .*, within 5/128, got a sum of {sum(second)}"):
        function(torch.zeros(2, 2), torch.tensor([[0.5, 0.5], second]))


@pytest.mark.parametrize("classes", [2, 3, 10, 1000, 30000])
def test_labels_rounded_to_bfloat16_sum_to_one_well_enough(classes):
    logits = torch.randn(8, classes)
    labels = softmax(logits.bfloat16())
    assert softmax_cross_entropy(logits, labels.float()).isfinite().all()
    assert softmax_cross_entropy(logits, torch.full_like(labels, 1 / classes)).isfinite().all()


def test_scripted_and_compiled_refuse_such_labels_too():
    scripted = torch.jit.script(softmax_cross_entropy)
    compiled = torch.compile(softmax_cross_entropy, backend="aot_eager", fullgraph=True)
    good, bad = torch.tensor([[0.25, 0.75]]), torch.tensor([[0.25, 0.25]])
    for function, error in ((scripted, torch.jit.Error), (compiled, RuntimeError)):
        for _ in range(3):
            torch.testing.assert_close(function(torch.zeros(1, 2), good), torch.tensor([0.6931471806]))
            with pytest.raises(error, match="softmax_cross_entropy: labels must sum to one over the classes"):
                function(torch.zeros(1, 2), bad)


# ratio and logarithm of a number that has underflowed

BELOW_RANGE = [(torch.float16, 1e-8), (torch.bfloat16, 1e-41), (torch.float32, 1e-46), (torch.float64, 1e-324)]


@pytest.mark.parametrize(("dtype", "tiny"), BELOW_RANGE)
def test_below_the_range_naive_is_nan_and_safe_is_finite_gradients_too(dtype, tiny):
    x = torch.tensor([3.0, 3.0], dtype=dtype, requires_grad=True)
    y = torch.tensor([0.5, tiny], dtype=dtype, requires_grad=True)
    cotangent = torch.tensor([0.75, -1.25], dtype=dtype)
    naive, safe = ratio_naive(x, y), ratio_safe(x, y, floor=2.0**-10)
    broken = [naive, *torch.autograd.grad(naive, (x, y), cotangent)]
    assert [(first.item(), second.isnan().item()) for first, second in broken] == [(3, True), (0.75, True), (0, True)]
    slopes = torch.autograd.grad(safe, (x, y), cotangent)
    assert [s.tolist() for s in (safe, *slopes)] == [[3, 0], [0.75, 0], [0, 0]]


def test_safe_fades_in_proportion_below_the_floor():
    x = torch.tensor([8.0, 8.0], requires_grad=True)
    y = torch.tensor([2.0**-12, -(2.0**-11)], requires_grad=True)
    out = ratio_safe(x, y, floor=2.0**-10)
    assert out.tolist() == [2, 4]
    slopes = torch.autograd.grad(out, (x, y), torch.tensor([1.0, -3.0]))
    assert [s.tolist() for s in slopes] == [[0.25, -1.5], [8192, 24576]]
    x, y = torch.tensor([1000.0], dtype=torch.float16), torch.tensor([-1000.0], dtype=torch.float16)
    assert ratio_naive(x, y).isinf().all()  # the product is beyond the range
    assert ratio_safe(x, y, floor=2.0**-14).tolist() == [1000]


@pytest.mark.parametrize(("dtype", "tiny"), BELOW_RANGE)
def test_log_stops_at_the_floor_with_a_zero_gradient(dtype, tiny):
    y = torch.tensor([0.5, tiny], dtype=dtype, requires_grad=True)
    assert torch.log(y)[1] == -math.inf
    out = log_clamped(y, floor=2.0**-10)
    torch.testing.assert_close(out, torch.tensor([-0.6931471805599453, -6.931471805599453], dtype=dtype))
    (slope,) = torch.autograd.grad(out, y, torch.tensor([0.75, -1.25], dtype=dtype))
    assert slope.tolist() == [1.5, 0]


@pytest.mark.parametrize(
    ("dtype", "floors"),
    [(torch.float16, [1e-8]), (torch.bfloat16, [1e-38]), (torch.float32, [1e-38, math.nan]), (torch.float64, [1e-308])],
)
def test_a_floor_that_the_dtype_cannot_hold_is_refused_and_the_smallest_normal_number_is_one(dtype, floors):
    x = torch.ones(2, dtype=dtype)
    for floor in floors:
        with pytest.raises(ValueError, match=f"^ratio_safe: floor must be at least .* number of y, got {floor}"):
            ratio_safe(x, x, floor)
        with pytest.raises(ValueError, match=f"^log_clamped: floor must be at least .* number of y, got {floor}"):
            log_clamped(x, floor)
    tiny, scripted = torch.finfo(dtype).tiny, torch.jit.script(ratio_safe)
    assert log_clamped(torch.zeros(1, dtype=dtype), tiny).isfinite().all()
    assert scripted(x, x, tiny).tolist() == [1, 1]
    with pytest.raises(torch.jit.Error, match="ratio_safe: floor must be at least"):
        scripted(x, x, tiny / 2)


# overloaded operators: Python's, and literal values


def test_arithmetic_of_numbers_is_pythons():
    for x, y in ((7.0, -2.0), (7.0, 2.0), (2.5, -0.75), (0.5, 3.0)):
        out = arithmetic(torch.tensor([[x]]), torch.tensor([[y]]))
        wanted = Arithmetic(-y, abs(y), x + y, x - y, x * y, x / y, x // y, x % y, x**y, x * y)
        for name, tensor in out._asdict().items():
            torch.testing.assert_close(tensor.item(), getattr(wanted, name), rtol=1e-6, atol=0)


def test_matmul_is_no_product_of_elements_and_division_by_zero_is_inf_or_nan():
    x, y = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    for function in (arithmetic, torch.jit.script(arithmetic)):  # a script keeps the names
        out = function(x, y)
        assert out.matmul.tolist() == [[2, 1], [4, 3]]
        assert out.mul.tolist() == [[0, 2], [3, 0]]
        assert out.truediv[0, 0].item() == out.floordiv[0, 0].item() == math.inf
        assert out.mod[0, 0].isnan()


def test_all_results_except_the_floor_division_have_gradients():
    x, y = (t.double().requires_grad_() for t in zoo.example_inputs("arithmetic"))
    out = arithmetic(x, y)
    assert [name for name, t in out._asdict().items() if not t.requires_grad] == ["floordiv"]
    assert gradcheck(lambda x, y: tuple(t for t in arithmetic(x, y) if t.requires_grad), (x, y))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_logic_of_integers_is_pythons(dtype):
    pairs = [(6, 3), (3, 6), (5, 5), (0, 127), (127, 0)] + ([(-7, 3), (-1, -128), (3, -7)] if dtype.is_signed else [])
    i, j = (torch.tensor(column, dtype=dtype) for column in zip(*pairs, strict=True))
    out = logic(i, j)
    symbols = "lt le gt ge eq ne and_ or_ xor".split()
    for symbol, name in zip(symbols, [n for n in Logic._fields if n != "bitwise_not"], strict=True):
        assert getattr(out, name).tolist() == [getattr(operator, symbol)(a, b) for a, b in pairs]
    mask = 255 if dtype == torch.uint8 else -1
    assert out.bitwise_not.tolist() == [~a & mask for a, _ in pairs]
    assert {t.dtype for t in out[:6]} == {torch.bool}
    assert {t.dtype for t in out[6:]} == {dtype}
    assert torch.jit.script(logic)(i, j).bitwise_or.tolist() == out.bitwise_or.tolist()  # it keeps the names


# add_and_matmul under autocast


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("second", [torch.float32, torch.float16])
@pytest.mark.parametrize("first", [torch.float32, torch.float16])
def test_autocast_lowers_the_product_but_not_the_sum(low, first, second):
    x, y = torch.randn(4, 4).to(first), torch.randn(4, 4).to(second)
    with torch.autocast("cpu", dtype=low):
        total, product = add_and_matmul(x, y)
    assert (total.dtype, product.dtype) == (torch.promote_types(first, second), low)
    if first != second:
        with pytest.raises(RuntimeError, match="same dtype"):
            add_and_matmul(x, y)


# in-place operators, and what autograd allows, in each mode

MODES = {
    "eager": lambda function: function,
    "scripted": torch.jit.script,
    "compiled": lambda function: torch.compile(function, backend="aot_eager"),
}
WRITES = ["eager", "compiled"]  # a script does not write a power into its input


def saved_and_changed(x):
    """Change a tensor that the exponential has saved for backward."""
    y = torch.exp(x)
    y += 1
    return y


@pytest.mark.parametrize("mode", MODES)
def test_the_copy_leaves_its_input_alone_and_autograd_refuses_the_rest(mode):
    torch._dynamo.reset()
    x, y = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0])
    result = MODES[mode](augment_copy)(x, y)
    assert (result.tolist(), x.tolist()) == ([20.25, 100.0], [1.0, 2.0])
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place operation"):
        MODES[mode](augment)(x, y)
    assert x.tolist() == [1.0, 2.0]
    y += 1  # which the graph of the copy has saved
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        torch.autograd.grad(result, x, torch.ones(2))


@pytest.mark.parametrize("mode", WRITES)
@pytest.mark.parametrize("is_leaf_with_gradient", [False, True])
def test_the_input_holds_the_result_and_its_version_has_moved(mode, is_leaf_with_gradient):
    """Without grad mode, a leaf that requires a gradient may be changed too."""
    x, y = torch.tensor([1.0, 2.0], requires_grad=is_leaf_with_gradient), torch.tensor([3.0, 4.0])
    with torch.set_grad_enabled(not is_leaf_with_gradient):
        result, version = MODES[mode](augment)(x, y), x._version
    assert x.tolist() == [20.25, 100.0]
    assert result.data_ptr() == x.data_ptr()
    assert version > 0
    assert (x.is_leaf, x.requires_grad) == (True, is_leaf_with_gradient)


@pytest.mark.parametrize("mode", MODES)
def test_a_changed_input_becomes_part_of_the_graph_and_compiled_its_gradient_raises_before_torch_2_15(mode):
    x, y = torch.tensor([1.0]), torch.tensor([3.0], requires_grad=True)
    result = MODES[mode](augment)(x, y)
    assert result.item() == 20.25
    if mode == "compiled" and Version(torch.__version__) < Version("2.15.dev0"):
        with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
            torch.autograd.grad(result, y, torch.ones(1))
        return
    assert x.requires_grad or mode == "compiled"
    (gradient,) = torch.autograd.grad(result, y, torch.ones(1))
    assert gradient.item() == 27.0  # (((1 + y) y − y) / 2)² = y⁴ / 4, whose derivative is y³


@pytest.mark.parametrize("mode", MODES)
def test_a_saved_tensor_that_changes_makes_backward_raise_and_the_compiler_at_the_call(mode):
    x, function = torch.ones(2, requires_grad=True), MODES[mode](saved_and_changed)
    y = None if mode == "compiled" else function(x)
    with pytest.raises(Exception, match="has been modified by an inplace operation"):  # its type is the mode's
        torch.autograd.grad(y, x, torch.ones(2)) if y is not None else function(x)


def remainder(x):
    """Replace x by its remainder by two."""
    x %= 2
    return x


def test_a_script_does_not_write_a_power_into_its_input_and_its_remainder_has_the_sign_of_the_left_side():
    x = torch.tensor([1.0, 2.0])
    assert torch.jit.script(augment)(x, torch.tensor([3.0, 4.0])).tolist() == [20.25, 100.0]
    assert x.tolist() == [4.5, 10.0]  # what it held before x **= 2
    assert [function(torch.tensor([-3.0])).item() for function in (remainder, torch.jit.script(remainder))] == [1, -1]
