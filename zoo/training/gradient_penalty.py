"""A gradient penalty under autocast: the squared norm of the gradient of the loss is added to the loss.

Sources: Barrett and Dherin, "Implicit Gradient Regularization", ICLR 2021, arXiv:2009.11162, for the penalty; PyTorch,
"Automatic Mixed Precision examples", gradient penalty, for the order. The first gradients come from the scaled loss,
because small ones would vanish in float16. They are divided by the scale before their norm is taken, so the penalty is
that of the true gradients. The sum is scaled again for the second backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD, Optimizer

from zoo.amp import autocast, backward, device_of, parameters_of, unscale_and_step, want_batch, want_loss, want_step
from zoo.arguments import want_numbers
from zoo.case import Case
from zoo.expect import Expect
from zoo.models.mlp import mlp
from zoo.spec import Spec
from zoo.training.step import Step, backward_by_hand, squared_error, taught


def penalised_step(  # noqa: PLR0913 -- a step needs all of them
    model: Callable[..., Tensor],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    batch: Sequence[Tensor],
    optimizer: Optimizer,
    precision: str,
    scaler: GradScaler | None = None,
    clip: float | None = None,
    *,
    penalty: float,
) -> Step:
    """Take one step on loss + penalty · ‖∇loss‖², where the norm is over all parameters of the optimizer.

    Args:
        model: as in `train_step`. It must have second derivatives; a compiled one has none.
        loss_fn: as in `train_step`, and all that follows.
        batch: the inputs, then the target as the last element.
        optimizer: holds the model's parameters.
        precision: "fp32", "amp_fp16" or "amp_bf16".
        scaler: required for "amp_fp16".
        clip: the largest allowed norm of all unscaled gradients together, or None.
        penalty: the weight of the penalty, a positive number.

    Returns:
        The step; its loss contains the penalty.

    Raises:
        TypeError, ValueError: `penalty` is not a positive number, or as in `train_step`.
        RuntimeError: the model has no second derivatives (torch says so).

    >>> model = nn.Linear(2, 1)
    >>> optimizer = SGD(model.parameters(), lr=0.1)
    >>> batch = torch.ones(4, 2), torch.zeros(4, 1)
    >>> penalised_step(model, squared_error, batch, optimizer, "amp_bf16", penalty=0.1).skipped
    False
    """
    want_step("penalised_step", precision, scaler, clip, optimizer, model=model, loss_fn=loss_fn)
    want_batch("penalised_step", batch)
    if precision == "amp_fp16" and scaler is None:
        raise ValueError("penalised_step: scaler must be a torch.amp.GradScaler for amp_fp16, got None")
    want_numbers("penalised_step", penalty=penalty)
    if not penalty > 0:
        raise ValueError(f"penalised_step: penalty must be a positive number, got {penalty!r}")
    device_type = device_of(optimizer).type
    scaler = scaler or GradScaler(device_type, enabled=False)
    parameters = [p for p in parameters_of(optimizer) if p.requires_grad]
    *inputs, target = batch
    optimizer.zero_grad()
    with autocast(precision, device_type):
        loss = loss_fn(model(*inputs), target)
    want_loss("penalised_step", loss)
    scaled = torch.autograd.grad(scaler.scale(loss), parameters, create_graph=True, allow_unused=True)
    gradients = [gradient / scaler.get_scale() for gradient in scaled if gradient is not None]
    with autocast(precision, device_type):
        loss = loss + penalty * sum(gradient.square().sum() for gradient in gradients)
    backward("penalised_step", loss, scaler, optimizer=optimizer)
    finite = unscale_and_step(optimizer, scaler, clip)
    scaler.update()
    return Step(loss.detach(), skipped=not finite)


def _penalised(call: Callable[..., Tensor], model: nn.Module, precision: str, x: Tensor, y: Tensor) -> Tensor:
    optimizer = SGD(model.parameters(), lr=0.4)
    scaler = GradScaler(x.device.type, init_scale=2.0**10, enabled=precision == "amp_fp16")
    done = [penalised_step(call, squared_error, (x, y), optimizer, precision, scaler, penalty=0.5) for _ in range(12)]
    return torch.stack([step.loss for step in done])


def _by_hand(model: nn.Sequential, x: Tensor, y: Tensor) -> Tensor:
    """Compute the same losses: the gradient of ‖g‖²/2 is the Hessian times g, which Pearlmutter's rules give."""
    parameters = [p.detach().clone() for p in model.parameters()]
    losses = []
    for _ in range(12):
        loss, gradients = backward_by_hand(parameters, x, y)
        losses.append(loss + 0.5 * torch.cat([g.flatten() for g in gradients]).square().sum())
        curved = _hessian_times(parameters, gradients, x, y)
        for parameter, gradient, second in zip(parameters, gradients, curved, strict=True):
            parameter.sub_(0.4 * (gradient + second))
    return torch.stack(losses)


def _hessian_times(parameters: Sequence[Tensor], direction: Sequence[Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
    """Differentiate the gradients of the squared error of `mlp` along a direction, line by line."""
    (w1, b1, w2, b2), (v1, c1, v2, c2) = parameters, direction
    active = (x @ w1.t() + b1 > 0).to(x.dtype)
    hidden, hidden_moved = (x @ w1.t() + b1) * active, (x @ v1.t() + c1) * active
    slope = 2 * (hidden @ w2.t() + b2 - y) / y.numel()
    slope_moved = 2 * (hidden_moved @ w2.t() + hidden @ v2.t() + c2) / y.numel()
    behind_moved = (slope_moved @ w2 + slope @ v2) * active
    second = slope_moved.t() @ hidden + slope.t() @ hidden_moved
    return [behind_moved.t() @ x, behind_moved.sum(0), second, slope_moved.sum(0)]


SPEC = Spec(
    name="train_gradient_penalty",
    summary="12 steps of SGD on `mlp` with a gradient penalty; the loss before each, with the penalty",
    formula="w ← w − 0.4 ∇(L + ‖∇L‖²/2)",
    shapes="(batch, 64), (batch, 10) → (12,)",
    source='Barrett and Dherin, "Implicit Gradient Regularization", ICLR 2021; PyTorch, "Automatic Mixed Precision '
    'examples", gradient penalty',
    build=mlp,
    cases=(Case(name="typical", inputs=taught),),
    dtypes="float32",
    differentiable=False,
    reference=_by_hand,
    fit=_penalised,
    expectations=(
        Expect(
            outcome="refuses",
            modes=("compiled", "compiled_dynamic", "graphed"),
            error="RuntimeError",
            # the second says code of the same model that an ordinary training has compiled and stored
            match="does not currently support double backward|non-empty donated buffers",
            reason="AOTAutograd compiles the first derivative only",
            link="https://github.com/pytorch/pytorch/issues/91469",
        ),
    ),
)
