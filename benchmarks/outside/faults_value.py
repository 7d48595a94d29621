"""Faults of values: wrong outputs and wrong gradients, by a little, in one place, or by another formula."""

import math
from typing import Any

import torch
from fault_parts import LOW, Bent, first_parameter, inputs, outputs, parameters, plant, with_function
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 -- its usual name


def _scaled(factor: float) -> Any:
    return lambda t: t * factor


def _without(index: Any) -> Any:
    def damage(t: Tensor) -> Tensor:
        t = t.clone()
        t[index] = 0
        return t

    return damage


def _rounded(dtype: torch.dtype) -> Any:
    return lambda t: t.to(dtype).to(t.dtype)


def _one_off(t: Tensor) -> Tensor:
    t = t.clone()
    t.view(-1)[-1] *= 1.001
    return t


def _columns_swapped(t: Tensor) -> Tensor:
    t = t.clone()
    t[..., [0, 1]] = t[..., [1, 0]]
    return t


def _transposed(t: Tensor) -> Tensor:
    return t.t().contiguous() if t.dim() == 2 and t.shape[0] == t.shape[1] else t


def _clipped(t: Tensor) -> Tensor:
    return t.clamp(-0.5, 0.5)


def _noisy(t: Tensor) -> Tensor:
    return t * (1 + 0.01 * torch.sin(torch.arange(t.numel(), dtype=torch.float32)).view_as(t).to(t.dtype))


PLANTED = (
    *plant("value", "gradient_5_percent", inputs(_scaled(1.05)), "causal_attention", "elman", "selective_scan"),
    *plant("value", "gradient_tiny_factor", inputs(_scaled(1 + 1e-4)), "graph_convolution", "hourglass", "focal"),
    *plant("value", "gradient_negated", inputs(torch.neg), "dilated", "gaussian_nll", precisions=("fp32", *LOW)),
    *plant("value", "gradient_doubled", inputs(_scaled(2.0)), "chebyshev", "dense_experts", precisions=("fp32", *LOW)),
    *plant("value", "gradient_row_lost", inputs(_without(-1)), "linear_attention", "mixer", "one_expert"),
    *plant("value", "gradient_first_lost", inputs(_without((..., 0))), "retention", "cosine_head", "separable"),
    *plant(
        "value",
        "gradient_rolled",
        inputs(lambda g: g.roll(1, -1)),
        "rms_norm",
        "conv_lstm",
        precisions=("fp32", "amp_bf16"),
    ),
    *plant("value", "gradient_clipped", inputs(_clipped), "highway_unit", "hourglass"),
    *plant(
        "value",
        "gradient_nan",
        inputs(lambda g: g / (g != g.flatten()[0])),
        "latents",
        "channel_norm",
        precisions=("fp32", *LOW),
    ),
    *plant("value", "gradient_through_bf16", inputs(_rounded(torch.bfloat16)), "gated_block", "layer_norm"),
    *plant("value", "gradient_through_fp16", inputs(_rounded(torch.float16)), "pre_norm_block", "patches"),
    *plant("value", "gradient_noise", inputs(_noisy), "masked_attention", "dilated"),
    *plant("value", "bias_gradient_lost", parameters(torch.zeros_like, "bias"), "elman", "classifier", "hourglass"),
    *plant("value", "bias_gradient_mean", parameters(_scaled(0.25), "bias"), "layer_norm", "separable", "chunked"),
    *plant("value", "weight_gradient_transposed", parameters(_transposed, "weight"), "elman", "layer_norm"),
    *plant("value", "weight_gradient_row", first_parameter(_without(0)), "tiny_gpt", "graph_attention", "both_ways"),
    *plant(
        "value", "weight_gradient_factor", first_parameter(_scaled(1.01)), "two_experts", "diagonal_states", "patches"
    ),
    *plant("value", "weight_gradient_swapped", first_parameter(_columns_swapped), "rotary_attention", "fourier_layer"),
    *plant("value", "output_row_lost", outputs(_without(-1)), "gru_characters", "deep_sets", "elman"),
    *plant("value", "output_one_off", outputs(_one_off), "distance_bias", "moving_averages", "phase_mask"),
    *plant("value", "output_factor", outputs(_scaled(1 + 2e-5)), "rms_norm", "cosine_head", "focal"),
    *plant("value", "output_shifted", outputs(lambda y: y + 1e-3), "soft_slots", "adaptive_norm", "overlap"),
    *plant("value", "output_through_bf16", outputs(_rounded(torch.bfloat16)), "causal_attention", "mixture_density"),
    *plant("value", "output_through_fp16", outputs(_rounded(torch.float16)), "selective_scan", "ctc"),
    *plant("value", "output_swapped", outputs(_columns_swapped), "minimal_gru", "whitened"),
)


# Other formulas in the place of torch's functions


def _softmax_8_bits(x: Tensor, dim: int = -1) -> Tensor:
    return torch.round(x.softmax(dim) * 255) / 255


def _detached_norm(x: Tensor, p: float = 2.0, dim: int = 1) -> Tensor:
    return x / x.detach().norm(p, dim, keepdim=True)


def _tanh_gradient(x: Tensor) -> Tensor:
    """The gradient is 1 − y in the place of 1 − y²."""
    y = x.detach().tanh()
    return Bent.apply(x, lambda _: y.clone(), lambda g: g * (1 - y))


def _softmax_gradient(x: Tensor, dim: int = -1) -> Tensor:
    """The gradient lacks the term of the sum."""
    y = x.detach().softmax(dim)
    return Bent.apply(x.to(y.dtype), lambda _: y.clone(), lambda g: g * y)


def _layer_norm_eps(x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    return torch.layer_norm(x, shape, weight, bias, 100 * eps)


def _layer_norm_gradient(x: Tensor, _: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    """Mean and variance count as constants."""
    fixed = x.detach().float()
    y = (x - fixed.mean(-1, keepdim=True)) * torch.rsqrt(fixed.var(-1, keepdim=True, unbiased=False) + eps)
    return y * weight + bias


def _attention(q: Tensor, k: Tensor, v: Tensor, scale: float, ahead: int) -> Tensor:
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(ahead)
    return torch.softmax((q @ k.mT * scale).masked_fill(~seen, -math.inf), -1) @ v


def _unmasked(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
    return F.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def _sees_ahead(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
    return _attention(q, k, v, q.shape[-1] ** -0.5, 1)


def _wrong_scale(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
    return _attention(q, k, v, (q.shape[-1] + 1) ** -0.5, 0)


def _bias_twice(x: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
    y = x @ weight.t()
    return y if bias is None else y + bias + bias


def _half_detached(x: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
    y = x @ (weight * 0.5 + weight.detach() * 0.5).t()
    return y if bias is None else y + bias


def _normalised_slowly(x: Tensor, p: float = 2.0, dim: int = 1) -> Tensor:
    return x / (x.norm(p, dim, keepdim=True) + 1e-3)


def _aligned_corners(x: Tensor, **_: Any) -> Tensor:
    return torch.ops.aten.upsample_bilinear2d(x, [6, 6], True)  # what interpolate calls


def _without_shift(x: Tensor, dim: int) -> Tensor:
    return (x.bfloat16().exp().sum(dim)).log().to(x.dtype)


def _exp_by_series(x: Tensor) -> Tensor:
    y = 1 + x / 64 * (1 + x / 128)
    return y**64


def _same_padded(x: Tensor, *args: Any, **_: Any) -> Tensor:
    return torch.constant_pad_nd(x, args[0], 0.01)


sdpa = (F, "scaled_dot_product_attention")
PLANTED += (
    *plant(
        "value",
        "no_mask",
        with_function(*sdpa, _unmasked),
        "causal_attention",
        "gated_block",
        precisions=("fp32", *LOW),
    ),
    *plant("value", "mask_off_by_one", with_function(*sdpa, _sees_ahead), "causal_attention", "tiny_gpt"),
    *plant("value", "scale_of_scores", with_function(*sdpa, _wrong_scale), "causal_attention", "gated_block"),
    *plant(
        "value", "softmax_8_bits", with_function(torch, "softmax", _softmax_8_bits), "masked_attention", "dense_experts"
    ),
    *plant(
        "value",
        "softmax_gradient",
        with_function(torch, "softmax", _softmax_gradient),
        "local_attention",
        "plain_attention",
    ),
    *plant(
        "value", "tanh_gradient", with_function(torch, "tanh", _tanh_gradient), "lstm_by_hand", "dilated", "chunked"
    ),
    *plant("value", "norm_detached", with_function(F, "normalize", _detached_norm), "cosine_head", "contrast"),
    *plant("value", "norm_eps", with_function(F, "normalize", _normalised_slowly), "cosine_head", "queue"),
    *plant(
        "value",
        "layer_norm_eps",
        with_function(F, "layer_norm", _layer_norm_eps),
        "layer_norm",
        "mixer",
        "channel_norm",
    ),
    *plant(
        "value", "layer_norm_gradient", with_function(F, "layer_norm", _layer_norm_gradient), "layer_norm", "latents"
    ),
    *plant(
        "value",
        "gelu_by_tanh",
        with_function(F, "gelu", lambda x, **_: torch.nn.functional.silu(1.702 * x) / 1.702),
        "hourglass",
        "mixer",
    ),
    *plant("value", "silu_is_hardswish", with_function(F, "silu", F.hardswish), "gated_block", "two_experts"),
    *plant("value", "softplus_is_relu", with_function(F, "softplus", F.relu), "selective_scan", "triplet"),
    *plant("value", "bias_twice", with_function(F, "linear", _bias_twice), "separable", "mixture_density"),
    *plant("value", "weight_half_detached", with_function(F, "linear", _half_detached), "elman", "warm_up"),
    *plant("value", "corners_aligned", with_function(F, "interpolate", _aligned_corners), "hourglass"),
    *plant("value", "logsumexp_narrow", with_function(torch, "logsumexp", _without_shift), "mixture_density"),
    *plant("value", "exp_by_series", with_function(torch, "exp", _exp_by_series), "selective_scan", "graph_attention"),
    *plant("value", "padding_not_zero", with_function(F, "pad", _same_padded), "dilated", "local_attention"),
    *plant("value", "sum_of_halves_lost", outputs(lambda y: y - y.mean() * 1e-4), "soft_slots", "ranking"),
)
