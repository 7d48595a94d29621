"""Activation checkpointing in which dropout and batch norm stay right.

Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174; PyTorch,
`torch.utils.checkpoint`. A segment saves only its inputs, and runs again in backward. Its second run gets the random
numbers and the autocast state of the first, so dropout drops the same units. Batch norm would update its running
statistics twice; here the second run leaves no trace in the buffers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from zoo.arguments import want_callables, want_instances, want_sizes
from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec
from zoo.training.step import squared_error, train_step


def run_segment(segment: Callable[..., Tensor], *inputs: Tensor, owner: nn.Module | None = None) -> Tensor:
    """Call `segment(*inputs)` and save nothing but the inputs; backward calls it again, without a trace in buffers.

    Args:
        segment: a module, or a function that does the same in each call.
        inputs: its arguments.
        owner: the module whose buffers the segment updates; None: the segment itself, if it is a module.

    Raises:
        TypeError: `segment` is not callable, or `owner` is no module.
        RuntimeError: in backward, if `segment` is a ScriptModule that was not called with gradients before.

    >>> norm = nn.BatchNorm1d(3)
    >>> run_segment(norm, torch.ones(4, 3, requires_grad=True)).sum().backward()
    >>> norm.num_batches_tracked
    tensor(1)
    """
    want_callables("run_segment", segment=segment)
    if owner is not None:
        want_instances("run_segment", nn.Module, owner=owner)
    home = segment if owner is None and isinstance(segment, nn.Module) else owner
    contexts = partial(_contexts, home)
    with set_checkpoint_early_stop(False):  # it stops by an exception, which TorchScript does not pass on
        result: Tensor = checkpoint(segment, *inputs, use_reentrant=False, context_fn=contexts)
    return result


def _contexts(
    home: nn.Module | None,
) -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
    return contextlib.nullcontext(), _buffers_kept(home)


@contextlib.contextmanager
def _buffers_kept(home: nn.Module | None) -> Iterator[None]:
    buffers = [] if home is None else list(home.buffers())
    kept = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        for buffer, old in zip(buffers, kept, strict=True):
            buffer.data.copy_(old)  # no change of version: backward needs none of them


def normed_net(in_features: int = 16, hidden: int = 24, out_features: int = 4) -> nn.Sequential:
    """Build Linear, BatchNorm1d, Tanh, Linear, which maps (batch, in_features) to (batch, out_features).

    Raises:
        TypeError, ValueError: a size is no integer of at least 1.

    >>> normed_net()(torch.randn(8, 16)).shape
    torch.Size([8, 4])
    """
    want_sizes("normed_net", in_features=in_features, hidden=hidden, out_features=out_features)
    return nn.Sequential(
        nn.Linear(in_features, hidden), nn.BatchNorm1d(hidden), nn.Tanh(), nn.Linear(hidden, out_features)
    )


def _checkpointed_steps(
    call: Callable[..., Tensor], model: nn.Module, precision: str, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the loss before each of 12 steps, and the running mean after them."""
    optimizer = SGD(model.parameters(), lr=0.5, momentum=0.5)
    scaler = GradScaler(x.device.type, init_scale=2.0**10, enabled=precision == "amp_fp16")
    checkpointed = partial(run_segment, call, owner=model)
    done = [train_step(checkpointed, squared_error, (x, y), optimizer, precision, scaler) for _ in range(12)]
    running = dict(model.named_buffers())["1.running_mean"]
    return torch.stack([step.loss for step in done]), running.clone()


def _by_hand(model: nn.Sequential, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the same without recomputation, with the backward of batch norm and all else written out."""
    parameters = [p.detach().clone() for p in model.parameters()]
    speeds = [torch.zeros_like(p) for p in parameters]
    running, losses = torch.zeros_like(parameters[1]), []
    for _ in range(12):
        w1, b1, gain, shift, w2, b2 = parameters
        before = x @ w1.t() + b1
        centred = before - before.mean(0)
        deviation = (centred.square().mean(0) + 1e-5).sqrt()
        normed = centred / deviation
        hidden = torch.tanh(normed * gain + shift)
        error = hidden @ w2.t() + b2 - y
        losses.append(error.square().mean())
        running = 0.9 * running + 0.1 * before.mean(0)
        slope = 2 * error / error.numel()
        behind = (slope @ w2) * (1 - hidden.square())
        inside = behind * gain
        inside = (inside - inside.mean(0) - normed * (inside * normed).mean(0)) / deviation
        first = [inside.t() @ x, inside.sum(0), (behind * normed).sum(0), behind.sum(0)]
        for parameter, speed, gradient in zip(
            parameters, speeds, [*first, slope.t() @ hidden, slope.sum(0)], strict=True
        ):
            speed.mul_(0.5).add_(gradient)
            parameter.sub_(0.5 * speed)
    return torch.stack(losses), running


def _waves(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(32, 16, generator=generator)
    return x, 2 * torch.sin(x @ torch.randn(16, 4, generator=generator) / 2)


SPEC = Spec(
    name="train_checkpointed",
    summary="12 steps of SGD on a network with batch norm that runs again in backward; the losses, the running mean",
    formula="v ← v/2 + ∇L, w ← w − v/2",
    shapes="(batch, 16), (batch, 4) → (12,), (24,)",
    source='Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174',
    build=normed_net,
    cases=(Case(name="typical", inputs=_waves),),
    dtypes="float32",
    differentiable=False,
    reference=_by_hand,
    fit=_checkpointed_steps,
    expectations=(
        Expect(
            outcome="refuses",
            modes=("scripted",),
            error="RuntimeError",
            match="The following operation failed in the TorchScript interpreter",
            reason="TorchScript saves 12 tensors in its second call and 10 in its first; the checkpoint compares them",
            link="https://docs.pytorch.org/docs/stable/checkpoint.html",
        ),
        Expect(
            outcome="refuses",
            modes=("exported", "packaged"),
            error="CheckpointError",
            match="A different number of tensors was saved",
            reason="the program is made in its first call, inside the checkpoint, which counts what that saves",
            link="https://docs.pytorch.org/docs/stable/checkpoint.html",
        ),
        Expect(
            outcome="ERROR",
            modes=("compiled", "graphed"),
            torch="<2.5",
            error="BackendCompilerFailed",
            match="Please convert all Tensors to FakeTensors first",
            reason="torch.compile could not trace a checkpoint around a part of the model",
        ),
    ),
)
