"""Faults of modes: another precision, another autocast, a backend that does not run, wrong caches, broken calls."""

from collections.abc import Callable
from typing import Any

import torch
from fault_parts import Bent, inputs, on_floats, plant, plant_mode, same, with_function
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 -- its usual name

from conformance import NotProvenError, Prepared

ORIGINAL = F.linear


def _truncated(t: Tensor) -> Tensor:
    """As TF32 holds it: ten bits of mantissa."""
    return Bent.apply(t, lambda v: (v.detach().contiguous().view(torch.int32) & -8192).view(torch.float32), same)


def _rounded(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda t: Bent.apply(t, lambda v: v.to(dtype).to(v.dtype), same)


def _linear_of(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return ORIGINAL(change(x), change(weight), bias)

    return linear


def _narrow_sum(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Products are right, and the sum of two halves is held in bfloat16."""
    half = x.shape[-1] // 2
    y = ORIGINAL(x[..., :half], weight[:, :half]).bfloat16().to(x.dtype) + ORIGINAL(x[..., half:], weight[:, half:])
    return y if bias is None else y + bias


def _autocast(**settings: Any) -> Callable[..., Any]:
    def wrap(model: Any, *args: Any) -> Any:
        with torch.autocast("cpu", **settings):
            return model(*args)

    return wrap


def _autocast_widened(model: Any, *args: Any) -> Any:
    """Autocast in fp32, and float32 results."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(*args)
    return on_floats(torch.Tensor.float, y)


def _left(*, enabled: bool) -> Callable[..., Any]:
    def wrap(model: Any, *args: Any) -> Any:
        torch.set_autocast_enabled("cpu", enabled)
        return model(*args)

    return wrap


def _never_runs(model: Any) -> Prepared:
    """A backend that takes no model of this kind, and falls back to eager."""

    def proof() -> dict[str, Any]:
        raise NotProvenError("the backend ran 0 of 4 calls")

    return Prepared(model, proof)


def _recompiles(model: Any) -> Prepared:
    """Every call compiles anew."""
    compiled = []

    def call(*args: Any) -> Any:
        compiled.append(args)
        return model(*args)

    def proof() -> dict[str, Any]:
        if len(compiled) > 1:
            raise NotProvenError(f"{len(compiled)} compilations for {len(compiled)} calls")
        return {}

    return Prepared(call, proof)


def _by_call(when: Callable[[int], bool], damage: Callable[[Tensor], Tensor]) -> Callable[[Any], Prepared]:
    """Some calls are damaged."""

    def prepare(model: Any) -> Prepared:
        calls: list[int] = []

        def call(*args: Any) -> Any:
            calls.append(1)
            y = model(*args)
            return on_floats(lambda t: Bent.apply(t, damage, same), y) if when(len(calls)) else y

        return Prepared(call, dict)

    return prepare


def _by_shape(model: Any) -> Prepared:
    """Results are cached by the shapes of the arguments."""
    cache: dict[Any, Any] = {}

    def call(*args: Any) -> Any:
        key = tuple(a.shape for a in args)
        if key not in cache:
            cache[key] = on_floats(torch.Tensor.detach, model(*args))
        return on_floats(torch.Tensor.clone, cache[key])

    return Prepared(call, dict)


def _in_halves(model: Any, *args: Any) -> Any:
    """The batch in two halves: right for each row, wrong for statistics of the batch."""
    middle = args[0].shape[0] // 2
    return torch.cat([model(*(a[:middle] for a in args)), model(*(a[middle:] for a in args))])


def _noisy(model: Any, *args: Any) -> Any:
    return on_floats(lambda y: y * (1 + 1e-6 * torch.rand_like(y)), model(*args))


def _evaluated(model: Any, *args: Any) -> Any:
    was = model.training
    model.eval()
    y = model(*args)
    model.train(was)
    return y


def _no_grad(model: Any, *args: Any) -> Any:
    with torch.no_grad():
        return model(*args)


def _without_last(model: Any, *args: Any) -> Any:
    return model(*args[:-1], torch.zeros_like(args[-1]))


def _without_checkpointed_graph(model: Any, *args: Any) -> Any:
    return on_floats(
        lambda y: Bent.apply(y, same, lambda g: g.half().mul(60000.0).div(60000.0).to(g.dtype)), model(*args)
    )


def _half_gradient(g: Tensor) -> Tensor:
    return g.half().to(g.dtype)


KIND, LOW = "mode", ("amp_fp16", "amp_bf16")
PLANTED = (
    *plant(
        KIND,
        "linear_in_bf16",
        with_function(F, "linear", _linear_of(_rounded(torch.bfloat16))),
        "mixer",
        "elman",
        "tiny_gpt",
        "classifier",
    ),
    *plant(
        KIND,
        "linear_in_fp16",
        with_function(F, "linear", _linear_of(_rounded(torch.float16))),
        "mixer",
        "selective_scan",
        "layer_norm",
    ),
    *plant(
        KIND, "linear_in_tf32", with_function(F, "linear", _linear_of(_truncated)), "mixer", "gated_block", "separable"
    ),
    *plant(KIND, "sum_in_bf16", with_function(F, "linear", _narrow_sum), "mixer", "two_experts", "mixture_density"),
    *plant(KIND, "backward_in_fp16", inputs(_half_gradient), "elman", "gated_recurrence", "hourglass"),
    *plant(KIND, "backward_overflows", _without_checkpointed_graph, "causal_attention", "rms_norm", "ranking"),
    *plant(KIND, "autocast_in_fp32", _autocast(dtype=torch.bfloat16), "elman", "hourglass"),
    *plant(KIND, "autocast_in_fp32_hidden", _autocast_widened, "causal_attention", "mixture_density", "dilated"),
    *plant(KIND, "autocast_off_inside", _autocast(enabled=False), "causal_attention", "classifier", precisions=LOW),
    *plant(KIND, "autocast_other", _autocast(dtype=torch.float16), "causal_attention", "separable", precisions=LOW[1:]),
    *plant(KIND, "autocast_left_on", _left(enabled=True), "mixer", "dilated"),
    *plant(KIND, "autocast_left_off", _left(enabled=False), "mixer", "dilated", precisions=LOW),
    *plant_mode(KIND, "never_runs", _never_runs, "elman", "mixer", precisions=("fp32", "amp_bf16")),
    *plant_mode(KIND, "recompiles", _recompiles, "elman", "mixer"),
    *plant_mode(
        KIND, "second_call_off", _by_call(lambda n: n % 2 == 0, lambda y: y * (1 + 2.0**-20)), "elman", "focal"
    ),
    *plant_mode(KIND, "later_calls_off", _by_call(lambda n: n > 1, lambda y: y * 1.01), "mixer", "separable"),
    *plant_mode(KIND, "first_call_off", _by_call(lambda n: n == 1, lambda y: y * 1.01), "mixer", "focal"),
    *plant_mode(KIND, "third_call_off", _by_call(lambda n: n >= 3, lambda y: y * 1.01), "causal_attention"),
    *plant_mode(KIND, "cached_by_shape", _by_shape, "rms_norm", "shifted_tokens"),
    *plant(KIND, "halves", _in_halves, "batch_norm_train", "queue", "residual", "whitened"),
    *plant(KIND, "noisy", _noisy, "elman", "overlap"),
    *plant(KIND, "evaluated", _evaluated, "batch_norm_train", "residual"),
    *plant(KIND, "no_grad", _no_grad, "elman", "focal", "mixer"),
    *plant(KIND, "argument_ignored", _without_last, "adaptive_norm", "mixture_density", "cross_attention"),
)
