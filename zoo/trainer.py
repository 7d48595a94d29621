"""A training that is called like a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from zoo.amp import want_precision
from zoo.arguments import want_callables, want_instances, want_tensors


class Trainer(nn.Module):
    """Trains a model in place when it is called, and returns what the training returns, such as the loss of each step.

    `zoo.create_model` returns it for the entries of `zoo.training`. A second call starts from the weights that the
    first has left, with a new optimizer.

    Args:
        model: the model to train; `trainer.model` can be scripted, compiled or saved by itself.
        fit: called as fit(model, model, precision, *inputs), like `Spec.fit`.

    Raises:
        TypeError: `model` is no module, or `fit` is not callable.

    >>> import zoo
    >>> trainer = zoo.create_model("fit_quadratic", seed=0)
    >>> losses = trainer(*zoo.example_inputs("fit_quadratic"), precision="amp_bf16")
    >>> bool(losses[-1] < losses[0])
    True
    """

    def __init__(self, model: nn.Module, fit: Callable[..., Any]) -> None:
        super().__init__()
        want_instances("Trainer", nn.Module, model=model)
        want_callables("Trainer", fit=fit)
        self.model = model
        self.fit = fit

    def forward(self, *inputs: Any, precision: str = "fp32") -> Any:
        """Train `model` on these inputs.

        Args:
            inputs: those of the entry's cases.
            precision: "fp32", "amp_fp16" or "amp_bf16".

        Raises:
            TypeError: an input is missing, or too many, or no tensor where `fit` names a tensor; the message names it.
            TypeError, ValueError: the precision is no string, or unknown.
        """
        want_precision("Trainer", precision)
        _want_inputs(self.fit, inputs)
        return self.fit(self.model, self.model, precision, *inputs)


def _want_inputs(fit: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
    form = inspect.signature(fit)
    try:
        given = form.bind(None, None, "fp32", *inputs).arguments
    except TypeError:
        names = ", ".join(list(form.parameters)[3:]) or "none"  # behind the call, the model and the precision
        raise TypeError(f"Trainer: inputs must be {names}, got {len(inputs)} of them") from None
    places = [form.parameters[name] for name in given]
    tensors = [p.name for p in places if p.annotation in (Tensor, "Tensor") and p.kind is not p.VAR_POSITIONAL]
    want_tensors("Trainer", **{name: given[name] for name in tensors})
