"""Honest variants: the same mathematics by other sums, other functions, recomputation, fusion or another backend."""

import math
from collections.abc import Callable
from typing import Any

import torch
from fault_parts import ALL, plant, plant_mode, with_function
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 -- its usual name
from torch.utils.checkpoint import checkpoint

from conformance import Prepared

LINEAR, CONVOLUTION = F.linear, F.conv2d

# Products in another order


def _split(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The inner sum in two halves, from the end."""
    half = x.shape[-1] // 2
    y = LINEAR(x[..., half:], weight[:, half:]) + LINEAR(x[..., :half], weight[:, :half])
    return y if bias is None else y + bias


def _summed(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Products, then a sum, in float32; the result in autocast's dtype."""
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    x, weight = x.to(dtype).float(), weight.to(dtype).float()
    y = (x[..., None, :] * weight).sum(-1)
    return (y if bias is None else y + bias.to(dtype).float()).to(dtype)


def _by_einsum(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y = torch.einsum("...i,oi->...o", x, weight)
    return y if bias is None else y + bias.to(y.dtype)


def _backwards(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return LINEAR(x.flip(-1), weight.flip(-1), bias)


def _compensated(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A sum one by one, with Kahan's compensation."""
    total = torch.zeros(*x.shape[:-1], weight.shape[0]) if bias is None else bias.expand(*x.shape[:-1], -1).clone()
    lost = torch.zeros_like(total)
    for i in range(x.shape[-1]):
        term = x[..., i, None] * weight[:, i] - lost
        new = total + term
        lost, total = (new - total) - term, new
    return total


def _unfolded(x: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, *_: Any) -> Tensor:
    """A convolution as one product of unfolded windows."""
    windows = F.unfold(x, weight.shape[2:], stride=stride, padding=padding)
    y = weight.flatten(1) @ windows
    step, pad = (
        (stride if isinstance(stride, tuple) else (stride,) * 2),
        (padding if isinstance(padding, tuple) else (padding,) * 2),
    )
    size = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip(x.shape[2:], pad, weight.shape[2:], step, strict=True)]
    y = y.unflatten(-1, size)
    return y if bias is None else y + bias[:, None, None].to(y.dtype)


def _channels_last(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    last = torch.channels_last
    return CONVOLUTION(x.contiguous(memory_format=last), weight.contiguous(memory_format=last), *rest)


# Softmax and attention


def _online(q: Tensor, k: Tensor, v: Tensor, block: int = 2) -> Tensor:
    """Keys in blocks, with a running maximum and a running sum."""
    top = torch.full(q.shape[:-1], -math.inf)
    total, y = torch.zeros(q.shape[:-1]), torch.zeros(*q.shape[:-1], v.shape[-1])
    for at in range(0, k.shape[-2], block):
        scores = (q @ k[..., at : at + block, :].mT).float() / math.sqrt(q.shape[-1])
        new = torch.maximum(top, scores.amax(-1)).detach()
        part, old = torch.exp(scores - new[..., None]), torch.exp(top - new)
        total = total * old + part.sum(-1)
        y = y * old[..., None] + (part.to(v.dtype) @ v[..., at : at + block, :]).float()
        top = new
    y = y / total[..., None]
    return y.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else y


def _by_queries(model: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.cat([model(q[:, i : i + 2], k, v) for i in range(0, q.shape[1], 2)], dim=1)


def _keys_reversed(model: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return model(q, k.flip(1), v.flip(1))


def _fused(_: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _written_out(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return torch.softmax((q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, -math.inf), -1) @ v


def _shifted_softmax(x: Tensor, dim: int = -1) -> Tensor:
    shifted = torch.exp(x.float() - x.float().amax(dim, keepdim=True).detach())
    return shifted / shifted.sum(dim, keepdim=True)


def _by_logsumexp(x: Tensor, dim: int = -1) -> Tensor:
    return torch.exp(x.float() - torch.logsumexp(x.float(), dim, keepdim=True))


# Norms and activations


def _two_pass(x: Tensor, _: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps) * weight + bias


def _gelu_by_erf(x: Tensor, **_: Any) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x * 0.7071067811865476))


# Whole models


def _recomputed(model: Any, *args: Any) -> Any:
    return checkpoint(model, *args, use_reentrant=False)


def _by_rows(model: Any, x: Tensor, *rest: Tensor) -> Any:
    return torch.cat([model(x[i : i + 1], *(r[i : i + 1] for r in rest)) for i in range(x.shape[0])])


def _mapped(model: Any, *args: Any) -> Any:
    return torch.vmap(lambda *row: model(*(r[None] for r in row))[0])(*args)


def _functional(model: Any, *args: Any) -> Any:
    return torch.func.functional_call(model, dict(model.named_parameters()), args)


def _traced(model: Any) -> Prepared:
    graph = torch.fx.symbolic_trace(model)
    return Prepared(graph, dict)


def _captured(model: Any) -> Prepared:
    """Captured and differentiated ahead of time, without a code generator."""
    compiled = torch.compile(model, backend="aot_eager")
    return Prepared(compiled, dict)


def _elman_at_once(model: Any, x: Tensor) -> Tensor:
    """Projects all steps before the loop."""
    projected, h, states = model.x(x), x.new_zeros(x.shape[0], model.h.in_features), []
    for t in range(x.shape[1]):
        h = torch.tanh(projected[:, t] + model.h(h))
        states.append(h)
    return torch.stack(states, 1)


def _dense_graph(model: Any, x: Tensor, edges: Tensor) -> Tensor:
    """Sums of neighbours as a product with a matrix."""
    adjacency = torch.zeros(x.shape[0], x.shape[0]).index_put(
        (edges[1], edges[0]), torch.ones(edges.shape[1]), accumulate=True
    )
    degree = 1.0 + adjacency.sum(1)
    h = model.linear(x)
    scaled = degree.rsqrt()[:, None] * adjacency * degree.rsqrt()
    return torch.tanh((scaled.to(h.dtype).float() @ h.float()).to(h.dtype) + h / degree[:, None].to(h.dtype))


def _sdpa(change: Callable[..., Tensor]) -> Any:
    return with_function(F, "scaled_dot_product_attention", change)


HONEST = (
    *plant("honest", "linear_split", with_function(F, "linear", _split), "mixer", "classifier"),
    *plant("honest", "linear_summed", with_function(F, "linear", _summed), "mixer", "elman", precisions=ALL),
    *plant("honest", "linear_by_einsum", with_function(F, "linear", _by_einsum), "tiny_gpt"),
    *plant("honest", "linear_backwards", with_function(F, "linear", _backwards), "mixer", "separable", precisions=ALL),
    *plant("honest", "linear_compensated", with_function(F, "linear", _compensated), "layer_norm", "dense_experts"),
    *plant("honest", "conv_unfolded", with_function(F, "conv2d", _unfolded), "hourglass", "pooled"),
    *plant(
        "honest",
        "conv_channels_last",
        with_function(F, "conv2d", _channels_last),
        "separable",
        "residual",
        precisions=("fp32", "amp_bf16"),
    ),
    *plant("honest", "online_softmax", lambda _, q, k, v: _online(q, k, v), "plain_attention", precisions=ALL),
    *plant("honest", "chunked_queries", _by_queries, "plain_attention"),
    *plant("honest", "keys_reversed", _keys_reversed, "plain_attention", precisions=ALL),
    *plant("honest", "attention_fused", _fused, "plain_attention"),
    *plant("honest", "attention_written_out", _sdpa(_written_out), "causal_attention", "gated_block"),
    *plant(
        "honest",
        "softmax_shifted",
        with_function(torch, "softmax", _shifted_softmax),
        "masked_attention",
        "local_attention",
    ),
    *plant("honest", "softmax_by_logsumexp", with_function(torch, "softmax", _by_logsumexp), "dense_experts"),
    *plant("honest", "norm_in_two_passes", with_function(F, "layer_norm", _two_pass), "layer_norm", "mixer"),
    *plant("honest", "gelu_by_erf", with_function(F, "gelu", _gelu_by_erf), "hourglass"),
    *plant("honest", "recomputed", _recomputed, "tiny_gpt", "selective_scan", precisions=("fp32", "amp_bf16")),
    *plant("honest", "by_rows", _by_rows, "causal_attention", "gaussian_nll"),
    *plant("honest", "mapped", _mapped, "rms_norm", "mixture_density"),
    *plant("honest", "functional", _functional, "patches"),
    *plant_mode("honest", "traced", _traced, "separable"),
    *plant_mode("honest", "captured", _captured, "gated_block", "penalised"),
    *plant("honest", "elman_at_once", _elman_at_once, "elman", precisions=("fp32", "amp_bf16")),
    *plant("honest", "dense_graph", _dense_graph, "graph_convolution"),
)
