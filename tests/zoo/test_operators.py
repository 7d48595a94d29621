"""Every overloaded operator, compared with Python's operators and with literal values."""

import operator

import pytest
import torch
from torch.autograd import gradcheck

import zoo
from zoo.ops.operators import Arithmetic, Logic, arithmetic, logic


def test_arithmetic_of_numbers_is_pythons():
    for x, y in ((7.0, -2.0), (7.0, 2.0), (2.5, -0.75), (0.5, 3.0)):
        out = arithmetic(torch.tensor([[x]]), torch.tensor([[y]]))
        wanted = Arithmetic(-y, abs(y), x + y, x - y, x * y, x / y, x // y, x % y, x**y, x * y)
        for name, tensor in out._asdict().items():
            torch.testing.assert_close(tensor.item(), getattr(wanted, name), rtol=1e-6, atol=0)


def test_matmul_is_no_product_of_elements():
    x, y = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    out = arithmetic(x, y)
    assert out.matmul.tolist() == [[2, 1], [4, 3]]
    assert out.mul.tolist() == [[0, 2], [3, 0]]


def test_division_by_zero_is_inf_or_nan():
    out = arithmetic(torch.tensor([[1.0]]), torch.tensor([[0.0]]))
    assert out.truediv.item() == out.floordiv.item() == float("inf")
    assert out.mod.isnan().all()


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


def test_xor_is_bitwise_and_logical_on_booleans_alone():
    assert logic(torch.tensor([6]), torch.tensor([3])).bitwise_xor.tolist() == [5]
    assert torch.logical_xor(torch.tensor([6]), torch.tensor([3])).tolist() == [False]
    both = torch.tensor([False, False, True, True]), torch.tensor([False, True, False, True])
    assert logic(*both).bitwise_xor.tolist() == torch.logical_xor(*both).tolist() == [False, True, True, False]
    assert logic(*both).bitwise_not.tolist() == [True, True, False, False]


def test_scripted_keeps_the_names():
    assert torch.jit.script(arithmetic)(torch.eye(2), torch.ones(2, 2)).matmul.tolist() == [[1, 1], [1, 1]]
    assert torch.jit.script(logic)(torch.tensor([6]), torch.tensor([3])).bitwise_or.tolist() == [7]


def test_misfits_are_named():
    with pytest.raises(ValueError, match=r"arithmetic: x must have shape \(n, n\), got \[2, 3\]"):
        arithmetic(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(TypeError, match=r"y must have the dtype of x, torch\.float32, got torch\.float64"):
        arithmetic(torch.ones(2, 2), torch.ones(2, 2).double())
    with pytest.raises(ValueError, match=r"j must have the shape of i, \[2\], got \[1\]"):
        logic(torch.tensor([1, 2]), torch.tensor([1]))
    with pytest.raises(TypeError, match=r"j must have the dtype of i, torch\.int64, got torch\.bool"):
        logic(torch.tensor([1]), torch.tensor([True]))
    with pytest.raises(TypeError, match=r"i must have an integer dtype, or bool, got torch\.float32"):
        logic(torch.ones(1), torch.ones(1))
