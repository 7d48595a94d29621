"""The pieces of a training step under automatic mixed precision: its checks, autocast, update, and when to give up.

Source: PyTorch, "Automatic Mixed Precision examples". The files of `zoo.training` put them together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from zoo.arguments import want_callables, want_instances, want_numbers, want_sizes, want_string, want_tensors

AUTOCAST = {"fp32": None, "amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}


def want_precision(function: str, precision: str) -> None:
    """Check the name of a precision.

    Raises:
        TypeError, ValueError: it is no string, or none of "fp32", "amp_fp16" and "amp_bf16".

    >>> want_precision("train", "fp16")
    Traceback (most recent call last):
    ValueError: train: precision must be one of fp32, amp_fp16, amp_bf16, got 'fp16'
    """
    want_string(function, precision=precision)
    if precision not in AUTOCAST:
        raise ValueError(f"{function}: precision must be one of {', '.join(AUTOCAST)}, got {precision!r}")


def want_step(
    function: str,
    precision: str,
    scaler: GradScaler | None,
    clip: float | None,
    *optimizers: Optimizer,
    **callables: Callable[..., Any],
) -> None:
    """Check the arguments that all training steps share; `function` names the one that was called.

    Raises:
        TypeError, ValueError: one of them is wrong; the message names it.

    >>> want_step("train", "fp16", None, None)
    Traceback (most recent call last):
    ValueError: train: precision must be one of fp32, amp_fp16, amp_bf16, got 'fp16'
    """
    want_callables(function, **callables)
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{function}: optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    want_precision(function, precision)
    if scaler is not None and not isinstance(scaler, GradScaler):
        raise TypeError(f"{function}: scaler must be a torch.amp.GradScaler, got {type(scaler).__name__}")
    if clip is not None:
        _want_norm(function, clip)


def _want_norm(function: str, clip: float) -> None:
    want_numbers(function, clip=clip)
    if not clip > 0:
        raise ValueError(f"{function}: clip must be a positive norm, got {clip!r}")


def want_batch(function: str, batch: Sequence[Tensor], hint: str = "") -> None:
    """Check that a batch is a tuple or list of tensors, the target last.

    Raises:
        TypeError: it is not; the message ends with `hint`.

    >>> want_batch("train", torch.ones(2))
    Traceback (most recent call last):
    TypeError: train: batch must be a tuple of tensors, first inputs, last the target, got Tensor
    """
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:  # noqa: PLR2004 -- an input and a target
        came = f"{len(batch)} of them" if isinstance(batch, (tuple, list)) else type(batch).__name__
        raise TypeError(
            f"{function}: batch must be a tuple of tensors, first inputs, last the target, got {came}{hint}"
        )
    want_tensors(function, **{f"batch[{i}]": tensor for i, tensor in enumerate(batch)})


def want_loss(function: str, loss: object) -> None:
    """Check what a loss function returned: a floating scalar that depends on a parameter.

    Raises:
        TypeError, ValueError: it is something else; the message says what.

    >>> want_loss("train", torch.ones(4))
    Traceback (most recent call last):
    ValueError: train: loss_fn must return a scalar, such as a mean over the samples, got shape [4]
    """
    if not isinstance(loss, Tensor) or not loss.is_floating_point():
        got = loss.dtype if isinstance(loss, Tensor) else type(loss).__name__
        raise TypeError(f"{function}: loss_fn must return a floating tensor, got {got}")
    if loss.dim():
        raise ValueError(
            f"{function}: loss_fn must return a scalar, such as a mean over the samples, got shape {list(loss.shape)}"
        )
    if not loss.requires_grad:
        raise ValueError(f"{function}: the loss must depend on a parameter, got one that requires no gradient")


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters of all groups of an optimizer.

    Raises:
        TypeError: `optimizer` is no optimizer.

    >>> parameters_of(torch.optim.SGD([torch.ones(1)]))
    [tensor([1.])]
    """
    want_instances("parameters_of", Optimizer, optimizer=optimizer)
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def device_of(optimizer: Optimizer) -> torch.device:
    """Return the device of the first parameter of an optimizer.

    Raises:
        TypeError: `optimizer` is no optimizer.

    >>> device_of(torch.optim.SGD([torch.ones(1)]))
    device(type='cpu')
    """
    want_instances("device_of", Optimizer, optimizer=optimizer)
    return parameters_of(optimizer)[0].device


def autocast(precision: str, device_type: str) -> contextlib.AbstractContextManager[Any]:
    """Return the context for forward and loss; it does nothing for "fp32".

    Raises:
        TypeError, ValueError: an argument is no string, or the precision is unknown.

    >>> with autocast("amp_bf16", "cpu"):
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.bfloat16
    """
    want_precision("autocast", precision)
    want_string("autocast", device_type=device_type)
    dtype = AUTOCAST[precision]
    return contextlib.nullcontext() if dtype is None else torch.autocast(device_type, dtype=dtype)


def backward(function: str, loss: Any, scaler: GradScaler, **optimizers: Optimizer) -> None:
    """Compute the scaled gradients of a loss, and check that every optimizer has got one.

    Args:
        function: the function that trains, for the error.
        loss: what the loss function has returned.
        scaler: scales the loss.
        optimizers: by the names of their arguments, for the error.

    Raises:
        TypeError, ValueError: an argument has the wrong type, the loss is no scalar as in `want_loss`, or it depends on
            no parameter of an optimizer, which would so change nothing.

    >>> weight, other = (torch.ones((), requires_grad=True) for _ in range(2))
    >>> backward("train", 2 * weight, GradScaler("cpu", enabled=False), optimizer=torch.optim.SGD([other]))
    Traceback (most recent call last):
    ValueError: train: optimizer must hold a parameter that the loss depends on; make it of model.parameters()
    """
    want_string("backward", function=function)
    want_instances("backward", GradScaler, scaler=scaler)
    want_instances("backward", Optimizer, **optimizers)
    want_loss(function, loss)
    scaler.scale(loss).backward()
    for argument, optimizer in optimizers.items():
        if all(parameter.grad is None for parameter in parameters_of(optimizer)):
            raise ValueError(
                f"{function}: {argument} must hold a parameter that the loss depends on; make it of model.parameters()"
            )


def unscale_and_step(optimizer: Optimizer, scaler: GradScaler, clip: float | None = None) -> bool:
    """Unscale and clip the gradients and step, unless a gradient is not finite; call `scaler.update()` afterwards.

    Returns:
        Whether all gradients were finite, and the step was taken.

    Raises:
        TypeError, ValueError: an argument has the wrong type, or `clip` is not positive.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> weight.grad = torch.tensor([1.0, torch.inf])
    >>> unscale_and_step(torch.optim.SGD([weight], lr=0.1), GradScaler("cpu", enabled=False)), weight.tolist()
    (False, [1.0, 1.0])
    """
    want_instances("unscale_and_step", Optimizer, optimizer=optimizer)
    want_instances("unscale_and_step", GradScaler, scaler=scaler)
    if clip is not None:
        _want_norm("unscale_and_step", clip)
    parameters = parameters_of(optimizer)
    gradients = [p.grad for p in parameters if p.grad is not None]
    scaler.unscale_(optimizer)
    finite = _are_finite(gradients)
    if clip is not None and finite:
        torch.nn.utils.clip_grad_norm_(parameters, clip)
    if finite or scaler.is_enabled():
        scaler.step(optimizer)  # an enabled scaler skips the step itself if unscale_ found infinities or NaNs
    return finite


def _are_finite(gradients: list[Tensor]) -> bool:
    """Check all gradients in one question to the device, because each question waits for its work to finish."""
    return not gradients or bool(torch.stack([g.isfinite().all() for g in gradients]).all())


class Health:
    """Stops a run that learns nothing any more: its loss is NaN, or its steps are all skipped.

    Args:
        function: the function that trains, for the error.
        scaler: the scaler of the run.
        min_scale: the smallest scale that an enabled scaler may reach.
        max_skips: the number of skipped steps in a row that ends the run.

    Raises:
        TypeError, ValueError: an argument has the wrong type, or `max_skips` is below 1.

    >>> health = Health("train", GradScaler("cpu", enabled=False), max_skips=2)
    >>> health.check("step 1", torch.tensor(0.5), skipped=True)
    >>> health.check("step 2", torch.tensor(0.5), skipped=True)
    Traceback (most recent call last):
    FloatingPointError: train: step 2: 2 steps in a row were skipped, because their gradients were not finite
    """

    def __init__(self, function: str, scaler: GradScaler, min_scale: float = 1.0, max_skips: int = 20) -> None:
        want_string("Health", function=function)
        want_instances("Health", GradScaler, scaler=scaler)
        want_numbers("Health", min_scale=min_scale)
        want_sizes("Health", max_skips=max_skips)
        self._function, self._scaler = function, scaler
        self._min_scale, self._max_skips, self._skips = min_scale, max_skips, 0

    def check(self, where: str, loss: Tensor, *, skipped: bool) -> None:
        """Look at one step.

        Args:
            where: the place of the step in the run, for the error.
            loss: the loss before the step, a scalar.
            skipped: whether the step was skipped.

        Raises:
            FloatingPointError: the loss is NaN, or too many steps were skipped; one line that says where.
        """
        if loss.isnan():
            raise FloatingPointError(f"{self._function}: {where}: the loss is nan")
        self._skips = self._skips + 1 if skipped else 0
        if not skipped:
            return
        scale = self._scaler.get_scale()
        fell = self._scaler.is_enabled() and scale < self._min_scale
        if fell or self._skips >= self._max_skips:
            steps = f"{self._skips} steps in a row were skipped, because their gradients were not finite"
            scaled = f", and the scale fell to {scale:g}, below min_scale={self._min_scale:g}" if fell else ""
            raise FloatingPointError(f"{self._function}: {where}: {steps}{scaled}")
