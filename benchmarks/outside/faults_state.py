"""Faults of state: a call that changes what it should not, keeps what it should not, or forgets what it should keep."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from fault_parts import after, inside, of_result, on_floats, plant, plant_mode
from torch import Tensor, nn

from conformance import Prepared

# Inputs, parameters and buffers


def _every_parameter(change: Any) -> Any:
    def effect(model: Any, *_: Any) -> None:
        for parameter in model.parameters():
            change(parameter)

    return after(effect)


def _every_buffer(change: Any) -> Any:
    def effect(model: Any, *_: Any) -> None:
        for buffer in model.buffers():
            change(buffer)

    return after(effect)


@contextmanager
def _buffers_restored(model: Any) -> Iterator[None]:
    before = [b.clone() for b in model.buffers()]
    yield
    with torch.no_grad():
        for buffer, old in zip(model.buffers(), before, strict=True):
            buffer.data.copy_(old)


def _called_twice(model: Any, *args: Any) -> Any:
    with torch.no_grad():
        model(*args)
    return model(*args)


def _buffers_replaced(model: Any, *args: Any) -> Any:
    """Updates copies of the buffers; the module keeps its own."""
    copies = {name: b.clone() for name, b in model.named_buffers()}
    return torch.func.functional_call(model, copies, args)


def _first_buffer(model: Any) -> Tensor:
    return next(iter(model.buffers()))


def _static_output(model: Any) -> Prepared:
    """Every call writes its result into the same memory, as CUDA graphs do."""
    memory: dict[Any, Tensor] = {}

    def call(*args: Any) -> Any:
        y = model(*args)
        place = memory.setdefault((y.shape, y.dtype), torch.empty_like(y).detach())

        class Write(torch.autograd.Function):
            @staticmethod
            def forward(_ctx: Any, y: Tensor) -> Tensor:
                place.copy_(y)
                return place.view_as(place)

            @staticmethod
            def backward(_ctx: Any, g: Tensor) -> Tensor:
                return g

        return Write.apply(y)

    return Prepared(call, dict)


def _stale_weights(model: Any) -> Prepared:
    """Parameters are copied when the mode is prepared; the copies get gradients of their own."""
    copies = {name: p.detach().clone() for name, p in model.named_parameters()}
    return Prepared(lambda *args: torch.func.functional_call(model, copies, args), dict)


def _stale_weights_with_gradient(model: Any) -> Prepared:
    """The weights of the first call serve for ever, but gradients reach the parameters."""
    copies: dict[str, Tensor] = {}

    def call(*args: Any) -> Any:
        if not copies:
            copies.update({name: p.detach().clone() for name, p in model.named_parameters()})
        used = {name: p - p.detach() + copies[name] for name, p in model.named_parameters()}
        return torch.func.functional_call(model, used, args)

    return Prepared(call, dict)


def _frozen_input(model: Any) -> Prepared:
    """The integer inputs of the first call are constants of the compiled program."""
    kept: list[Any] = []

    def call(*args: Any) -> Any:
        if not kept:
            kept.extend(args)
        pairs = zip(args, kept, strict=True)
        return model(*[old.clone() if not a.is_floating_point() and a.shape == old.shape else a for a, old in pairs])

    return Prepared(call, dict)


def _accumulating(model: Any) -> Prepared:
    """Every call adds a little of the call before it."""
    last: list[Tensor] = []

    def call(*args: Any) -> Any:
        y = model(*args)
        result = y + 1e-3 * last[-1] if last and last[-1].shape == y.shape else y
        last[:] = [y.detach()]
        return result

    return Prepared(call, dict)


# The process


def _hooked(model: Any, *_: Any) -> None:
    model.register_forward_hook(lambda *_: None)


def _linear_hooked(model: Any, *_: Any) -> None:
    for part in model.modules():
        if isinstance(part, nn.Linear):
            part.register_forward_hook(lambda _m, _i, y: y * 1.0)


def _adds_buffer(model: Any, *_: Any) -> None:
    if not hasattr(model, "extra"):
        model.register_buffer("extra", torch.zeros(3))


def _draws(*_: Any) -> None:
    torch.rand(3)


@contextmanager
def _never_switched_back(switch: Any) -> Iterator[None]:
    yield
    switch()


def _leaves(switch: Any) -> Any:
    """Switch something of the process after the call."""
    return inside(lambda _: _never_switched_back(switch))


def _set_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)


def _set_grad_off() -> None:
    torch.set_grad_enabled(False)


LAYERS = ("elman", "mixer")
STATEFUL = ("batch_norm_train", "residual", "key_cache")
PLANTED = (
    *plant(
        "state",
        "input_scaled",
        after(lambda _m, x, *_: x.data.mul_(0.5)),
        "elman",
        "rms_norm",
        "focal",
        precisions=("fp32", "amp_bf16"),
    ),
    *plant("state", "input_zeroed", after(lambda _m, *a: a[-1].data.zero_()), "evidence", "distilled"),
    *plant(
        "state",
        "input_sorted",
        after(lambda _m, *a: a[-1].data.copy_(a[-1].sort().values)),
        "graph_convolution",
        "deep_sets",
    ),
    *plant("state", "parameter_decayed", _every_parameter(lambda p: p.data.mul_(0.999)), *LAYERS, "tiny_gpt"),
    *plant("state", "parameter_rounded", _every_parameter(lambda p: p.data.copy_(p.data.bfloat16() * 0.75)), "patches"),
    *plant("state", "parameter_frozen", _every_parameter(lambda p: p.requires_grad_(False)), *LAYERS),
    *plant(
        "state", "parameter_gradient_set", _every_parameter(lambda p: setattr(p, "grad", torch.ones_like(p))), *LAYERS
    ),
    *plant("state", "buffers_not_updated", inside(_buffers_restored), *STATEFUL, "queue", "warm_up"),
    *plant("state", "buffers_of_a_copy", _buffers_replaced, *STATEFUL, "warm_up"),
    *plant("state", "updated_twice", _called_twice, *STATEFUL, "queue", "warm_up"),
    *plant("state", "buffer_narrow", _every_buffer(lambda b: b.data.copy_(b.data.bfloat16())), *STATEFUL[:2]),
    *plant(
        "state", "buffer_factor", _every_buffer(lambda b: b.data.mul_(1.001) if b.is_floating_point() else b), *STATEFUL
    ),
    *plant(
        "state",
        "constant_changed",
        _every_buffer(lambda b: b.data.add_(0.125) if b.is_floating_point() else b),
        "standardise",
        "batch_norm_eval",
        "masked_attention",
    ),
    *plant(
        "state",
        "counter_off",
        _every_buffer(lambda b: b if b.is_floating_point() else b.data.add_(1)),
        "warm_up",
        "queue",
        "batch_norm_train",
    ),
    *plant_mode("state", "static_output", _static_output, "elman", "rms_norm", "causal_attention"),
    *plant_mode("state", "stale_weights", _stale_weights, *LAYERS),
    *plant_mode("state", "stale_weights_with_gradient", _stale_weights_with_gradient, *LAYERS, "tiny_gpt"),
    *plant_mode("state", "frozen_integers", _frozen_input, "tiny_gpt", "gru_characters", "by_token"),
    *plant_mode("state", "accumulating", _accumulating, "rms_norm", "latents"),
    *plant("state", "flipped_to_eval", after(lambda m, *_: m.eval()), *LAYERS, "batch_norm_train"),
    *plant("state", "flipped_to_train", after(lambda m, *_: m.train()), "batch_norm_eval", "encoder_eval"),
    *plant("state", "hook_left", after(_hooked), *LAYERS),
    *plant("state", "inner_hook_left", after(_linear_hooked), *LAYERS),
    *plant("state", "generator_advanced", after(_draws), *LAYERS, "focal"),
    *plant("state", "generator_seeded", after(lambda *_: torch.manual_seed(0)), "mixer"),
    *plant("state", "grad_left_off", _leaves(_set_grad_off), *LAYERS),
    *plant("state", "default_dtype_left", _leaves(_set_default_dtype), *LAYERS),
    *plant("state", "deterministic_left", _leaves(lambda: torch.use_deterministic_algorithms(True)), "mixer"),
    *plant("state", "threads_left", _leaves(lambda: torch.set_num_threads(2)), "mixer"),
    *plant("state", "anomaly_left", _leaves(lambda: torch.autograd.set_detect_anomaly(True)), "mixer"),
    *plant("state", "inference_result", of_result(lambda y: on_floats(torch.Tensor.detach, y)), "warm_up"),
    *plant(
        "state",
        "parameter_replaced",
        after(lambda m, *_: setattr(m.h, "weight", nn.Parameter(m.h.weight * 2))),
        "elman",
    ),
    *plant("state", "buffer_added", after(_adds_buffer), "mixer"),
)
