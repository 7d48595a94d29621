"""False claims about saved tensors, each with a test of the truth: docs/where-the-sources-are-wrong/."""

import io
import multiprocessing
import time
import weakref
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.multiprocessing
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.function import once_differentiable
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from zoo.memory import saved_bytes


def test_disabling_hooks_needs_a_message():
    with pytest.raises(TypeError, match="error_message"):
        disable_saved_tensors_hooks()


def test_disabling_hooks_saves_nothing_and_gradients_are_as_ever():
    x, cotangent = torch.randn(1000, requires_grad=True), torch.randn(1000)
    ordinary = torch.autograd.grad(x.exp(), x, cotangent)[0]
    with disable_saved_tensors_hooks("no hooks here"):
        out = x.exp()
    held = out.grad_fn._saved_result
    assert held.data_ptr() == out.data_ptr()
    assert held.untyped_storage().nbytes() == 4000
    assert torch.equal(torch.autograd.grad(out, x, cotangent)[0], ordinary)


def test_disabling_hooks_forbids_hooks_inside_and_around():
    hooks = saved_tensors_hooks(lambda t: t, lambda t: t)
    forbidden = disable_saved_tensors_hooks("no hooks here")
    with forbidden, pytest.raises(RuntimeError, match=r"^no hooks here$"):
        hooks.__enter__()
    with hooks, pytest.raises(RuntimeError, match=r"^no hooks here$"):
        disable_saved_tensors_hooks("no hooks here").__enter__()


@pytest.mark.filterwarnings("ignore:`torch.cpu.amp.autocast:FutureWarning")  # torch 2.4's checkpoint calls it
def test_disabling_hooks_breaks_the_checkpoint_that_would_save_memory():
    x, cotangent = torch.randn(3, requires_grad=True), torch.randn(3)
    with disable_saved_tensors_hooks("no hooks here"), pytest.raises(RuntimeError, match=r"^no hooks here$"):
        checkpoint(torch.exp, x, use_reentrant=False)
    with disable_saved_tensors_hooks("no hooks here"):
        out = checkpoint(torch.exp, x, use_reentrant=True)
    out.backward(cotangent)
    assert torch.equal(x.grad, cotangent * x.detach().exp())


def exp_sin(x):
    return x.exp().sin()


class Log(TorchDispatchMode):
    """The names of the operations that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.names.append(str(op))
        return op(*args, **(kwargs or {}))


def test_disabling_hooks_leaves_out_no_operation():
    x, ordinary, without = torch.randn(3, requires_grad=True), Log(), Log()
    with ordinary:
        exp_sin(x).backward(torch.ones(3))
    with without:
        with disable_saved_tensors_hooks("no hooks here"):
            out = exp_sin(x.detach().requires_grad_())
        out.backward(torch.ones(3))
    computed = [[name for name in log.names if "detach" not in name] for log in (ordinary, without)]
    assert computed[0] == computed[1]
    assert {"aten.exp.default", "aten.sin.default", "aten.cos.default"} <= {*computed[0]}


def test_where_nothing_requires_a_gradient_nothing_is_saved():
    x = torch.randn(1000)
    assert saved_bytes(exp_sin, x).total == 0
    assert exp_sin(x).grad_fn is None
    assert saved_bytes(exp_sin, x.requires_grad_()).total == 4000


def test_a_tensor_with_a_graph_cannot_go_to_another_process():
    out = torch.randn(1000, requires_grad=True).exp()
    with pytest.raises(RuntimeError, match="does not support crossing process boundaries"):
        ForkingPickler(io.BytesIO()).dump(out)
    assert out.grad_fn._saved_result.untyped_storage().nbytes() == 4000


def test_a_pool_ends_its_work_with_its_block():
    processes = multiprocessing.get_context("spawn")
    with processes.Pool(1) as pool:
        assert pool.apply_async(abs, (-1,)).get(timeout=120) == 1
        late = pool.apply_async(time.sleep, (0.2,))
    with pytest.raises(multiprocessing.TimeoutError):
        late.get(timeout=1)


def test_a_tensor_with_a_graph_cannot_go_to_numpy():
    pytest.importorskip("numpy")
    out = torch.randn(1000, requires_grad=True).exp()
    with pytest.raises(RuntimeError, match=r"Use tensor\.detach\(\)\.numpy\(\)"):
        out.numpy()
    assert out.detach().numpy().shape == (1000,)
    assert out.grad_fn._saved_result.untyped_storage().nbytes() == 4000


@pytest.mark.parametrize("without_graph", [torch.no_grad, torch.inference_mode])
def test_no_grad_and_inference_mode_save_nothing(without_graph):
    x = torch.randn(1000, requires_grad=True)
    with without_graph():
        assert saved_bytes(exp_sin, x).total == 0
        out = exp_sin(x)
    assert not out.requires_grad


def test_an_inference_tensor_cannot_be_saved_later():
    with torch.inference_mode():
        x = torch.ones(2)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        x * torch.ones(2, requires_grad=True)


def test_deleting_names_before_backward_frees_nothing_and_backward_does():
    a, b, cotangent = torch.randn(1000, requires_grad=True), torch.randn(1000, requires_grad=True), torch.randn(1000)
    x, y = a.exp(), b.sin()
    seen, truth = [weakref.ref(x), weakref.ref(y)], cotangent * y.detach() * x.detach()
    out = x * y
    del x, y
    assert [tensor() is None for tensor in seen] == [False, False]
    assert [tensor().untyped_storage().nbytes() for tensor in seen] == [4000, 4000]
    out.backward(cotangent)
    assert [tensor() is None for tensor in seen] == [True, True]
    torch.testing.assert_close(a.grad, truth)


class Unit(torch.autograd.Function):
    """x / |x|, with the norm on ctx, like the statistics of the tutorial's fused layer."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.norm = x.norm()
        return x / ctx.norm

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / ctx.norm - x * (x @ grad) / ctx.norm**3


def first_gradient(function, x, cotangent):
    return torch.autograd.grad(function(x), x, cotangent, create_graph=True)[0]


def test_without_once_differentiable_second_derivatives_are_wrong_in_silence():
    x = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(Unit.apply, (x,))
    assert not gradgradcheck(Unit.apply, (x,), raise_exception=False)
    gradient = first_gradient(Unit.apply, x, torch.tensor([0.5, 1.0, -1.0], dtype=torch.float64))
    torch.autograd.grad(gradient, x, torch.ones_like(x))


class CubeOnce(torch.autograd.Function):
    """x³, which can be differentiated once."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return 3 * grad * ctx.saved_tensors[0] ** 2


def test_once_differentiable_refuses_where_the_incoming_gradient_has_a_graph():
    x = torch.tensor(2.0, requires_grad=True)
    gradient = first_gradient(lambda x: CubeOnce.apply(x) ** 2, x, torch.tensor(1.0))
    with pytest.raises(RuntimeError, match="trying to differentiate twice a function that was marked"):
        gradient.backward()


@pytest.mark.parametrize(("cube", "slope"), [(CubeOnce.apply, 12), (lambda x: x**3, 300)], ids=["once", "plain"])
def test_once_differentiable_drops_a_gradient_penalty_in_silence_where_it_has_none(cube, slope):
    x = torch.tensor(2.0, requires_grad=True)
    gradient = first_gradient(cube, x, torch.tensor(1.0))
    assert gradient.requires_grad == (slope == 300)
    (cube(x) + gradient**2).backward()
    assert x.grad == slope


@pytest.mark.parametrize(("cube", "slope"), [(CubeOnce.apply, 192), (lambda x: x**3, 184512)], ids=["once", "plain"])
def test_autograd_grad_never_visits_the_refusal_of_once_differentiable(cube, slope):
    x = torch.tensor(2.0, requires_grad=True)
    out = cube(x) ** 2
    (gradient,) = torch.autograd.grad(out, x, create_graph=True)
    assert gradient.requires_grad
    assert torch.autograd.grad(out + gradient**2, x)[0] == slope
