"""A step of several optimizers on several losses, with one scaler.

Source: PyTorch, "Automatic Mixed Precision examples", working with multiple models, losses and optimizers. All losses
are scaled alike, so their sum needs one backward only. Each optimizer looks at its own gradients: one may skip the step
while another takes it. The scale changes once, after all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD, Adam, Optimizer

from zoo.amp import autocast, backward, device_of, parameters_of, unscale_and_step, want_batch, want_loss, want_step
from zoo.arguments import want_tensors
from zoo.case import Case
from zoo.models.mlp import mlp
from zoo.spec import Spec
from zoo.training.step import backward_by_hand, squared_error, taught


@dataclass(frozen=True)
class SeveralSteps:
    """The result of one step of several optimizers.

    Attributes:
        losses: (losses,), each loss before the step, detached.
        skipped: for each optimizer, whether its gradients were not finite and it skipped the step.

    >>> SeveralSteps(torch.zeros(2), skipped=(False, True)).skipped
    (False, True)
    """

    losses: Tensor
    skipped: tuple[bool, ...]


def several_losses_step(  # noqa: PLR0913 -- a step needs all of them
    model: Callable[..., Any],
    loss_fns: Sequence[Callable[[Any, Tensor], Tensor]],
    batch: Sequence[Tensor],
    optimizers: Sequence[Optimizer],
    precision: str,
    scaler: GradScaler | None = None,
    clip: float | None = None,
) -> SeveralSteps:
    """Take one step of every optimizer on the sum of several losses of one output.

    Args:
        model: maps the inputs of the batch to an output; the model may consist of several.
        loss_fns: each is called as loss_fn(output, target) and returns a scalar. A loss from which some parameters are
            to learn nothing detaches what it gets from them.
        batch: the inputs, then the target as the last element.
        optimizers: each holds some of the parameters; none holds one of another.
        precision: "fp32", "amp_fp16" or "amp_bf16".
        scaler: one for all optimizers; required for "amp_fp16".
        clip: the largest allowed norm of the unscaled gradients of each optimizer, or None.

    Raises:
        TypeError: an argument has the wrong type, such as one optimizer instead of a list.
        ValueError: a list is empty, two optimizers hold one parameter, or as in `train_step`.

    >>> encoder, head = nn.Linear(4, 3), nn.Linear(3, 1)
    >>> optimizers = [Adam(encoder.parameters(), lr=0.01), SGD(head.parameters(), lr=0.1)]
    >>> losses = [squared_error, nn.functional.l1_loss]
    >>> batch = torch.randn(8, 4), torch.randn(8, 1)
    >>> several_losses_step(nn.Sequential(encoder, head), losses, batch, optimizers, "fp32").losses.shape
    torch.Size([2])
    """
    _want_lists(loss_fns, optimizers)
    named = {f"loss_fns[{i}]": loss_fn for i, loss_fn in enumerate(loss_fns)}
    want_step("several_losses_step", precision, scaler, clip, *optimizers, model=model, **named)
    want_batch("several_losses_step", batch)
    if precision == "amp_fp16" and scaler is None:
        raise ValueError("several_losses_step: scaler must be a torch.amp.GradScaler for amp_fp16, got None")
    _want_apart(optimizers)
    device_type = device_of(optimizers[0]).type
    scaler = scaler or GradScaler(device_type, enabled=False)
    *inputs, target = batch
    for optimizer in optimizers:
        optimizer.zero_grad()
    with autocast(precision, device_type):
        output = model(*inputs)
        each = [loss_fn(output, target) for loss_fn in loss_fns]
    for loss in each:
        want_loss("several_losses_step", loss)
    losses = torch.stack(each)
    named_optimizers = {f"optimizers[{i}]": optimizer for i, optimizer in enumerate(optimizers)}
    backward("several_losses_step", losses.sum(), scaler, **named_optimizers)
    skipped = tuple(not unscale_and_step(optimizer, scaler, clip) for optimizer in optimizers)
    scaler.update()
    return SeveralSteps(losses.detach(), skipped)


def _want_lists(loss_fns: Any, optimizers: Any) -> None:
    for argument, value in (("loss_fns", loss_fns), ("optimizers", optimizers)):
        if not isinstance(value, (tuple, list)):
            raise TypeError(f"several_losses_step: {argument} must be a list, got {type(value).__name__}")
        if not value:
            raise ValueError(f"several_losses_step: {argument} must not be empty")


def _want_apart(optimizers: Sequence[Optimizer]) -> None:
    """Check that no parameter is stepped, and its gradient unscaled, twice."""
    held = [id(p) for optimizer in optimizers for p in parameters_of(optimizer)]
    if len(set(held)) < len(held):
        raise ValueError("several_losses_step: two optimizers hold the same parameter")


def size_of(output: Tensor, target: Tensor) -> Tensor:
    """Compute a tenth of the mean square of the output, in float32 at least; it is a loss without a target.

    Raises:
        TypeError: an argument is not a tensor.

    >>> round(size_of(torch.full((2, 2), 2.0), torch.zeros(2)).item(), 4)
    0.4
    """
    want_tensors("size_of", output=output, target=target)
    return 0.1 * output.to(torch.promote_types(output.dtype, torch.float32)).square().mean()


def _two_optimizers(call: Callable[..., Tensor], model: nn.Sequential, precision: str, x: Tensor, y: Tensor) -> Tensor:
    """Return both losses before each of 12 steps: Adam on the first layer, SGD on the second."""
    optimizers = [Adam(model[0].parameters(), lr=0.02), SGD(model[2].parameters(), lr=0.6)]
    scaler = GradScaler(x.device.type, init_scale=2.0**10, enabled=precision == "amp_fp16")
    losses = [squared_error, size_of]
    done = [several_losses_step(call, losses, (x, y), optimizers, precision, scaler) for _ in range(12)]
    return torch.stack([step.losses for step in done])


def _by_hand(model: nn.Sequential, x: Tensor, y: Tensor) -> Tensor:
    """Compute the same losses with Adam written out; the second loss is a squared error to zero."""
    parameters = [p.detach().clone() for p in model.parameters()]
    means, squares = ([torch.zeros_like(p) for p in parameters[:2]] for _ in range(2))
    losses = []
    for number in range(1, 13):
        error, of_error = backward_by_hand(parameters, x, y)
        size, of_size = backward_by_hand(parameters, x, torch.zeros_like(y))
        losses.append(torch.stack((error, 0.1 * size)))
        gradients = [a + 0.1 * b for a, b in zip(of_error, of_size, strict=True)]
        for parameter, mean, square, gradient in zip(parameters[:2], means, squares, gradients[:2], strict=True):
            mean.mul_(0.9).add_(0.1 * gradient)
            square.mul_(0.999).add_(0.001 * gradient * gradient)
            root = (square / (1 - 0.999**number)).sqrt() + 1e-8
            parameter.sub_(0.02 * mean / (1 - 0.9**number) / root)
        for parameter, gradient in zip(parameters[2:], gradients[2:], strict=True):
            parameter.sub_(0.6 * gradient)
    return torch.stack(losses)


SPEC = Spec(
    name="train_several_losses",
    summary="12 steps of Adam and SGD on two losses of `mlp` with one scaler; both losses before each",
    formula="L = mean (f − y)² + mean f² / 10; first layer ← Adam(∇L, 1/50), second layer ← second layer − 0.6 ∇L",
    shapes="(batch, 64), (batch, 10) → (12, 2)",
    source='PyTorch documentation, "Automatic Mixed Precision examples", several models, losses and optimizers',
    build=mlp,
    cases=(Case(name="typical", inputs=taught),),
    dtypes="float32",
    differentiable=False,
    reference=_by_hand,
    fit=_two_optimizers,
)
