"""Faults of structure: other trees, shapes, dtypes and graphs than the model's own."""

from collections.abc import Callable
from typing import Any

import torch
from fault_parts import Bent, of_result, on_floats, outputs, plant, same
from torch import Tensor

from zoo import internals


def _first(change: Callable[[Tensor], Any]) -> Callable[..., Any]:
    """Change the first leaf of the result."""

    def apply(y: Any) -> Any:
        leaves, tree = internals.tree_flatten(y)
        return internals.tree_unflatten([change(leaves[0]), *leaves[1:]], tree)

    return of_result(apply)


def _last(change: Callable[[Tensor], Any]) -> Callable[..., Any]:
    """Change the last leaf of the result."""

    def apply(y: Any) -> Any:
        leaves, tree = internals.tree_flatten(y)
        return internals.tree_unflatten([*leaves[:-1], change(leaves[-1])], tree)

    return of_result(apply)


def _integers(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    return of_result(
        lambda y: internals.tree_map(lambda t: t if t.is_floating_point() or t.is_complex() else change(t), y)
    )


def _swapped(y: Any) -> Any:
    return (y[1], y[0], *y[2:])


def _leaf(y: Tensor) -> Tensor:
    return y.detach().requires_grad_()


def _without_input_gradient(model: Any, *args: Any) -> Any:
    return model(*on_floats(torch.Tensor.detach, args))


def _without_second_gradient(model: Any, first: Any, second: Any, *rest: Any) -> Any:
    return model(first, second.detach(), *rest)


def _without_parameter_gradient(model: Any, *args: Any) -> Any:
    frozen = {name: p.detach() for name, p in list(model.named_parameters())[:1]}
    return torch.func.functional_call(model, frozen, args)


def _zero_for_none(model: Any, *args: Any) -> Any:
    """Every output is made to depend on every parameter, so no gradient is missing."""
    nothing = sum((p.sum() * 0 for p in model.parameters()), torch.zeros(()))
    return on_floats(lambda y: y + nothing.to(y.dtype), model(*args))


def _grad_of_constant(model: Any, *args: Any) -> Any:
    return internals.tree_map(
        lambda t: t if t.requires_grad or not t.is_floating_point() else t.clone().requires_grad_(), model(*args)
    )


def _through_half_gradient(y: Tensor) -> Tensor:
    return Bent.apply(y, same, torch.zeros_like)


PLANTED = (
    *plant(
        "structure",
        "tupled",
        of_result(lambda y: (y,)),
        "elman",
        "focal",
        "causal_attention",
        precisions=("fp32", "amp_bf16"),
    ),
    *plant("structure", "list_for_tuple", of_result(list), "chunked", "classifier", "highway_unit"),
    *plant("structure", "dict_for_named_tuple", of_result(lambda y: y._asdict()), "distribution"),
    *plant("structure", "tuple_for_named_tuple", of_result(tuple), "distribution"),
    *plant("structure", "dict_reversed", of_result(lambda y: dict(reversed(y.items()))), "pyramid", "accuracy"),
    *plant("structure", "key_lost", of_result(lambda y: dict(list(y.items())[:-1])), "pyramid", "accuracy"),
    *plant("structure", "key_renamed", of_result(lambda y: {k.upper(): v for k, v in y.items()}), "pyramid"),
    *plant("structure", "leaf_lost", of_result(lambda y: y[:-1]), "chunked", "beam_step"),
    *plant("structure", "leaf_twice", of_result(lambda y: (*y, y[0])), "classifier", "evidence"),
    *plant("structure", "leaves_swapped", of_result(_swapped), "chunked", "balanced", "triangles"),
    *plant("structure", "none", _last(lambda _: None), "lstm_by_hand", "codebook"),
    *plant("structure", "squeezed", _first(lambda y: y.unsqueeze(-1)), "gru_characters", "rms_norm", "codebook"),
    *plant("structure", "flattened", _first(torch.flatten), "mixer", "separable"),
    *plant("structure", "one_for_scalar", _first(lambda y: y.reshape(1)), "focal", "balanced", "ctc"),
    *plant("structure", "number_for_scalar", _first(float), "smoothed", "balanced"),
    *plant("structure", "row_less", _first(lambda y: y[:-1]), "gaussian_nll", "latents"),
    *plant("structure", "double", outputs(torch.Tensor.double), "elman", "overlap", "slots"),
    *plant("structure", "half", of_result(lambda y: on_floats(torch.Tensor.half, y)), "both_ways", "cosine_head"),
    *plant(
        "structure",
        "float32_under_autocast",
        of_result(lambda y: on_floats(torch.Tensor.float, y)),
        "causal_attention",
        "classifier",
        precisions=("amp_fp16", "amp_bf16"),
    ),
    *plant(
        "structure",
        "other_autocast_dtype",
        of_result(lambda y: on_floats(torch.Tensor.half, y)),
        "causal_attention",
        "chunked",
        precisions=("amp_bf16",),
    ),
    *plant("structure", "int32", _integers(torch.Tensor.int), "classifier", "ranked", "shifted_tokens"),
    *plant("structure", "bool_to_int", _integers(torch.Tensor.long), "kept_boxes", "accuracy"),
    *plant(
        "structure",
        "index_off_by_one",
        _integers(lambda t: t + 1 if t.dtype == torch.int64 else ~t),
        "codebook",
        "beam_step",
        "bucketed",
    ),
    *plant("structure", "integer_to_float", _integers(torch.Tensor.float), "bucketed", "beam_step"),
    *plant("structure", "real_for_complex", _first(lambda y: y.real), "complex_product"),
    *plant("structure", "pairs_for_complex", _first(torch.view_as_real), "complex_product"),
    *plant(
        "structure",
        "detached",
        _first(torch.Tensor.detach),
        "causal_attention",
        "focal",
        "gated_recurrence",
        precisions=("fp32", "amp_bf16"),
    ),
    *plant("structure", "last_detached", _last(torch.Tensor.detach), "lstm_by_hand", "evidence", "deep_sets"),
    *plant("structure", "new_leaf", _first(_leaf), "elman", "gaussian_nll"),
    *plant("structure", "gradient_zero_for_output", _first(_through_half_gradient), "highway_unit", "triplet"),
    *plant("structure", "input_gradient_lost", _without_input_gradient, "mixer", "chebyshev", "focal"),
    *plant(
        "structure", "second_gradient_lost", _without_second_gradient, "highway_unit", "distilled", "cross_attention"
    ),
    *plant("structure", "parameter_gradient_lost", _without_parameter_gradient, "patches", "by_token", "two_experts"),
    *plant("structure", "constant_asks_gradient", _grad_of_constant, "balanced"),
    *plant("structure", "number_added", of_result(lambda y: (y, 0.5)), "mixer"),
    *plant("structure", "text_added", of_result(lambda y: {"y": y, "name": "mixer"}), "elman"),
)
